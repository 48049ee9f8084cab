"""When windows fire: after which rows of a batch, and at which times. All windows at once.

A trigger that counts or compares says after which row its window fires, so that results do not depend on how rows
are cut into batches. A window that is complete fires by itself (`at_end`) when rows came since it fired last.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl

from penstock.model import specs
from penstock.model.errors import UserError
from penstock.operators.base import OperatorContext
from penstock.operators.expressions import Column
from penstock.operators.user_errors import place, user_code
from penstock.operators.window_cells import NO_TIMER, ROW_TIME, Cells, Mask, Numbers, ranks


class WindowTrigger:
    """Fires complete windows, and nothing before; the default."""

    at_end = True
    """A window that is complete fires when it has changed."""
    clock = False
    """Times are those of the clock, not of the watermark."""

    def on_rows(self, cells: Cells, numbers: Numbers, rows: pl.DataFrame) -> Mask | None:
        """After which of the rows their window fires; None: after none. `numbers` says which window is whose."""
        return None

    def on_time(self, cells: Cells, time: int) -> Mask | None:
        """Which windows fire though they are not complete, when it is `time`."""
        return None

    def next_time(self, cells: Cells) -> int | None:
        """When a window wants to fire, for triggers by the clock."""
        return None


class ByClock(WindowTrigger):
    """Fires when the clock passes a window's end."""

    at_end = False
    clock = True

    def on_time(self, cells: Cells, time: int) -> Mask | None:
        """Windows that have changed and have ended by the clock."""
        return (cells.ends - 1 <= time) & (cells.fresh > 0)

    def next_time(self, cells: Cells) -> int | None:
        """The first end of a window that has changed."""
        ends = cells.ends[cells.fresh > 0]
        return int(ends.min()) if len(ends) else None


class EveryRows(WindowTrigger):
    """Fires after each `count` rows of a window."""

    at_end = False

    def __init__(self, count: int) -> None:
        self._count = count

    def on_rows(self, cells: Cells, numbers: Numbers, rows: pl.DataFrame) -> Mask | None:
        """Each row that completes a number of rows. Sessions that join may have more than that at once."""
        before = np.minimum(cells.fresh, self._count - 1)
        fires: Mask = (before[numbers] + ranks(numbers) + 1) % self._count == 0
        return fires


