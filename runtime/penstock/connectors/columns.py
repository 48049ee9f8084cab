"""How users describe the columns of `generate`."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from penstock.connectors.generated import (
    AnyColumn,
    Choice,
    Counting,
    CreationTime,
    Times,
    UniformFloats,
    UniformIntegers,
)
from penstock.model.durations import parse_duration
from penstock.model.errors import UserError


def sequence(start: int = 0, step: int = 1) -> AnyColumn:
    """start, start + step, ... over all splits: each number is made once."""
    return Counting(start=start, step=step)


def uniform(low: float, high: float) -> AnyColumn:
    """Random numbers: whole from `low` to `high`, both included, if both are whole; else below `high`."""
    if low > high:
        raise UserError("P018", f"uniform({low}, {high}) has no values", fix=f"write uniform({high}, {low})")
    if isinstance(low, int) and isinstance(high, int):
        return UniformIntegers(low=low, high=high)
    return UniformFloats(low=float(low), high=float(high))


def choice(
    options: Sequence[str] | Sequence[int] | Sequence[float] | Sequence[bool],
    weights: Sequence[float] | None = None,
) -> AnyColumn:
    """One of the options at random, equally often or by weight."""
    chosen = [1.0] * len(options) if weights is None else [float(weight) for weight in weights]
    if not options or len(chosen) != len(options) or min(chosen) < 0 or sum(chosen) <= 0:
        raise UserError(
            "P018",
            f"choice needs options, and a weight of 0 or more for each; got {len(options)} and {len(chosen)}",
            fix='write choice(["a", "b"]) or choice(["a", "b"], weights=[9, 1])',
        )
    return Choice(options=list(options), weights=chosen)


def timestamps(start: datetime | str, step: str | timedelta | float) -> AnyColumn:
    """An event time that advances by `step` with each row of the whole input."""
    return Times(start_us=instant_us(start), step_us=parse_duration(step, what="timestamps: step"))


def now() -> AnyColumn:
    """When the row was made; with a rate: when it was due, so that a late row shows its delay."""
    return CreationTime()


def instant_us(when: datetime | str) -> int:
    """Microseconds since 1970 of a time; one without a zone is UTC."""
    try:
        parsed = datetime.fromisoformat(when) if isinstance(when, str) else when
    except ValueError as error:
        raise UserError(
            "P018", f"cannot read {when!r} as a time", fix='write "2026-01-31T12:00:00", or pass a datetime'
        ) from error
    zoned = parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    return (zoned - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
