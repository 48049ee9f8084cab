"""Iterations over DataFrames: everything anew in each round, or only what changed in the last one.

A plan that has grown by some rounds takes longer to plan than to run, so each round ends with its rows computed and
its plan forgotten.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from penstock.batch.tables import quoted
from penstock.model.errors import UserError

MOST_ROUNDS = 1_000
"""Of an iteration that names no number: one that takes more does not end."""


@dataclass(frozen=True, slots=True)
class Iterated:
    """What an iteration has come to."""

    frame: DataFrame
    rounds: int
    work: tuple[int, ...] = field(default=())
    """Of a delta iteration: rows that each round had to look at."""


def iterate(
    frame: DataFrame,
    step: Callable[[DataFrame], DataFrame],
    *,
    times: int | None = None,
    until: Callable[[DataFrame, DataFrame], bool] | None = None,
) -> Iterated:
    """Bulk: `step` makes all rows anew, `times` times, or until `until(before, after)` is true."""
    if times is None and until is None:
        raise UserError(
            "P083", "iterate: nothing says when it ends", fix="times=20, or until=a function of before, after"
        )
    current, rounds = _settled(frame), 0
    while rounds < (MOST_ROUNDS if times is None else times):
        following = _settled(step(current))
        rounds += 1
        if until is not None and until(current, following):
            return Iterated(following, rounds)
        current = following
    if times is None:
        raise _endless(rounds)
    return Iterated(current, rounds)


def iterate_delta(
    solution: DataFrame,
    work: DataFrame,
    step: Callable[[DataFrame, DataFrame], DataFrame],
    *,
    key: str | Sequence[str],
    times: int | None = None,
) -> Iterated:
    """Delta: `step(solution, work)` gives the rows of the solution that are other now; these are the next work.

    Rows replace those of the same `key`. It ends when nothing changes, or after `times` rounds.
    """
    keys = [key] if isinstance(key, str) else list(key)
    solution, work = _settled(solution), _settled(work)
    looked_at: list[int] = []
    while times is None or len(looked_at) < times:
        count = work.count()
        if not count:
            return Iterated(solution, len(looked_at), tuple(looked_at))
        looked_at.append(count)
        if len(looked_at) > MOST_ROUNDS:
            raise _endless(len(looked_at))
        changed = _settled(step(solution, work).select(*quoted(solution.columns)))
        kept = solution.join(changed.select(*quoted(keys)), keys, "left_anti")
        solution, work = _settled(kept.select(*quoted(solution.columns)).unionByName(changed)), changed
    return Iterated(solution, len(looked_at), tuple(looked_at))


def _settled(frame: DataFrame) -> DataFrame:
    made: DataFrame = frame.localCheckpoint(eager=True)
    return made


def _endless(rounds: int) -> UserError:
    return UserError("P083", f"an iteration has not ended after {rounds} rounds", fix="give it times=")
