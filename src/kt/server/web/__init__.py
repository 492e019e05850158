"""The chat page at /: one file that needs nothing from elsewhere."""
