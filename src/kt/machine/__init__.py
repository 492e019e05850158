"""Facts about the machine that kt runs on."""
