"""Windows that keep rows: triggers, evictors and functions against a model that takes one row at a time."""

import cloudpickle
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model import schemas, specs
from penstock.model.changes import CHANGE, INSERT, UPDATE
from penstock.model.clocks import MAX_WATERMARK
from penstock.model.errors import UserError
from penstock.operators.buffered_windows import BufferedWindows

INPUT = pl.Schema({"key": pl.String(), "at": pl.Int64(), "value": pl.Int64()})


def expression(expr):
    name = expr.meta.output_name()
    return specs.Expression(name=name, text=str(expr), polars=expr.meta.serialize())


VALUE = expression(pl.col("value"))
AGGREGATES = (
    specs.Aggregate(name="rows", function="count", output_type="Int64"),
    specs.Aggregate(name="total", function="sum", input=VALUE, output_type="Int64"),
)
JUNK = pl.DataFrame([("a", 5, 5)], schema=INPUT, orient="row")


def window(
    assigner, trigger=None, evictor=None, *, keyed=True, updating=False, lateness=0, event_time=True, **function
):
    columns = {CHANGE: pl.Int8()} if updating else {}
    columns |= {"key": pl.String()} if keyed else {}
    bound = pl.Int64() if event_time else pl.Datetime("us")
    if not isinstance(assigner, specs.GlobalWindow):
        columns |= {"window_start": bound, "window_end": bound}
    columns |= function.pop("made", {"rows": pl.Int64(), "total": pl.Int64()})
    return specs.BufferedWindow(
        keys=("key",) if keyed else (),
        assigner=assigner,
        trigger=trigger or specs.Trigger(),
        evictor=evictor,
        event_time=specs.EventTime(column="at") if event_time else None,
        allowed_lateness_us=lateness,
        late_to="late" if event_time else "",
        updating=updating,
        output=schemas.fields(columns),
        **(function or {"aggregates": AGGREGATES}),
    )


def operator(spec):
    return BufferedWindows(spec, lambda function: cloudpickle.loads(function.pickled))


def function(call):
    return specs.Function(name="f", pickled=cloudpickle.dumps(call))


ROWS = st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 60), st.integers(-9, 9))
BATCHES = st.lists(ROWS, min_size=1, max_size=12).map(lambda rows: pl.DataFrame(rows, schema=INPUT, orient="row"))
STEPS = st.lists(BATCHES | st.integers(0, 70), max_size=8)
PARTS = st.lists(st.tuples(STEPS, st.sampled_from([1, 3])), min_size=1, max_size=3)
EVICTORS = st.none() | st.builds(
    specs.Evictor, kind=st.just("count"), count=st.integers(1, 4), after=st.booleans()
) | st.builds(specs.Evictor, kind=st.just("time"), size_us=st.integers(1, 20), after=st.booleans()) | st.builds(
    specs.Evictor, kind=st.just("where"), keep=st.just(expression(pl.col("value") > 0)), after=st.booleans()
)  # fmt: skip


def evicted(rows, evictor):
    if evictor is None or not rows:
        return rows
    if evictor.kind == "count":
        return rows[-evictor.count :]
    if evictor.kind == "time":
        latest = max(at for _, at, _ in rows)
        return [row for row in rows if row[1] > latest - evictor.size_us]
    return [row for row in rows if row[2] > 0]


def fired(rows, evictor, purging, results, own):
    """What a firing leaves of the rows."""
    seen = rows if evictor is None or evictor.after else evicted(rows, evictor)
    if seen:
        results.append((*own, len(seen), sum(value for _, _, value in seen)))
    left = evicted(seen, evictor) if evictor is not None and evictor.after else seen
    return [] if purging else left


def flat(steps):
    return [row for step in steps if not isinstance(step, int) for row in step.rows()]


def emitted(ran):
    return sorted((row for frame in ran.frames for row in frame.rows()), key=repr)


@settings(deadline=None, max_examples=120)
@given(PARTS, st.integers(1, 5), EVICTORS, st.booleans(), st.booleans())
def test_a_global_window_fires_after_each_n_rows_of_a_key(phases, parts, count, evictor, purging, keyed):
    trigger = specs.Trigger(kind="count", count=count, purging=purging)
    spec = window(specs.GlobalWindow(), trigger, evictor, keyed=keyed)
    # The end of time ends a global window: no row comes after it.
    ran = phases(lambda: operator(spec), spec.keys)
    ran.run(parts, JUNK)
    held, since, expected = {}, {}, []
    for key, at, value in flat([step for steps, _ in parts for step in steps]):
        own = (key,) if keyed else ()
        held.setdefault(own, []).append((key, at, value))
        since[own] = since.get(own, 0) + 1
        if since[own] == count:
            since[own] = 0
            held[own] = fired(held[own], evictor, purging, expected, own)
    assert emitted(ran) == sorted(expected, key=repr)


