"""Keyed operators whose state may be larger than memory: in parts, by ranges of key groups.

Owns: where the state of one operator is (all of it in a running operator, the front; or in blocks, by range), what
waits for parts that are not running, and the event time that all parts have come to. Does not own what the state
means: a part is the operator itself, of fewer keys, made anew, restored from blocks and frozen into blocks by the
`restore` and `snapshot` that it has anyway. So what is put away is what a checkpoint holds, at any parallelism and on
any backend, and a block that did not change is named by the next checkpoints, not written again.

As long as the state fits, the front has all of it and nothing else happens. Then there are two kinds of operators:

- One that *merges* (panes of windows) may hold two states of a key apart, and put them together when it restores. It
  goes on with an empty front. A front that is full, or large at a barrier, becomes blocks, blindly, and blocks are
  read when time says that some of them are due: range by range, so that never more than one range is in memory.
- To any other, a row means something only beside the state of its key. Rows and watermarks wait until there are many,
  a moment has passed or a barrier comes; then each range is restored, is told in their order what has waited, and is
  frozen again. What they cause leaves before the watermark behind them is passed on.

Invariants: blocks of a range are in the order of their age. All parts have come to the same event time, that of the
gauge, an operator without rows. An operator that does not merge has rows either in its front or in blocks.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
import polars as pl

from penstock.model.clocks import MAX_WATERMARK, MIN_WATERMARK
from penstock.model.errors import UserError
from penstock.model.handles import Redistribution
from penstock.model.ids import CheckpointId
from penstock.operators.base import (
    AnySection,
    ChunkSection,
    Counters,
    Operator,
    OperatorContext,
    Output,
    Section,
    Snapshot,
)
from penstock.operators.user_errors import place
from penstock.state.blocks import Block, BlockHome, cut, cut_range
from penstock.state.key_groups import KEY_GROUP, key_groups
from penstock.state.rocks import Database

Frames = dict[str, list[pl.DataFrame]]
Element = tuple[int, pl.DataFrame] | int
"""Rows of a port, or a watermark."""

_RANGES = 64
"""Of the key groups of a subtask. One of them is in memory at a time, with what its operator makes of it."""

_SHARE = {"rocksdb": 4, "auto": 2}
"""Of the budget, for state in memory: the rest is for write buffers, for a part that is running, and the process."""
_MEMORY_FRONT = 64 * 1024 * 1024
"""With all state in memory a front ends here, for the sake of checkpoints that write what is new only."""

_MOST_BLOCKS = 16
"""Of one state and range; then they are put together."""

_RUN_RATIO = 8
"""A front with so many times the least state that is written in chunks ends at the next barrier."""

_WAIT_US = 1_000_000
_WAIT_RATIO = 4
"""Rows wait this long, or this many times as long as it took to work off the last ones."""

_HELD_RATIO = 2
"""State in memory takes about so much more than its rows: indexes, and rows that are gone but not yet dropped."""

_NEVER_IN_CHUNKS = 1 << 62

_CHUNK_RATIO = 32
"""A chunk of a checkpoint has this much less than the least state that is written in chunks at all."""


class InParts(Operator):
    """Any keyed operator that `make` makes; `keys` of each port are those of its state."""

    def __init__(
        self, make: Callable[[], Operator], keys: Sequence[Sequence[str]], *, merges: bool = False, timed: bool = True
    ) -> None:
        self._make, self._keys, self._merges, self._timed = make, keys, merges, timed
        self._front, self._gauge = make(), make()
        self.timeless_ports = self._front.timeless_ports
        self._home: BlockHome | None = None
        self._restored: Frames | None = None
        """What is in no key group, as restored: parts may have come more or less far until they ran once."""
        self._time = MIN_WATERMARK
        self._waiting: list[Element] = []
        self._waiting_bytes = 0
        self._wait_until: int | None = None
        self._took_us = 0
        self._row_bytes = 0.0

    def open(self, context: OperatorContext, output: Output) -> None:
        """Begin with everything in the front."""
        super().open(context, output)
        state = context.state
        self._bounded = state.backend in _SHARE
        self._limit = state.budget // _SHARE[state.backend] if self._bounded else _MEMORY_FRONT
        self._chunk_rows = max(1, state.incremental_rows // _CHUNK_RATIO)
        self._run_rows = state.incremental_rows * _RUN_RATIO
        self._ranges = cut_range(context.groups, _RANGES)
        self._range_of = np.zeros(context.max_parallelism, np.uint8)
        for number, groups in enumerate(self._ranges):
            self._range_of[groups.start : groups.stop] = number
        self._held: list[list[Block]] = [[] for _ in self._ranges]
        self._due: list[int | None] = [None] * len(self._ranges)
        self._runs: list[_Run] = []
        """Fronts that ended at a barrier, younger than all blocks."""
        whole = replace(state, incremental_rows=_NEVER_IN_CHUNKS)
        self._front_context = replace(context, counters=Counters(user=context.counters.user))
        self._part_context = replace(context, counters=Counters(user=context.counters.user), state=whole)
        self._front.open(self._front_context, output)
        self._gauge.open(self._part_context, output)

    # ------------------------------------------------------------ rows and time come

    def on_batch(self, frame: pl.DataFrame, port: int = 0) -> None:
        """To the front, or to those that wait."""
        self._learn(frame)
        if self._merges or not self._in_blocks:
            self._front.on_batch(frame, port)
            if self._front_bytes + sum(run.bytes for run in self._runs) > self._limit:
                self._put_front_away()
                self._tidy()
        else:
            self._waiting.append((port, frame))
            self._waiting_bytes += int(frame.estimated_size())
            self._wait()
            if self._waiting_bytes > self._limit // 2:
                self._catch_up()
        self._count()

    def on_watermark(self, watermark: int) -> int | None:
        """At once where nothing waits for it; else it waits too."""
        passed = self._on_time(watermark)
        self._count()
        return passed

    def _on_time(self, watermark: int) -> int | None:
        if any(run.due is not None and run.due <= watermark for run in self._runs):
            self._cut_runs()
        if self._in_blocks and (self._restored is not None or any(due <= watermark for due in self._dues)):
            self._waiting.append(watermark)
            if self._merges or watermark == MAX_WATERMARK:
                return self._advance()
            self._wait()
            return None
        if self._waiting:
            self._waiting.append(watermark)
            return self._advance() if watermark == MAX_WATERMARK else None
        self._time = watermark
        passed = self._front.on_watermark(watermark)
        self._gauge.on_watermark(watermark)
        return passed

    def _wait(self) -> None:
        if self._wait_until is None or len(self._waiting) == 1:
            self._wait_until = self.context.clock.now_us() + max(_WAIT_US, _WAIT_RATIO * self._took_us)

    @property
    def in_flight(self) -> bool:
        """Rows wait."""
        return bool(self._waiting)

    def next_processing_time(self) -> int | None:
        """When those that wait have waited long enough."""
        return self._wait_until

    def on_processing_time(self, now_us: int) -> None:
        """Nobody waits for ever."""
        self._wait_until = None
        if self._waiting:
            self._catch_up()
        self._count()

    def on_barrier(self) -> None:
        """State is what is in the front and in blocks, all of it equally far."""
        if self._waiting or self._restored is not None:
            self._catch_up()
        self._front.on_barrier()
        self._count()

    def on_end(self) -> None:
        """The last watermark has emptied all parts that it can empty."""
        self._front.on_end()
        self._count()

    def close(self) -> None:
        """Leave no files behind."""
        self._front.close()
        if self._home is not None:
            self._home.close()

    # ------------------------------------------------------------ parts

    def _catch_up(self) -> None:
        passed = self._advance()
        if passed is not None:
            self.output.pass_watermark(passed)

    def _advance(self) -> int | None:
        """Tell all parts what has waited. The last watermark among it, as the operator passes it on."""
        started = self.context.clock.now_us()
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        # One more call: the task may have waited for all rows to have left, and is told so at its next turn only.
        self._wait_until = started if waiting else None
        self._put_front_away()
        timeless = self._restored or _timeless(self._gauge)
        for number, (told, has_rows) in enumerate(self._dealt(waiting)):
            if has_rows or self._is_due(number, told):
                self._advance_part(number, timeless, told, has_rows)
        passed = None
        for mark in (each for each in waiting if isinstance(each, int)):
            self._time, passed = mark, self._gauge.on_watermark(mark)
            self._front.on_watermark(mark)
        self._restored = None
        if sum(block.bytes for block in self._blocks) <= self._limit // 2:
            self._bring_back()
        self._took_us = self.context.clock.now_us() - started
        return passed

    def _is_due(self, number: int, told: Sequence[Element]) -> bool:
        if not self._held[number]:
            return False
        if self._restored is not None or self._is_full(number):
            return True
        due = self._due[number]
        return due is not None and any(isinstance(each, int) and each >= due for each in told)

    def _is_full(self, number: int) -> bool:
        return len(self._held[number]) > _MOST_BLOCKS * len({block.state for block in self._held[number]})

    def _advance_part(self, number: int, timeless: Frames, told: Sequence[Element], has_rows: bool) -> None:
        part = self._made({**timeless, **_frames(self._held[number])}, self._part_context)
        for element in told:
            if isinstance(element, int):
                part.on_watermark(element)
            else:
                part.on_batch(element[1], element[0])
        part.on_barrier()
        self._due[number] = part.due() if self._timed else None
        before = sum(block.rows for block in self._held[number])
        after = self._part_context.counters.state_rows
        # Panes that have fired are not fired again: they may stay while most of the block is alive.
        if has_rows or not self._merges or self._is_full(number) or self._restored is not None or 2 * after < before:
            self._held[number] = [block for _, block in self._cut(part.snapshot(CheckpointId(0)), [number])]
        part.close()
        if self._bounded and self._memory_bytes > self._limit // 2:
            self._put_away(self._held[number])

    def _dealt(self, elements: Sequence[Element]) -> Iterator[tuple[list[Element], bool]]:
        """What each range is to be told, and whether there are rows among it."""
        told: list[list[Element]] = [[] for _ in self._ranges]
        has_rows = [False] * len(self._ranges)
        for element in _joined(elements, self._timed):
            if isinstance(element, int):
                for each in told:
                    each.append(element)
                continue
            port, frame = element
            for number, rows in self._split(frame, self._keys[port]):
                told[number].append((port, rows))
                has_rows[number] = True
        return zip(told, has_rows, strict=True)

    def _split(self, frame: pl.DataFrame, keys: Sequence[str]) -> Iterator[tuple[int, pl.DataFrame]]:
        numbers = self._range_of[key_groups(frame, keys, self.context.max_parallelism)]
        order = np.argsort(numbers, kind="stable")  # of 8 bit integers: a radix sort
        frame, ends = frame[order], np.cumsum(np.bincount(numbers, minlength=len(self._ranges)))
        start = 0
        for number, end in enumerate(ends.tolist()):
            if end > start:
                yield number, frame.slice(start, end - start)
            start = end

    def _made(self, frames: Mapping[str, Sequence[pl.DataFrame]], context: OperatorContext) -> Operator:
        """An operator with this state, at the time of all parts."""
        operator = self._make()
        context.counters.state_rows = 0
        operator.open(context, self.output)
        operator.restore(frames)
        operator.on_restored()
        if self._time != MIN_WATERMARK:
            operator.on_watermark(self._time)
        return operator

    # ------------------------------------------------------------ blocks

    @property
    def _blocks(self) -> Iterator[Block]:
        return (block for held in self._held for block in held)

    @property
    def _in_blocks(self) -> bool:
        return any(self._held) or bool(self._runs)

    @property
    def _dues(self) -> Iterator[int]:
        return (due for due, held in zip(self._due, self._held, strict=True) if held and due is not None)

    @property
    def _memory_bytes(self) -> int:
        return sum(block.bytes for block in self._blocks if block.in_memory)

    def _put_front_away(self) -> None:
        """The rows of the front become blocks, and it is empty."""
        if self._front_context.counters.state_rows:
            self._front.on_barrier()
            # What it has put into the store already is of no use here.
            self._front.context = replace(self._front_context, state=self._part_context.state)
            self._runs.append(self._run(self._front.snapshot(CheckpointId(0))))
            self._replace_front(_timeless(self._gauge))
        self._cut_runs()

    def _run(self, snapshot: Snapshot) -> "_Run":
        """What the front is now."""
        rows = self._front_context.counters.state_rows
        due = self._front.due() if self._timed else None
        return _Run(lambda: list(self._cut(snapshot, range(len(self._ranges)))), rows, round(self._front_bytes), due)

    def _cut_runs(self) -> None:
        runs, self._runs = self._runs, []
        for run in runs:
            for number, block in run.blocks():
                if run.due is not None:
                    known = self._due[number] if self._held[number] else None
                    self._due[number] = run.due if known is None else min(run.due, known)
                self._held[number].append(block)

    def _replace_front(self, frames: Frames) -> None:
        self._front.close()
        self._front = self._made(frames, self._front_context)

    def _bring_back(self) -> None:
        """What is left fits into the front again."""
        frames = _frames(self._blocks)
        self._held = [[] for _ in self._ranges]
        self._replace_front({**_timeless(self._gauge), **frames})

    def _tidy(self) -> None:
        """Put away what is over the limit, and blocks together where they are many."""
        if self._bounded and self._memory_bytes > self._limit // 2:
            self._put_away(self._blocks)
        if self._merges and any(self._is_full(number) for number in range(len(self._ranges))):
            self._catch_up()

    def _put_away(self, blocks: Iterable[Block]) -> None:
        if self._home is None:
            self._home = self._open_home()
        for block in blocks:
            block.put_away(self._home)

    def _open_home(self) -> BlockHome:
        state, where = self.context.state, place(self.context)
        if state.folder is None:
            raise UserError("P040", "RocksDB needs a folder, and there is none here", fix='state.backend = "memory"')
        return BlockHome(Database(state.folder, groups=self.context.groups, budget=state.budget, where=where))

    def _cut(self, snapshot: Snapshot, numbers: Iterable[int]) -> Iterator[tuple[int, Block]]:
        """The keyed tables of a snapshot, as blocks of these ranges."""
        ranges = [self._ranges[number] for number in numbers]
        for section in snapshot():
            assert isinstance(section, Section), "state of a part is tables"
            if section.redistribution is Redistribution.KEYED:
                for number, frame in zip(numbers, cut(section.frame, ranges), strict=True):
                    if frame.height:
                        yield number, Block(section.state, frame)

    # ------------------------------------------------------------ size

    @property
    def blocks_written(self) -> int:
        """Blocks that were put away since the start."""
        return 0 if self._home is None else self._home.blocks_written

    @property
    def _front_bytes(self) -> float:
        return _HELD_RATIO * self._row_bytes * self._front_context.counters.state_rows

    def _learn(self, frame: pl.DataFrame) -> None:
        """How large a row of state is: like those that come, until blocks say it better."""
        self._row_bytes += (frame.estimated_size() / frame.height - self._row_bytes) / (4 if self._row_bytes else 1)

    def _count(self) -> None:
        counters = self.context.counters
        for each in (self._front_context.counters, self._part_context.counters):
            counters.late_rows += each.late_rows
            counters.bad_rows += each.bad_rows
            each.late_rows = each.bad_rows = 0
        front = self._front_context.counters.state_rows
        waiting = sum(each[1].height for each in self._waiting if not isinstance(each, int))
        held: list[Block | _Run] = [*self._blocks, *self._runs]
        counters.state_rows = front + waiting + sum(each.rows for each in held)
        counters.state_bytes = round(front * self._row_bytes) + self._waiting_bytes + sum(each.bytes for each in held)

    # ------------------------------------------------------------ snapshot and restore

    def snapshot(self, checkpoint: CheckpointId) -> Snapshot:
        """Keep references to the blocks. A large front ends, and is cut into blocks by who needs them first."""
        front = self._front.snapshot(checkpoint)
        if self._merges and self._front_context.counters.state_rows >= self._run_rows:
            self._runs.append(self._run(front))
            self._replace_front(_timeless(self._gauge))
            front = self._gauge.snapshot(checkpoint)
        blocks, runs = list(self._blocks), list(self._runs)

        def sections() -> Sequence[AnySection]:
            younger = (block for run in runs for _, block in run.blocks())
            return [*map(self._section, chain(blocks, younger)), *front()]

        return sections

    def _section(self, block: Block) -> AnySection:
        if block.rows < self._chunk_rows:
            return Section(block.state, Redistribution.KEYED, block.frame)
        return ChunkSection(block.state, block.chunk, lambda: block.frame)

    def restore(self, sections: Mapping[str, Sequence[pl.DataFrame]]) -> None:
        """Into the front, if it fits; else range by range, when time goes on."""
        keyed = {state: [each for each in frames if _is_keyed(each)] for state, frames in sections.items()}
        timeless = {state: [each for each in frames if not _is_keyed(each)] for state, frames in sections.items()}
        self._gauge.restore(timeless)
        rows = sum(frame.height for frames in keyed.values() for frame in frames)
        size = sum(frame.estimated_size() for frames in keyed.values() for frame in frames)
        self._row_bytes = size / rows if rows else 0.0
        if not rows or size * _HELD_RATIO <= self._limit:
            self._front.restore(sections)
            self._count()
            return
        self._restored = timeless
        self._front.restore(timeless)
        for state, frames in keyed.items():
            for frame in frames:
                for number, part in enumerate(cut(frame, self._ranges)):
                    if part.height:
                        self._held[number].append(Block(state, part))
        if self._bounded:
            self._put_away(self._blocks)
        self._count()

    def on_restored(self) -> None:
        """The front is as it was left, or empty."""
        self._front.on_restored()


class _Run:
    """What a front held when it ended, in blocks as soon as somebody asks for them: mostly the background thread."""

    def __init__(self, make: Callable[[], list[tuple[int, Block]]], rows: int, size: int, due: int | None) -> None:
        self.rows, self.bytes, self.due = rows, size, due
        self._make: Callable[[], list[tuple[int, Block]]] | None = make
        self._blocks: list[tuple[int, Block]] = []
        self._lock = threading.Lock()

    def blocks(self) -> list[tuple[int, Block]]:
        """With the range of each. Who comes second waits, and is spared the work."""
        with self._lock:
            if self._make is not None:
                self._blocks, self._make = self._make(), None
            return self._blocks


def _timeless(operator: Operator) -> Frames:
    """What the state of an operator without rows is."""
    frames: Frames = {}
    for section in operator.snapshot(CheckpointId(0))():
        assert isinstance(section, Section), "state of a part is tables"
        frames.setdefault(section.state, []).append(section.frame)
    return frames


def _frames(blocks: Iterable[Block]) -> Frames:
    frames: Frames = {}
    for block in blocks:
        frames.setdefault(block.state, []).append(block.frame)
    return frames


def _is_keyed(frame: pl.DataFrame) -> bool:
    return frame.columns[:1] == [KEY_GROUP]


def _joined(elements: Sequence[Element], timed: bool) -> Iterator[Element]:
    """Rows of one port that follow each other, as one frame. Who goes by no time needs only the last watermark."""
    marks = [each for each in elements if isinstance(each, int)]
    gathered: list[pl.DataFrame] = []
    port = 0
    for element in elements:
        if isinstance(element, int):
            if not timed:
                continue
            if gathered:
                yield port, pl.concat(gathered, rechunk=True)
                gathered = []
            yield element
            continue
        if gathered and element[0] != port:
            yield port, pl.concat(gathered, rechunk=True)
            gathered = []
        port = element[0]
        gathered.append(element[1])
    if gathered:
        yield port, pl.concat(gathered, rechunk=True)
    if marks and not timed:
        yield marks[-1]
