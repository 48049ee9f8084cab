"""Windows of subtasks that had fired less or more far, now in one: each goes on by itself until they are level.

A barrier that overtakes finds subtasks at different event times. Restored at another parallelism, a subtask may own
key groups of several of them. What is late for one, and has been fired by it, is in time for another, whose rows may
still be among those that were in flight. So each part runs as the operator it was, with its own key groups, and rows
find theirs by key; as soon as event time has come equally far in all, one operator takes over what they hold.

Only operators that fire windows need this. Others may as well begin at the earliest of the times: what they have
given out, they have forgotten or marked.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import polars as pl

from penstock.model import specs
from penstock.model.clocks import MIN_WATERMARK
from penstock.model.ids import CheckpointId
from penstock.operators.base import AnySection, ChunkSection, Operator, OperatorContext, Output, Section, Snapshot
from penstock.operators.window_progress import restored_progress
from penstock.state.key_groups import KEY_GROUP, key_groups

Sections = Mapping[str, Sequence[pl.DataFrame]]

PROGRESS = "progress"


def restored(operator: Operator, spec: object, make: Callable[[], Operator], sections: Sections) -> Operator:
    """`operator`, which is open, with its state; or parts of it, if its state comes from different times."""
    context, output = operator.context, operator.output
    keys = _keys_by_port(spec)
    found = restored_progress(sections.get(PROGRESS, ()), context.groups) if keys is not None else set()
    times = dict(sorted(found, key=lambda part: part[0].start))
    if keys is None or len(set(times.values())) <= 1:
        operator.restore(sections)
        return operator
    by_clock = getattr(spec, "event_time", True) is None
    side_by_side = SideBySide(operator, make, keys, times, by_clock=by_clock)
    side_by_side.open(context, output)
    side_by_side.restore(sections)
    return side_by_side


def _keys_by_port(spec: object) -> Sequence[Sequence[str]] | None:
    match spec:
        case specs.WindowAggregate() | specs.SessionAggregate() | specs.BufferedWindow():
            return (spec.keys,)
        case specs.TopN(within=within) if within is not None:
            return (spec.keys,)
        case specs.CoGroup(join=join) | (specs.Join(match=specs.WindowMatch()) as join):
            return join.left_on, join.right_on
    return None


class SideBySide(Operator):
    """Parts of an operator, and the one that takes over from them."""

    def __init__(
        self,
        whole: Operator,
        make: Callable[[], Operator],
        keys: Sequence[Sequence[str]],
        times: Mapping[range, int],
        *,
        by_clock: bool,
    ) -> None:
        self.timeless_ports = whole.timeless_ports
        self._whole, self._keys, self._by_clock = whole, keys, by_clock
        self._parts = {groups: make() for groups in times}
        """Empty when `whole` has taken over."""
        self._times = dict(times)
        self._passed_on = dict.fromkeys(times, MIN_WATERMARK)
        """The watermark that each part has passed on."""
        self._level = MIN_WATERMARK

    def open(self, context: OperatorContext, output: Output) -> None:
        """The whole is open already."""
        super().open(context, output)
        for groups, part in self._parts.items():
            own = range(max(groups.start, context.groups.start), min(groups.stop, context.groups.stop))
            folder = context.state.folder and context.state.folder.with_name(
                f"{context.state.folder.name}-{own.start}"
            )
            home = replace(context.state, folder=folder)
            part.open(replace(context, part=own, state=home), _PartOutput(output, partial(self._on_passed, groups)))

    def restore(self, sections: Sections) -> None:
        """To each part what is its own."""
        for groups, part in self._parts.items():
            time = self._times[groups]
            part.restore({name: [_of(frame, groups, time) for frame in frames] for name, frames in sections.items()})

    def on_restored(self) -> None:
        """Parts are complete."""
        for part in self._parts.values():
            part.on_restored()

    @property
    def _running(self) -> Sequence[Operator]:
        return tuple(self._parts.values()) or (self._whole,)

    def on_batch(self, frame: pl.DataFrame, port: int = 0) -> None:
        """Rows by key."""
        if not self._parts:
            self._whole.on_batch(frame, port)
            return
        groups = pl.Series(key_groups(frame, self._keys[port], self.context.max_parallelism))
        for own, part in self._parts.items():
            rows = frame.filter(groups.is_between(own.start, own.stop - 1))
            if rows.height:
                part.on_batch(rows, port)

    def on_watermark(self, watermark: int) -> int | None:
        """Those that are behind catch up; what all have passed on is passed on."""
        if not self._parts:
            return self._whole.on_watermark(watermark)
        for groups, part in self._parts.items():
            passed = part.on_watermark(watermark)
            if passed is not None:
                self._passed_on[groups] = passed
        if not self._by_clock:
            self._reach(watermark)
        return self._risen()

    def _on_passed(self, groups: range, watermark: int) -> None:
        """A part passes on what it has held back."""
        self._passed_on[groups] = watermark
        risen = self._risen()
        if risen is not None:
            self.output.pass_watermark(risen)

    def _risen(self) -> int | None:
        level = min(self._passed_on.values())
        if level <= self._level:
            return None
        self._level = level
        return level

    @property
    def in_flight(self) -> bool:
        """Of any."""
        return any(operator.in_flight for operator in self._running)

    def on_processing_time(self, now_us: int) -> None:
        """To all."""
        for operator in self._running:
            operator.on_processing_time(now_us)
        if self._by_clock:
            self._reach(now_us - 1)

    def next_processing_time(self) -> int | None:
        """The earliest of all; by the clock also when they are level."""
        times = [time for operator in self._running if (time := operator.next_processing_time()) is not None]
        if self._parts and self._by_clock:
            times.append(max(self._times.values()) + 1)
        return min(times, default=None)

    def on_barrier(self) -> None:
        """To all."""
        for operator in self._running:
            operator.on_barrier()

    def on_end(self) -> None:
        """To all."""
        for operator in self._running:
            operator.on_end()

    def snapshot(self, checkpoint: CheckpointId) -> Snapshot:
        """Of all: the next restore puts parts together, or runs them side by side again."""
        frozen = [operator.snapshot(checkpoint) for operator in self._running]

        def sections() -> Sequence[AnySection]:
            return [section for part in frozen for section in part()]

        return sections

    def close(self) -> None:
        """Of all."""
        for operator in (*self._parts.values(), self._whole):
            operator.close()

    def _reach(self, time: int) -> None:
        if not self._parts:
            return
        self._times = {groups: max(before, time) for groups, before in self._times.items()}
        if len(set(self._times.values())) == 1:
            self._put_together()

    def _put_together(self) -> None:
        self.on_barrier()
        sections: dict[str, list[pl.DataFrame]] = {}
        for section in self.snapshot(CheckpointId(0))():
            assert isinstance(section, Section | ChunkSection), "state of windows is tables"
            frame = section.frame() if callable(section.frame) else section.frame
            assert frame is not None, "blocks can be read again"
            sections.setdefault(section.state, []).append(frame)
        for part in self._parts.values():
            part.close()
        self._parts = {}
        self._whole.restore(sections)
        self._whole.on_restored()


class _PartOutput(Output):
    """Rows of a part are those of the whole; its time is one of several."""

    def __init__(self, output: Output, pass_watermark: Callable[[int], None]) -> None:
        self._output, self._pass_watermark = output, pass_watermark

    def emit(self, frame: pl.DataFrame) -> None:
        """As it is."""
        self._output.emit(frame)

    def emit_side(self, name: str, frame: pl.DataFrame) -> None:
        """As it is."""
        self._output.emit_side(name, frame)

    def pass_watermark(self, time: int) -> None:
        """The others may not be there yet."""
        self._pass_watermark(time)


def _of(frame: pl.DataFrame, groups: range, time: int) -> pl.DataFrame:
    """Rows of these key groups; of progress, what is said of them."""
    if KEY_GROUP in frame.columns:
        return frame.filter(pl.col(KEY_GROUP).is_between(groups.start, groups.stop - 1))
    return frame.filter(first_group=groups.start, end_group=groups.stop, watermark=time)