@settings(deadline=None, max_examples=80)
@given(PARTS, st.integers(1, 6))
def test_delta_fires_where_a_value_has_moved_far_enough(phases, parts, threshold):
    trigger = specs.Trigger(kind="delta", input=VALUE, threshold=threshold)
    spec = window(specs.GlobalWindow(), trigger)
    ran = phases(lambda: operator(spec), spec.keys)
    ran.run(parts, JUNK)
    held, anchors, expected = {}, {}, []
    for key, at, value in flat([step for steps, _ in parts for step in steps]):
        held.setdefault(key, []).append((key, at, value))
        if abs(value - anchors.setdefault(key, value)) > threshold:
            anchors[key] = value
            fired(held[key], None, False, expected, (key,))
    assert emitted(ran) == sorted(expected, key=repr)


ASSIGNERS = st.builds(specs.Tumbling, size_us=st.integers(1, 25)) | st.builds(
    specs.Sliding, size_us=st.integers(1, 25), slide_us=st.integers(1, 25), offset_us=st.integers(0, 5)
)


def windows_of(at, assigner):
    slide = getattr(assigner, "slide_us", assigner.size_us)
    start = (at - assigner.offset_us) // slide * slide + assigner.offset_us
    while start + assigner.size_us > at:
        yield start, start + assigner.size_us
        start -= slide


@settings(deadline=None, max_examples=120)
@given(PARTS, ASSIGNERS, st.sampled_from([0, 0, 10]), st.sampled_from([None, 7]), st.booleans())
def test_early_and_late_results_add_up_to_the_final_ones(
    phases, changed_table, parts, assigner, lateness, interval, keyed
):
    trigger = specs.Trigger(kind="every", interval_us=interval) if interval else specs.Trigger()
    spec = window(
        assigner, trigger, keyed=keyed, updating=bool(interval or lateness), lateness=lateness
    )  # fmt: skip
    ran = phases(lambda: operator(spec), spec.keys)
    ran.run(parts, JUNK)
    watermark, found, late = -1, {}, []
    for step in (step for steps, _ in parts for step in steps):
        if isinstance(step, int):
            watermark = max(watermark, step)
            continue
        for key, at, value in step.rows():
            mine = list(windows_of(at, assigner))
            alive = [each for each in mine if each[1] - 1 + lateness > watermark]
            late += [(key, at, value)] if mine and not alive else []
            for each in alive:
                found.setdefault((key, *each) if keyed else each, []).append(value)
    table = changed_table(ran.frames, [*spec.keys, "window_start", "window_end"])
    assert table == {each: (len(values), sum(values)) for each, values in found.items()}
    assert sorted((row for frame in ran.sides.get("late", []) for row in frame.rows()), key=repr) == sorted(
        late, key=repr
    )
    assert ran.late_rows == len(late)


def rows(*times, key="a", value=1):
    return pl.DataFrame([(key, at, value) for at in times], schema=INPUT, orient="row")


def test_early_results_come_with_each_interval_and_only_when_something_changed(start):
    spec = window(specs.Tumbling(size_us=100), specs.Trigger(kind="every", interval_us=10), updating=True)
    made = operator(spec)
    collected = start(made)
    made.on_batch(rows(1, 2))
    made.on_watermark(5)
    assert collected.frames == []
    made.on_watermark(12)
    made.on_watermark(25)
    made.on_batch(rows(26))
    made.on_watermark(99)
    assert collected.frame.rows() == [(INSERT, "a", 0, 100, 2, 2), (UPDATE, "a", 0, 100, 3, 3)]


def test_a_window_of_event_time_can_fire_by_the_clock(start, clock):
    made = operator(window(specs.Tumbling(size_us=100), specs.Trigger(kind="processing_time"), updating=True))
    collected = start(made, clock=clock)
    made.on_batch(rows(1, 2))
    assert made.next_processing_time() == 100
    made.on_processing_time(100)
    assert collected.frame.rows() == [(INSERT, "a", 0, 100, 2, 2)]
    assert made.next_processing_time() is None


