"""Errors, sorted by what whoever catches them must do.

Every error that a user may meet has a code, says what is wrong and where, which values are allowed, and
how to fix it. Codes are stable: P (program), R (record), S (state and savepoints), C (cluster), H (REST).
"""


class PenstockError(Exception):
    """Root of all errors that Penstock raises on purpose."""

    def __init__(self, code: str, what: str, *, where: str | None = None, fix: str | None = None) -> None:
        self.code, self.what, self.where, self.fix = code, what, where, fix
        super().__init__(self.render())

    def render(self) -> str:
        """The message as people read it: code, place, what, and the fix on a line of its own."""
        place = f"{self.where}: " if self.where else ""
        fix = f"\n  fix: {self.fix}" if self.fix else ""
        return f"{self.code} {place}{self.what}{fix}"


class UserError(PenstockError):
    """The program, its input or a command is wrong; trying again cannot help. Shown without a traceback."""


class RecordError(UserError):
    """A row of input cannot be taken. Names the source and the offset."""


class FatalJobError(PenstockError):
    """Restarting cannot help; the job goes to FAILED."""


class RetryableError(PenstockError):
    """Try the same step again; nothing was changed."""


class StaleError(PenstockError):
    """The caller has been replaced by a newer attempt or leader, and must stop."""
