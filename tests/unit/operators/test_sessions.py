"""Sessions: whatever the rows, gaps, lateness, batches and restarts, they are those of a plain recomputation."""

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model import schemas, specs
from penstock.model.changes import CHANGE, DELETE, INSERT, UPDATE
from penstock.model.clocks import MAX_WATERMARK, MIN_WATERMARK
from penstock.model.errors import UserError
from penstock.operators.sessions import SessionAggregate

INPUT = pl.Schema({"key": pl.String(), "at": pl.Int64(), "value": pl.Int64(), "gap": pl.Int64()})


def expression(name):
    return specs.Expression(name=name, text=name, polars=pl.col(name).meta.serialize())


AGGREGATES = (
    specs.Aggregate(name="rows", function="count", output_type="Int64"),
    specs.Aggregate(name="total", function="sum", input=expression("value"), output_type="Int64"),
    specs.Aggregate(name="last", function="last", input=expression("value"), output_type="Int64"),
)


def sessions(*, gap=5, lateness=0, keys=("key",), late_to="late", event_time=True):
    columns = {CHANGE: pl.Int8()} if lateness else {}
    columns |= dict.fromkeys(keys, pl.String())
    bound = pl.Int64() if event_time else pl.Datetime("us")
    columns |= {"window_start": bound, "window_end": bound}
    columns |= {"rows": pl.Int64(), "total": pl.Int64(), "last": pl.Int64()}
    return specs.SessionAggregate(
        keys=keys,
        gap_us=gap or 0,
        gap=None if gap else expression("gap"),
        aggregates=AGGREGATES,
        event_time=specs.EventTime(column="at") if event_time else None,
        allowed_lateness_us=lateness,
        late_to=late_to,
        output=schemas.fields(columns),
    )


class Model:
    """Sessions as lists of rows, one key at a time, merged pair by pair."""

    def __init__(self, spec):
        self.spec, self.watermark = spec, MIN_WATERMARK
        self.opened, self.done, self.late = {}, {}, []

    def rows(self, rows):
        """One after the other: a row that comes too late is not saved by the next."""
        for row in rows:
            key, at, _, gap = row
            own = key if self.spec.keys else ()
            start, end = at, at + (self.spec.gap_us or gap)
            opened = self.opened.setdefault(own, [])
            met = [each for each in opened if each[0] <= end and start <= each[1]]
            whole = (min([start, *(each[0] for each in met)]), max([end, *(each[1] for each in met)]))
            if self._is_gone(whole):
                self.late.append(row)
                continue
            together = [one for each in met for one in each[2]] + [row]
            self.opened[own] = [each for each in opened if each not in met] + [(*whole, together)]

    def _is_gone(self, session):
        return session[1] - 1 + self.spec.allowed_lateness_us <= self.watermark

    def time(self, watermark):
        self.watermark = max(self.watermark, watermark)
        for key, found in self.opened.items():
            for start, end, rows in filter(self._is_gone, found):
                own = (key,) if self.spec.keys else ()
                last_time = max(at for _, at, _, _ in rows)
                lasts = {value for _, at, value, _ in rows if at == last_time}
                self.done[(*own, start, end)] = (len(rows), sum(value for _, _, value, _ in rows), lasts)
            self.opened[key] = [each for each in found if not self._is_gone(each)]


ROWS = st.tuples(
    st.sampled_from(["a", "b", "c", None]), st.integers(0, 60), st.integers(-9, 9), st.sampled_from([1, 3, 12])
)
BATCHES = st.lists(ROWS, min_size=1, max_size=8).map(lambda rows: pl.DataFrame(rows, schema=INPUT, orient="row"))
STEPS = st.lists(BATCHES | st.integers(0, 70), max_size=10)


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.tuples(STEPS, st.sampled_from([1, 3])), min_size=1, max_size=3),
    st.sampled_from([1, 4, 9, None]),
    st.sampled_from([0, 0, 3, 20]),
    st.booleans(),
)
def test_sessions_equal_a_plain_recomputation(phases, changed_table, parts, gap, lateness, keyed):
    spec = sessions(gap=gap, lateness=lateness, keys=("key",) if keyed else ())
    ran = phases(lambda: SessionAggregate(spec), spec.keys)
    ran.run(parts, pl.DataFrame([("a", 5, 5, 3)], schema=INPUT, orient="row"))
    model = Model(spec)
    for step in [*(step for steps, _ in parts for step in steps), MAX_WATERMARK]:
        model.time(step) if isinstance(step, int) else model.rows(step.rows())
    table = changed_table(ran.frames, [*spec.keys, "window_start", "window_end"])
    assert table.keys() == model.done.keys()
    for window, (count, total, last) in table.items():
        expected_count, expected_total, lasts = model.done[window]
        assert (count, total) == (expected_count, expected_total)
        assert last in lasts
    found = [row for frame in ran.sides.get("late", []) for row in frame.rows()]
    assert sorted(found, key=repr) == sorted(model.late, key=repr)
    assert ran.late_rows == len(model.late)