class EveryInterval(WindowTrigger):
    """Fires early, whenever time passes a multiple of the interval; late rows fire with each change."""

    def __init__(self, interval: int, *, now: Callable[[], int] | None) -> None:
        self._interval, self._now = interval, now
        self.clock = now is not None

    def on_rows(self, cells: Cells, numbers: Numbers, rows: pl.DataFrame) -> Mask | None:
        """Rows fire nothing; the first ones of a window set its timer to the next multiple."""
        if (cells.timer[numbers] == NO_TIMER).any():
            times = np.full(len(numbers), self._now()) if self._now else rows.get_column(ROW_TIME).to_numpy()
            first = _first_by_window(numbers, np.ones(len(numbers), np.bool_), len(cells))
            new = (cells.timer == NO_TIMER) & (first < len(numbers))
            cells.timer[new] = (times[first[new]] // self._interval + 1) * self._interval
        return None

    def on_time(self, cells: Cells, time: int) -> Mask | None:
        """Windows that have changed since the last multiple that was passed."""
        reached = min((time + 1) // self._interval * self._interval, NO_TIMER - self._interval - 1)
        passed = cells.timer <= reached
        cells.timer[passed] = reached + self._interval
        return passed & (cells.fresh > 0)

    def next_time(self, cells: Cells) -> int | None:
        """The next multiple, while there is something to say."""
        timers = cells.timer[cells.fresh > 0]
        return int(timers.min()) if len(timers) else None


class OnDelta(WindowTrigger):
    """Fires when a value is further than a threshold from where it was when the window fired last."""

    at_end = False

    def __init__(self, value: Column, threshold: float) -> None:
        self._value, self._threshold = value, threshold

    def on_rows(self, cells: Cells, numbers: Numbers, rows: pl.DataFrame) -> Mask | None:
        """One round for each time that a window fires; a round looks at all windows."""
        values = rows.select(self._value.expression.cast(pl.Float64)).to_series().fill_null(np.nan).to_numpy()
        fires = np.zeros(len(values), np.bool_)
        place_of = np.arange(len(values))
        reached = np.zeros(len(cells), np.int64)
        first = _first_by_window(numbers, ~np.isnan(values), len(cells))
        new = np.isnan(cells.anchor) & (first < len(values))
        cells.anchor[new] = values[first[new]]
        while True:
            far = np.abs(values - cells.anchor[numbers]) > self._threshold
            hits = _first_by_window(numbers, far & (place_of >= reached[numbers]), len(cells))
            found = hits < len(values)
            if not found.any():
                return fires
            fires[hits[found]] = True
            cells.anchor[found] = values[hits[found]]
            reached[found] = hits[found] + 1


def _first_by_window(numbers: Numbers, mask: Mask, count: int) -> Numbers:
    """For each window, the first of its rows that the mask has; the number of rows where there is none."""
    first = np.full(count, len(numbers), np.int64)
    rows = np.flatnonzero(mask)[::-1]
    first[numbers[rows]] = rows  # of several rows of a window the last one written stays: the first one
    return first


class Custom(WindowTrigger):
    """A user's trigger."""

    at_end = False

    def __init__(self, trigger: Any, name: str, keys: list[str], context: OperatorContext) -> None:
        self._trigger, self._name, self._keys, self._context = trigger, name, keys, context
        self.clock = bool(getattr(trigger, "clock", False))

    def on_rows(self, cells: Cells, numbers: Numbers, rows: pl.DataFrame) -> Mask | None:
        """Ask with all rows of the batch."""
        window = [
            _time("window_start", cells.starts[numbers]),
            _time("window_end", cells.ends[numbers]),
            pl.Series("rows_in_window", cells.fresh[numbers] + ranks(numbers) + 1),
        ]
        taken = {column.name for column in window}
        shown = rows.select(name for name in rows.columns if not name.startswith("__") and name not in taken)
        return self._asked("on_rows", shown.hstack(window))

    def on_time(self, cells: Cells, time: int) -> Mask | None:
        """Ask with all windows."""
        if cells.frame is None or not len(cells):
            return None
        window = [
            _time("window_start", cells.starts),
            _time("window_end", cells.ends),
            pl.Series("rows_in_window", cells.fresh),
        ]
        now = pl.Series("now", np.full(len(cells), time)).cast(pl.Datetime("us"))
        return self._asked("on_time", cells.frame[self._keys].hstack([*window, now]))

    def _asked(self, method: str, frame: pl.DataFrame) -> Mask | None:
        with user_code(self._context, f"{self._name}.{method}"):
            answer = getattr(self._trigger, method)(frame)
        if answer is None:
            return None
        if not isinstance(answer, pl.Series) or answer.dtype != pl.Boolean or len(answer) != frame.height:
            raise UserError(
                "P014",
                f"{self._name}.{method} must give None, or a Boolean Series with {frame.height} values; got {answer}",
                where=place(self._context),
                fix='return an expression over the frame, such as frame["rows_in_window"] >= 10',
            )
        return answer.fill_null(False).to_numpy()


def _time(name: str, micros: Numbers) -> pl.Series:
    return pl.Series(name, micros).cast(pl.Datetime("us"))


def make_trigger(spec: specs.Trigger, keys: list[str], function: Any, context: OperatorContext) -> WindowTrigger:
    """The trigger that runs; `function` is the user's own, if it is one."""
    match spec:
        case specs.Trigger(kind="processing_time"):
            return ByClock()
        case specs.Trigger(kind="count", count=count):
            return EveryRows(count)
        case specs.Trigger(kind="every", interval_us=interval, clock=clock):
            return EveryInterval(interval, now=context.clock.now_us if clock else None)
        case specs.Trigger(kind="delta", input=specs.Expression() as value, threshold=threshold):
            return OnDelta(Column.of(value), threshold)
        case specs.Trigger(kind="custom", function=specs.Function(name=name)):
            return Custom(function, name, keys, context)
    return WindowTrigger()
