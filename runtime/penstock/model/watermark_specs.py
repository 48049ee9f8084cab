"""How a source tells how far event time has come, and how far it may run ahead of others, as plain data."""

from penstock.model.spec_base import Expression, Function, Spec


class BoundedDelay(Spec, frozen=True, kw_only=True):
    """The latest row, less what rows may be out of order by."""

    delay_us: int = 0


class Punctuated(Spec, frozen=True, kw_only=True):
    """Rows say it: an expression gives a watermark, or is true for rows whose own time is one."""

    expression: Expression


class Generated(Spec, frozen=True, kw_only=True):
    """A user's object says it, once per batch of a split."""

    generator: Function


class Alignment(Spec, frozen=True, kw_only=True):
    """No split of the source is read while it is ahead of the slowest by more than this."""

    within_us: int
    group: str = ""
    """Sources of the job with the same one wait for each other; empty: this one alone."""


WatermarkStrategy = BoundedDelay | Punctuated | Generated