def test_windows_by_the_clock(start, clock):
    made = operator(window(specs.Tumbling(size_us=100), event_time=False))
    collected = start(made, clock=clock)
    clock.now = 150
    made.on_batch(rows(1, 2))
    assert made.next_processing_time() == 200
    made.on_processing_time(200)
    assert collected.frame["rows"].to_list() == [2]
    assert made.next_processing_time() is None


@settings(deadline=None, max_examples=80)
@given(PARTS, st.integers(1, 9))
def test_functions_see_whole_sessions(phases, parts, gap):
    def summary(frame, window):
        seen = frame["value"].sort().to_list()
        return pl.DataFrame({"seen": [seen], "since": [window.start], "who": [window.key[0]]})

    made = {"seen": pl.List(pl.Int64()), "since": pl.Int64(), "who": pl.String()}
    spec = window(specs.SessionWindow(gap_us=gap), apply=function(summary), made=made)
    in_order = [([step for step in steps if not isinstance(step, int)], number) for steps, number in parts]
    ran = phases(lambda: operator(spec), spec.keys)
    ran.run(in_order, JUNK)
    by_key, expected = {}, []
    for key, at, value in flat([step for steps, _ in in_order for step in steps]):
        by_key.setdefault(key, []).append((at, value))
    for key, own in by_key.items():
        sessions = []
        for at, value in sorted(own):
            if sessions and at <= sessions[-1][-1][0] + gap:
                sessions[-1].append((at, value))
            else:
                sessions.append([(at, value)])
        for each in sessions:
            start, end = each[0][0], each[-1][0] + gap
            expected.append((key, start, end, sorted(value for _, value in each), start, key))
    assert emitted(ran) == sorted(expected, key=repr)


def test_reduce_makes_one_row_of_all(start):
    def larger(left, right):
        return left if left["value"] >= right["value"] else right

    spec = window(specs.Tumbling(size_us=10), reduce=function(larger), made={"at": pl.Int64(), "value": pl.Int64()})
    made = operator(spec)
    collected = start(made)
    made.on_batch(pl.concat([rows(1, value=5), rows(2, value=9), rows(3, value=7), rows(4, key="b")]))
    made.on_watermark(9)
    assert sorted(collected.frame.rows()) == [("a", 0, 10, 2, 9), ("b", 0, 10, 4, 1)]


class Hundreds:
    """Windows of the value's hundred, a row of 0 in none, one of 7 in two."""

    def assign(self, frame, times):
        assert times.dtype == pl.Datetime("us")
        starts = [[] if value == 0 else [0, 10] if value == 7 else [0] for value in frame["value"]]
        starts = pl.Series("start", starts, dtype=pl.List(pl.Int64))
        return pl.DataFrame([starts, starts.list.eval(pl.element() + 100).alias("end")])


class OnNine:
    """Fires after a 9, and after every third row."""

    def on_rows(self, rows):
        return (rows["value"] == 9) | (rows["rows_in_window"] % 3 == 0)

    def on_time(self, windows):
        return None


def test_assigners_and_triggers_of_ones_own(start):
    own = specs.Trigger(kind="custom", function=function(OnNine()), purging=True)
    spec = window(specs.CustomWindow(function=function(Hundreds())), own)
    made = operator(spec)
    collected = start(made)
    made.on_batch(pl.concat([rows(1, value=value) for value in (0, 7, 9, 1, 1, 1, 2)]))
    assert sorted(collected.frame.rows()) == [("a", 0, 100, 1, 1), ("a", 0, 100, 2, 16), ("a", 0, 100, 3, 4)]
    made.on_watermark(MAX_WATERMARK)
    assert made.context.counters.state_rows == 0


@pytest.mark.parametrize("answer", [pl.Series([1, 2]), pl.Series([True]), True])
def test_a_trigger_that_answers_something_else_is_told(start, answer):
    class Odd:
        def on_rows(self, rows):
            return answer

    made = operator(window(specs.GlobalWindow(), specs.Trigger(kind="custom", function=function(Odd()))))
    start(made)
    with pytest.raises(UserError, match=r"P014 .*on_rows must give None, or a Boolean Series with 2 values"):
        made.on_batch(rows(1, 2))