def rows(*times, key="a"):
    return pl.DataFrame([(key, at, at, 5) for at in times], schema=INPUT, orient="row")


def test_a_session_ends_a_gap_after_its_last_row(start):
    operator = SessionAggregate(sessions())
    collected = start(operator)
    operator.on_batch(rows(0, 4, 9))
    operator.on_watermark(12)
    assert collected.frames == []
    operator.on_batch(rows(20))
    operator.on_watermark(13)
    assert collected.frame.rows() == [("a", 0, 14, 3, 13, 9)]


def test_a_late_row_is_late_also_when_a_later_one_of_its_batch_would_have_saved_it(start):
    operator = SessionAggregate(sessions())
    collected = start(operator)
    operator.on_watermark(20)
    operator.on_batch(rows(14, 18, 22))  # the first is over at 19; the second is not, nor the third
    operator.on_watermark(MAX_WATERMARK)
    assert collected.frame.rows() == [("a", 18, 27, 2, 40, 22)]
    assert operator.context.counters.late_rows == 1


def test_a_row_in_between_joins_two_sessions(start):
    operator = SessionAggregate(sessions())
    collected = start(operator)
    operator.on_batch(rows(0, 10))
    operator.on_barrier()
    operator.on_batch(rows(5))
    operator.on_watermark(MAX_WATERMARK)
    assert collected.frame.rows() == [("a", 0, 15, 3, 15, 10)]


def test_late_rows_take_back_what_was_emitted(start):
    operator = SessionAggregate(sessions(lateness=100))
    collected = start(operator)
    operator.on_batch(rows(0, 10))
    operator.on_watermark(30)
    assert collected.frame.rows() == [(INSERT, "a", 0, 5, 1, 0, 0), (INSERT, "a", 10, 15, 1, 10, 10)]
    collected.frames.clear()
    operator.on_batch(rows(2, 10))
    assert collected.frame.rows() == [
        (DELETE, "a", 0, 5, 1, 0, 0),
        (INSERT, "a", 0, 7, 2, 2, 2),
        (UPDATE, "a", 10, 15, 2, 20, 10),
    ]
    collected.frames.clear()
    operator.on_batch(rows(6))
    assert sorted(collected.frame.rows()) == [
        (DELETE, "a", 0, 7, 2, 2, 2),
        (DELETE, "a", 10, 15, 2, 20, 10),
        (INSERT, "a", 0, 15, 5, 28, 10),
    ]


def test_of_equal_times_the_row_that_came_last_is_the_last(start):
    operator = SessionAggregate(sessions())
    collected = start(operator)
    operator.on_batch(pl.DataFrame([("a", 5, 1, 5), ("a", 9, 2, 5)], schema=INPUT, orient="row"))
    operator.on_barrier()
    operator.on_batch(pl.DataFrame([("a", 3, 3, 5), ("a", 9, 4, 5)], schema=INPUT, orient="row"))
    operator.on_watermark(MAX_WATERMARK)
    assert collected.frame.rows() == [("a", 3, 14, 4, 10, 4)]


def test_sessions_by_the_clock(start, clock):
    operator = SessionAggregate(sessions(event_time=False, gap=100, late_to=""))
    collected = start(operator, clock=clock)
    clock.now = 1_000
    operator.on_batch(rows(7))
    assert operator.next_processing_time() == 1_100
    clock.now = 1_050
    operator.on_batch(rows(8))
    operator.on_processing_time(1_100)
    assert collected.frames == []
    operator.on_processing_time(1_150)
    assert collected.frame["rows"].to_list() == [2]
    assert operator.next_processing_time() is None


@pytest.mark.parametrize("gap", [None, 0, -3])
def test_a_gap_must_be_above_zero(start, gap):
    operator = SessionAggregate(sessions(gap=None))
    start(operator)
    with pytest.raises(UserError, match="1 of 2 rows have no session gap"):
        operator.on_batch(pl.DataFrame([("a", 1, 1, 5), ("a", 1, 1, gap)], schema=INPUT, orient="row"))
