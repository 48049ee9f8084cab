"""Sessions that fire more than once, against a model that takes one row at a time."""

import cloudpickle
import numpy as np
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model import schemas, specs
from penstock.model.changes import CHANGE, DELETE, INSERT, UPDATE
from penstock.model.clocks import MAX_WATERMARK, MIN_WATERMARK
from penstock.operators.buffered_windows import BufferedWindows
from penstock.operators.session_numbers import growing

INPUT = pl.Schema({"key": pl.String(), "at": pl.Int64(), "value": pl.Int64()})
GAP = 6
LATENESS = 9
JUNK = pl.DataFrame([("a", 5, 5)], schema=INPUT, orient="row")


def expression(expr):
    return specs.Expression(name=expr.meta.output_name(), text=str(expr), polars=expr.meta.serialize())


VALUE = expression(pl.col("value"))
AGGREGATES = (
    specs.Aggregate(name="rows", function="count", output_type="Int64"),
    specs.Aggregate(name="total", function="sum", input=VALUE, output_type="Int64"),
)


def sessions(trigger, evictor=None, *, keyed=True, lateness=0):
    updating = not trigger.purging
    columns = {CHANGE: pl.Int8()} if updating else {}
    columns |= {"key": pl.String()} if keyed else {}
    columns |= {"window_start": pl.Int64(), "window_end": pl.Int64(), "rows": pl.Int64(), "total": pl.Int64()}
    return specs.BufferedWindow(
        keys=("key",) if keyed else (),
        assigner=specs.SessionWindow(gap_us=GAP),
        trigger=trigger,
        evictor=evictor,
        aggregates=AGGREGATES,
        event_time=specs.EventTime(column="at"),
        allowed_lateness_us=lateness,
        late_to="late",
        updating=updating,
        output=schemas.fields(columns),
    )


def operator(spec):
    return BufferedWindows(spec, lambda function: cloudpickle.loads(function.pickled))


class Session:
    def __init__(self, start, end):
        self.start, self.end, self.rows, self.fresh = start, end, [], 0
        self.timer = self.anchor = None
        self.shown = {}
        """Bounds -> results that have been emitted, and stand."""


class Model:
    """Every row is looked at by itself: it joins the sessions it touches, then their trigger is asked."""

    def __init__(self, spec):
        self.spec, self.trigger = spec, spec.trigger
        self.opened, self.reached = {}, MIN_WATERMARK
        self.standing, self.fired, self.late, self.came = {}, [], [], 0

    def row(self, row):
        key, at, value = row
        own = (key,) if self.spec.keys else ()
        opened = self.opened.setdefault(own, [])
        met = sorted((s for s in opened if s.start <= at + GAP and at <= s.end), key=lambda each: each.start)
        whole = Session(min([at, *(s.start for s in met)]), max([at + GAP, *(s.end for s in met)]))
        if self._is_gone(whole):
            self.late.append(row)
            return
        for part in met:
            whole.rows += part.rows
            whole.fresh += part.fresh
            whole.shown |= part.shown
            whole.timer = min((t for t in (whole.timer, part.timer) if t is not None), default=None)
            whole.anchor = part.anchor if whole.anchor is None else whole.anchor
        self.opened[own] = [each for each in opened if each not in met] + [whole]
        self.came += 1
        whole.rows = [*sorted(whole.rows), (self.came, value)]
        whole.fresh += 1
        if self._fires(whole, at, value):
            self._fire(own, whole)

    def _fires(self, session, at, value):
        match self.trigger.kind:
            case "count":
                return session.fresh >= self.trigger.count
            case "delta":
                session.anchor = value if session.anchor is None else session.anchor
                if abs(value - session.anchor) > self.trigger.threshold:
                    session.anchor = value
                    return True
            case "every" if session.timer is None:
                session.timer = (at // self.trigger.interval_us + 1) * self.trigger.interval_us
        return False

    def _fire(self, own, session):
        kept = session.rows
        if self.spec.evictor is not None:
            kept = kept[-self.spec.evictor.count :]
        result = (len(kept), sum(value for _, value in kept))
        self.fired.append((*own, session.start, session.end, *result))
        for bounds in session.shown:
            del self.standing[(*own, *bounds)]
        session.shown = {(session.start, session.end): result}
        self.standing[(*own, session.start, session.end)] = result
        session.rows = [] if self.trigger.purging else kept
        session.fresh = 0

    def _is_gone(self, session):
        return session.end - 1 + self.spec.allowed_lateness_us <= self.reached

    def batch_is_over(self):
        """Late changes of complete sessions are told once for a batch."""
        self._fire_complete()

    def _fire_complete(self):
        if self.trigger.kind in ("event_time", "every"):
            for own, opened in self.opened.items():
                for session in opened:
                    if session.end - 1 <= self.reached and session.fresh:
                        self._fire(own, session)

    def time(self, watermark):
        self.reached = max(self.reached, watermark)
        for own, opened in self.opened.items():
            for session in opened:
                passed = (self.reached + 1) // max(1, self.trigger.interval_us) * self.trigger.interval_us
                if session.timer is not None and session.timer <= passed:
                    session.timer = passed + self.trigger.interval_us
                    if session.fresh:
                        self._fire(own, session)
        self._fire_complete()
        for own, opened in self.opened.items():
            self.opened[own] = [session for session in opened if not self._is_gone(session)]


ROWS = st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 60), st.integers(-9, 9))
BATCHES = st.lists(ROWS, min_size=1, max_size=12).map(lambda rows: pl.DataFrame(rows, schema=INPUT, orient="row"))
STEPS = st.lists(BATCHES | st.integers(0, 70), max_size=8)
PARTS = st.lists(st.tuples(STEPS, st.sampled_from([1, 3])), min_size=1, max_size=3)
TRIGGERS = st.one_of(
    st.builds(specs.Trigger, kind=st.just("count"), count=st.integers(1, 4), purging=st.booleans()),
    st.builds(specs.Trigger, kind=st.just("every"), interval_us=st.integers(2, 20), purging=st.booleans()),
    st.builds(specs.Trigger, kind=st.just("delta"), input=st.just(VALUE), threshold=st.sampled_from([0.0, 3.0])),
    st.just(specs.Trigger()),
)
EVICTORS = st.none() | st.builds(specs.Evictor, kind=st.just("count"), count=st.integers(1, 4))


