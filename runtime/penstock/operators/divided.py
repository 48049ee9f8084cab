"""A keyed operator whose key groups change while it runs: parts by ranges of groups, some of which are on their way.

A part is the operator itself, for its own groups. Groups that stay go on in the part that they are in. Groups that
are handed over become a part when their state is there; until then rows and watermarks for them are held, in their
order, while all other parts work on. Event time behind the operator is that of the part that is least far, so what
a part that arrives late still gives out is not late for anybody.

Owns: which groups are where, and what waits for those that are not there. Does not own: how state comes
(`taskmanager.moving`).
Invariants: each group of the subtask is in exactly one part; a part that arrives is told what was held for it before
anything newer; no snapshot is taken while a part is on its way.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import polars as pl

from penstock.model.clocks import MIN_WATERMARK
from penstock.model.ids import CheckpointId
from penstock.operators import side_by_side
from penstock.operators.base import AnySection, Operator, OperatorContext, Output, Snapshot
from penstock.state.key_groups import key_groups
from penstock.state.rocks import RestoredFiles

Sections = Mapping[str, Sequence[pl.DataFrame]]
Held = tuple[int, pl.DataFrame] | int
"""Rows of a port, or a watermark."""


@dataclass(slots=True)
class Part:
    """Some of the groups."""

    groups: range
    operator: Operator | None = None
    """None: its state is on its way."""
    adopted: bool = False
    """The operator ran before there were parts."""
    begun: int = MIN_WATERMARK
    """How far event time was when it was first waited for."""
    passed: int = MIN_WATERMARK
    held: list[Held] = field(default_factory=list)


class Divided(Operator):
    """Parts of one operator."""

    def __init__(self, make: Callable[[], Operator], spec: object, keys: Mapping[int, Sequence[str]]) -> None:
        """`keys` of each port."""
        self._make, self._spec, self._keys = make, spec, keys
        self._parts: list[Part] = []
        self._level = MIN_WATERMARK
        self._watermark = MIN_WATERMARK
        self._folders = 0
        self.timeless_ports = make().timeless_ports

    def open(self, context: OperatorContext, output: Output) -> None:
        """Without any part."""
        super().open(context, output)

    # ------------------------------------------------------------ groups come and go

    def adopt(self, operator: Operator, *, watermark: int, passed: int) -> None:
        """The operator that has run until now is the first part."""
        self._watermark, self._level = watermark, passed
        self._parts = [Part(operator.context.groups, operator, adopted=True, passed=passed)]

    @property
    def parts(self) -> Sequence[Part]:
        """All of them."""
        return tuple(self._parts)

    @property
    def complete(self) -> bool:
        """Nothing is on its way."""
        return all(part.operator is not None for part in self._parts)

    def keep(self, groups: range) -> tuple[list[range], list[Operator]]:
        """Only these stay. Returns what has to be made anew of parts that lose some, and operators of no use now."""
        assert self.complete, "one change at a time"
        kept, anew, useless = [], [], []
        for part in self._parts:
            assert part.operator is not None
            stays = range(max(part.groups.start, groups.start), min(part.groups.stop, groups.stop))
            if len(stays) == len(part.groups):
                kept.append(part)
                continue
            if stays and part.operator.retain(stays):
                part.groups = stays
                kept.append(part)
                continue
            useless.append(part.operator)
            if stays:
                anew.append(stays)
        self._parts = kept
        return anew, useless

    def expect(self, groups: range) -> None:
        """State of these is on its way; event time behind the operator begins anew, and waits for it."""
        self._parts.append(Part(groups, begun=self._watermark))
        self._level = MIN_WATERMARK

    def arrive(self, groups: range, sections: Sections, files: Sequence[RestoredFiles]) -> None:
        """It is there: catch up with what was held."""
        part = next(each for each in self._parts if each.groups == groups and each.operator is None)
        held, part.held = part.held, []
        part.operator = operator = self._restored(part, sections, files)
        if part.begun != MIN_WATERMARK:
            self._tell_time(part, part.begun)
        for element in held:
            if isinstance(element, int):
                self._tell_time(part, element)
            else:
                operator.on_batch(element[1], element[0])
        self._rise()

    def _restored(self, part: Part, sections: Sections, files: Sequence[RestoredFiles]) -> Operator:
        folder = self.context.state.folder
        if folder is not None:
            self._folders += 1
            folder = folder.with_name(f"{folder.name}-part-{part.groups.start}-{self._folders}")
        context = replace(self.context, part=part.groups, state=replace(self.context.state, folder=folder))
        operator = self._make()
        operator.open(context, _PartOutput(self, part))
        if files:
            operator.restore_files(files)
        if sections:
            operator = side_by_side.restored(operator, self._spec, self._make, sections)
        operator.on_restored()
        return operator

    # ------------------------------------------------------------ work

    def on_batch(self, frame: pl.DataFrame, port: int = 0) -> None:
        """Rows to their parts, or held."""
        if len(self._parts) == 1:
            self._give(self._parts[0], frame, port)
            return
        groups = pl.Series(key_groups(frame, self._keys[port], self.context.max_parallelism))
        for part in self._parts:
            rows = frame.filter(groups.is_between(part.groups.start, part.groups.stop - 1))
            if rows.height:
                self._give(part, rows, port)

    def _give(self, part: Part, frame: pl.DataFrame, port: int) -> None:
        if part.operator is None:
            part.held.append((port, frame))
        else:
            part.operator.on_batch(frame, port)

    def on_watermark(self, watermark: int) -> int | None:
        """To all; what the last of them has come to is passed on."""
        for part in self._parts:
            if part.operator is not None:
                self._tell_time(part, watermark)
            elif part.held and isinstance(part.held[-1], int):
                part.held[-1] = watermark
            else:
                part.held.append(watermark)
        self._watermark = watermark
        self._rise()
        return None

    def _tell_time(self, part: Part, watermark: int) -> None:
        assert part.operator is not None
        passed = part.operator.on_watermark(watermark)
        if passed is not None:
            part.passed = max(part.passed, passed)

    def on_passed(self, part: Part, watermark: int) -> None:
        """A part passes on what it has held back."""
        part.passed = max(part.passed, watermark)
        self._rise()

    def adopted_passed(self, watermark: int) -> None:
        """The operator that was there before does so."""
        for part in self._parts:
            if part.adopted:
                self.on_passed(part, watermark)

    def _rise(self) -> None:
        level = min((part.passed for part in self._parts), default=MIN_WATERMARK)
        if level > self._level:
            self._level = level
            self.output.pass_watermark(level)

    @property
    def _running(self) -> list[Operator]:
        return [part.operator for part in self._parts if part.operator is not None]

    @property
    def in_flight(self) -> bool:
        """The task does not end while something is on its way."""
        return not self.complete or any(operator.in_flight for operator in self._running)

    def ready_in_us(self) -> int:
        """As the slowest part says."""
        return max((operator.ready_in_us() for operator in self._running), default=0)

    def on_processing_time(self, now_us: int) -> None:
        """To those for which it has come."""
        for operator in self._running:
            due = operator.next_processing_time()
            if due is not None and due <= now_us:
                operator.on_processing_time(now_us)

    def next_processing_time(self) -> int | None:
        """The earliest of all."""
        times = [time for operator in self._running if (time := operator.next_processing_time()) is not None]
        return min(times, default=None)

    def on_barrier(self) -> None:
        """To all."""
        for operator in self._running:
            operator.on_barrier()

    def snapshot(self, checkpoint: CheckpointId) -> Snapshot:
        """Of all parts: whoever restores it puts them together."""
        assert self.complete, "a checkpoint waits for groups that are on their way"
        frozen = [operator.snapshot(checkpoint) for operator in self._running]

        def sections() -> Sequence[AnySection]:
            return [section for part in frozen for section in part()]

        return sections

    def on_committed(self, checkpoint: CheckpointId) -> None:
        """To all."""
        for operator in self._running:
            operator.on_committed(checkpoint)

    def on_end(self) -> None:
        """To all."""
        for operator in self._running:
            operator.on_end()

    def close(self) -> None:
        """Of all."""
        for operator in self._running:
            operator.close()


class _PartOutput(Output):
    """Rows of a part are those of the whole; its time is one of several."""

    def __init__(self, whole: Divided, part: Part) -> None:
        self._whole, self._part = whole, part

    def emit(self, frame: pl.DataFrame) -> None:
        """As it is."""
        self._whole.output.emit(frame)

    def emit_side(self, name: str, frame: pl.DataFrame) -> None:
        """As it is."""
        self._whole.output.emit_side(name, frame)

    def pass_watermark(self, time: int) -> None:
        """The others may not be there yet."""
        self._whole.on_passed(self._part, time)
