"""The one exception that users may cause, and nothing else."""

from __future__ import annotations


class NsysprofError(Exception):
    """A known failure: one line that says what and where, and a hint, a command where possible.

    The command line prints both and exits with 1; library users catch it as an ordinary exception.
    """

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message
