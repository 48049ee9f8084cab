"""Rows that an operator has counted."""

from collections.abc import Iterable

import msgspec


class UserMetric(msgspec.Struct, frozen=True, kw_only=True):
    """A figure that a user's function keeps."""

    name: str
    kind: str
    """counter | gauge | histogram."""
    value: float = 0
    """Of a histogram: the sum of what was observed."""
    across: str = "sum"
    """sum | min | max: what the gauges of several subtasks come to."""
    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    """Of a histogram: how many values were at most each bound, at last how many there were."""


class OperatorMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of one operator: in one subtask since its deployment, or in all of them up to a checkpoint."""

    uid: str
    rows_in: int = 0
    rows_out: int = 0
    late_rows: int = 0
    bad_rows: int = 0
    state_rows: int = 0
    """Rows of state now (what RocksDB estimates, for state in it): this and its bytes do not just grow."""
    state_bytes: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    user: tuple[UserMetric, ...] = ()
    """By name. Of these, gauges do not just grow."""

    def without_present(self) -> "OperatorMetrics":
        """Only what goes on after a restart: without what describes the present."""
        lasting = tuple(metric for metric in self.user if metric.kind != "gauge")
        return msgspec.structs.replace(self, state_rows=0, state_bytes=0, user=lasting)


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
        state_bytes=one.state_bytes + other.state_bytes,
        cache_hits=one.cache_hits + other.cache_hits,
        cache_misses=one.cache_misses + other.cache_misses,
        user=_all_user((*one.user, *other.user)) if one.user or other.user else (),
    )


def _all_user(metrics: Iterable[UserMetric]) -> tuple[UserMetric, ...]:
    sums: dict[str, UserMetric] = {}
    for each in metrics:
        before = sums.get(each.name)
        sums[each.name] = each if before is None else _plus_user(before, each)
    return tuple(sums[name] for name in sorted(sums))


def _plus_user(one: UserMetric, other: UserMetric) -> UserMetric:
    if (one.kind, one.bounds) != (other.kind, other.bounds):
        return other  # the function has changed, and what it counted before means something else
    value = {"min": min, "max": max}.get(one.across, lambda a, b: a + b)(one.value, other.value)
    counts = tuple(a + b for a, b in zip(one.counts, other.counts, strict=True))
    return msgspec.structs.replace(one, value=value, counts=counts)
