"""Asynchronous functions, one call per row, many under way at once: `map_async`.

Owns: the rows that came in and whose results have not been emitted yet. They are the operator's state: a snapshot
holds them, and after a restore they are called again.
Does not own: the event loop (`OperatorContext.coroutines`). Results come back on the slot's own thread.
Invariants: at most `capacity` calls are under way or wait to be emitted; no watermark overtakes a row; in order,
rows leave as they came.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from itertools import compress
from typing import Any

import polars as pl

from penstock.model import specs
from penstock.model.errors import PenstockError, UserError
from penstock.model.handles import Redistribution
from penstock.model.ids import CheckpointId
from penstock.operators.base import Call, Coroutines, Operator, OperatorContext, Output, Section, Snapshot
from penstock.operators.contexts import Context
from penstock.operators.failures import Failures
from penstock.operators.rows import RowBuilder
from penstock.operators.user_errors import place, user_code
from penstock.operators.user_functions import CONTEXT, ROW, parameter_names
from penstock.state.columns import to_objects

IN_FLIGHT = "in flight"
"""Name of the section."""

UNTIL_WOKEN_US = 3_600_000_000
"""Longer than any call: the slot is woken by the call's result."""

_WAITING, _DONE, _EMITTED = 0, 1, 2


class AsyncOperator(Operator):
    """Runs an asynchronous function."""

    def __init__(self, spec: specs.MapAsync, function: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        self._spec, self._function = spec, function
        self._groups: deque[_Group] = deque()
        self._taken = 0
        """Rows whose calls were started and whose results were not emitted."""
        self._news = False
        """Something has come back since rows were emitted last."""
        self._opened = False
        self._broken: BaseException | None = None

    def open(self, context: OperatorContext, output: Output) -> None:
        """Look at the function's parameters, and call its `open` if it has one."""
        super().open(context, output)
        name = self._spec.function.name
        self._rows = RowBuilder(self._spec.output, where=place(context), function=name)
        self._failures = Failures(self._spec.on_error, context, output)
        self._context = Context(
            context.subtask.index, context.parallelism, metrics=context.counters.user, now=context.clock.now_us
        )
        self._parameters = parameter_names(self._function, where=place(context))
        assert context.coroutines is not None
        self._coroutines: Coroutines = context.coroutines
        opening = getattr(self._function, "open", None)
        if opening is None:
            self._opened = True
        else:
            self._coroutines.start([(partial(opening, self._context), self._on_opened)])

    def _on_opened(self, result: Any) -> None:
        self._opened = self._news = True
        if isinstance(result, BaseException):
            self._broken = result

    # ------------------------------------------------------------ rows in

    def on_batch(self, frame: pl.DataFrame, port: int = 0) -> None:
        """Take the rows, and start as many calls as there is room for."""
        self._take(frame)
        self._start_calls()

    def ready_in_us(self) -> int:
        """More rows may come when all that came have been started."""
        return UNTIL_WOKEN_US if self._groups and self._groups[-1].unstarted else 0

    @property
    def in_flight(self) -> bool:
        """Rows are on their way."""
        return bool(self._groups)

    def _take(self, frame: pl.DataFrame) -> None:
        columns = [
            frame.rows(named=True) if name == ROW else to_objects(frame.get_column(name))
            for name in self._parameters
            if name != CONTEXT
        ]
        self._groups.append(_Group(frame, zip(*columns, strict=True) if columns else iter([()] * frame.height)))

    def _start_calls(self) -> None:
        if not self._opened or self._broken is not None:
            return
        calls: list[Call] = []
        for group in self._groups:
            while group.unstarted and self._taken < self._spec.capacity:
                index, arguments = group.next_call()
                calls.append((partial(self._attempts, arguments), partial(self._on_result, group, index)))
                self._taken += 1
        if calls:
            self._coroutines.start(calls)

    # ------------------------------------------------------------ one call, on the event loop

    async def _attempts(self, values: Sequence[Any]) -> Any:
        """The result of one row; tried again when the function raises or takes too long."""
        given = iter(values)
        arguments = [self._context if name == CONTEXT else next(given) for name in self._parameters]
        for attempt in range(self._spec.retries):
            try:
                return await self._once(arguments)
            except (Exception, SystemExit):
                await asyncio.sleep(self._spec.backoff_us * 2**attempt / 1_000_000)
        return await self._once(arguments)

    async def _once(self, arguments: Sequence[Any]) -> Any:
        seconds = self._spec.timeout_us / 1_000_000
        try:
            async with asyncio.timeout(seconds) as limit:
                return await self._function(*arguments)
        except TimeoutError as error:
            if limit.expired():
                raise TimeoutError(f"no result within {seconds:g} s") from error
            raise

    def _on_result(self, group: "_Group", index: int, result: Any) -> None:
        group.finish(index, result)
        self._news = True

    # ------------------------------------------------------------ rows out

    def next_processing_time(self) -> int | None:
        """At once, when results have come."""
        return 0 if self._news else None

    def on_processing_time(self, now_us: int) -> None:
        """Emit what may leave, and start what there is room for now."""
        self._news = False
        if self._broken is not None:
            with user_code(self.context, f"{self._spec.function.name}.open"):
                raise self._broken
        if self._spec.ordered:
            self._emit_in_order()
        else:
            self._emit_as_they_come()
        self._start_calls()

    def _emit_in_order(self) -> None:
        while self._groups:
            group = self._groups[0]
            self._emit(group, group.finished_in_order())
            if not group.is_over:
                return
            self._pass_first()

    def _emit_as_they_come(self) -> None:
        for group in self._groups:
            self._emit(group, group.finished())
        while self._groups and self._groups[0].is_over:
            self._pass_first()

    def _pass_first(self) -> None:
        watermark = self._groups.popleft().watermark
        if watermark is not None:
            self.output.pass_watermark(watermark)

    def _emit(self, group: "_Group", indices: Sequence[int]) -> None:
        if not indices:
            return
        made = self._rows.empty()
        label = self._spec.function.name
        for index in indices:
            try:
                with user_code(self.context, label, partial(self._shown, group, index)):
                    result = group.take(index)
                    if result is not None:
                        self._rows.keep(result, made)
            except PenstockError as failure:
                self._failures.take(failure, label, partial(group.row, index))
        self._taken -= len(indices)
        self._failures.flush()
        self.output.emit(self._rows.frame(made))

    def _shown(self, group: "_Group", index: int) -> Mapping[str, object]:
        row = group.row(index)
        return {name: value for name, value in row.items() if name in self._parameters or ROW in self._parameters}

    # ------------------------------------------------------------ time

    def on_watermark(self, watermark: int) -> int | None:
        """Behind the rows that came before it."""
        self._context.watermark = watermark
        if not self._groups:
            return watermark
        self._groups[-1].watermark = watermark
        return None

    # ------------------------------------------------------------ snapshot and restore

    def snapshot(self, checkpoint: CheckpointId) -> Snapshot:
        """All rows that have not left."""
        held = [(group.frame, group.kept()) for group in self._groups]

        def sections() -> Sequence[Section]:
            frames = [frame[kept] for frame, kept in held if kept]
            return [Section(IN_FLIGHT, Redistribution.LIST, pl.concat(frames, rechunk=True))] if frames else []

        return sections

    def restore(self, sections: Mapping[str, Sequence[pl.DataFrame]]) -> None:
        """Call again what was under way."""
        for frame in sections.get(IN_FLIGHT, ()):
            wanted = [name for name in self._parameters if name not in (CONTEXT, ROW)]
            missing = [name for name in wanted if name not in frame.columns]
            if missing:
                raise UserError(
                    "S005",
                    f"rows in flight have no column {', '.join(missing)}, which {self._spec.function.name} wants now",
                    where=place(self.context),
                    fix="let the old program finish its rows: stop it with a drained input, or give a new uid",
                )
            if frame.height:
                self._take(frame)
        self._start_calls()

    def close(self) -> None:
        """Call the function's `close`, if it has one; nobody waits for it."""
        closing = getattr(self._function, "close", None)
        if closing is not None and self._opened and self.context.coroutines is not None:
            self.context.coroutines.start([(closing, _forget)])


class _Group:
    """The rows of one batch that have not left, and the watermark that came after them."""

    def __init__(self, frame: pl.DataFrame, calls: Iterator[tuple[Any, ...]]) -> None:
        self.frame = frame
        self.watermark: int | None = None
        self._calls = calls
        self._started = 0
        self._left = frame.height
        self._results: dict[int, Any] = {}
        self._next = 0
        """In order: the first row that has not left."""
        self._state = bytearray(frame.height)

    def row(self, index: int) -> Mapping[str, object]:
        return self.frame.row(index, named=True)

    @property
    def unstarted(self) -> bool:
        return self._started < self.frame.height

    @property
    def is_over(self) -> bool:
        return not self._left

    def next_call(self) -> tuple[int, tuple[Any, ...]]:
        index = self._started
        self._started += 1
        return index, next(self._calls)

    def finish(self, index: int, result: Any) -> None:
        self._results[index] = result
        self._state[index] = _DONE

    def finished_in_order(self) -> Sequence[int]:
        """Rows that are done, up to the first that is not."""
        first = self._next
        waiting = self._state.find(_WAITING, first)
        self._next = len(self._state) if waiting < 0 else waiting
        return range(first, self._next)

    def finished(self) -> Sequence[int]:
        """Rows that are done, in the order in which they were."""
        return list(self._results)

    def take(self, index: int) -> Any:
        """The result, as it leaves; an exception is raised."""
        self._state[index] = _EMITTED
        self._left -= 1
        result = self._results.pop(index)
        if isinstance(result, BaseException):
            raise result
        return result

    def kept(self) -> list[int]:
        """Rows that a snapshot holds."""
        return list(compress(range(len(self._state)), (state != _EMITTED for state in self._state)))


def _forget(_: Any) -> None:
    pass
