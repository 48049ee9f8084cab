"""Rows that an operator has counted."""

from collections.abc import Iterable

import msgspec


class OperatorMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of one operator: in one subtask since its deployment, or in all of them up to a checkpoint."""

    uid: str
    rows_in: int = 0
    rows_out: int = 0
    late_rows: int = 0
    bad_rows: int = 0
    state_rows: int = 0
    """Rows of state now: the only one that does not just grow."""


def total(counters: Iterable[OperatorMetrics]) -> dict[str, OperatorMetrics]:
    """The sum per operator."""
    sums: dict[str, OperatorMetrics] = {}
    for each in counters:
        before = sums.get(each.uid)
        sums[each.uid] = each if before is None else _plus(before, each)
    return sums


def _plus(one: OperatorMetrics, other: OperatorMetrics) -> OperatorMetrics:
    return OperatorMetrics(
        uid=one.uid,
        rows_in=one.rows_in + other.rows_in,
        rows_out=one.rows_out + other.rows_out,
        late_rows=one.late_rows + other.late_rows,
        bad_rows=one.bad_rows + other.bad_rows,
        state_rows=one.state_rows + other.state_rows,
    )
