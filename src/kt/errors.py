"""Errors that reach a user: what failed, why, and what to do next."""

EXIT_INTERRUPTED = 130
"""128 + SIGINT, as a shell reports it."""


class KtError(Exception):
    """A failure that kt explains. `exit_code` is the command's exit status."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    @property
    def advice(self) -> str:
        """The hint as a line of its own; a command at its start stays as it is typed."""
        return self.hint if self.hint.startswith("kt ") else self.hint[:1].upper() + self.hint[1:]


class UsageError(KtError):
    """The user asked for something that does not exist or does not make sense."""

    exit_code = 2


class NotFinite(KtError):
    """A forward pass gave a logit that is NaN or infinite."""


class MachineError(KtError):
    """The machine cannot do this at all (no AVX2, say)."""

    exit_code = 3


class ModelError(KtError):
    """A model's files are missing, damaged or of a kind that kt does not implement."""

    exit_code = 4


class DoesNotFit(KtError):
    """The plan needs more memory than there is; the message counts in bytes."""

    exit_code = 5


class DownloadError(KtError):
    """A download failed or what arrived is not what was announced."""

    exit_code = 6