@settings(deadline=None, max_examples=120)
@given(PARTS, TRIGGERS, EVICTORS, st.booleans(), st.sampled_from([0, LATENESS]))
def test_sessions_fire_as_if_rows_came_one_at_a_time(phases, changed_table, parts, trigger, evictor, keyed, lateness):
    spec = sessions(trigger, evictor, keyed=keyed, lateness=lateness)
    ran = phases(lambda: operator(spec), spec.keys)
    ran.run(parts, JUNK)
    model = Model(spec)
    for step in [*(step for steps, _ in parts for step in steps), MAX_WATERMARK]:
        if isinstance(step, int):
            model.time(step)
            continue
        for row in step.rows():
            model.row(row)
        model.batch_is_over()
    if trigger.purging:
        found = [row for frame in ran.frames for row in frame.rows()]
        assert sorted(found, key=repr) == sorted(model.fired, key=repr)
    else:
        table = changed_table(ran.frames, [*spec.keys, "window_start", "window_end"])
        assert table == model.standing
    late = [row for frame in ran.sides.get("late", []) for row in frame.rows()]
    assert sorted(late, key=repr) == sorted(model.late, key=repr)


def rows(*times):
    return pl.DataFrame([("a", at, 1) for at in times], schema=INPUT, orient="row")


def test_a_result_stands_until_the_session_fires_with_other_bounds(start):
    made = operator(sessions(specs.Trigger(kind="count", count=2)))
    collected = start(made)
    made.on_batch(rows(0, 1, 19, 20))
    assert collected.frame.rows() == [(INSERT, "a", 0, 7, 2, 2), (INSERT, "a", 19, 26, 2, 2)]
    collected.frames.clear()
    made.on_batch(rows(7, 13))  # the second of them joins all
    assert collected.frame.rows() == [
        (DELETE, "a", 0, 7, 2, 2),
        (DELETE, "a", 19, 26, 2, 2),
        (INSERT, "a", 0, 26, 6, 6),
    ]
    collected.frames.clear()
    made.on_batch(rows(2, 3))
    assert collected.frame.rows() == [(UPDATE, "a", 0, 26, 8, 8)]


def test_rows_may_be_taken_together_when_they_make_one_session_all_the_way():
    def alike(*times, held=0, gone=MIN_WATERMARK):
        frame = rows(*times)
        starts = frame["at"].to_numpy()
        return growing(frame, ["key"], held, starts, starts + GAP, gone) is not None

    assert alike(0, 4, 8, 2)
    assert alike(0, 4, 20, 22)
    assert not alike(0, 10, 5)  # two sessions, until the third row came
    assert not alike(0, 12, 6, 7, held=2)
    assert alike(0, 12, 6, held=2)  # a single row, whatever it joins
    assert not alike(0, 4, gone=5)  # the first would have been late
    assert alike(0, 4, gone=np.iinfo(np.int64).max)
