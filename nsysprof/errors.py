"""The one exception for errors that users can cause."""


class NsysprofError(Exception):
    """A known failure: one line (problem and place) and a hint, if possible a command.

    The command line prints both and exits with ``exit_code``: 1, or the exit code of a profiled program.
    """

    def __init__(self, message: str, hint: str | None = None, *, exit_code: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message
