"""The task side of a source: reads the splits of one subtask, one batch per `poll`, and says how far time has come.

Owns: which splits are this subtask's, where each one is, the watermark of each.
Does not own: how a split is read (connectors), when to poll (the task).
Invariant: a position in a snapshot is that of the rows that were emitted before it, no more and no less.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import polars as pl

from penstock.connectors.base import ReadResult, Source, SourceContext, Split, SplitReader, TimedSource
from penstock.model import specs
from penstock.model.clocks import MAX_WATERMARK, MIN_WATERMARK
from penstock.model.handles import Redistribution
from penstock.model.ids import CheckpointId
from penstock.operators.base import Operator, OperatorContext, Output, Section, Snapshot
from penstock.operators.batch_sizes import BatchSize
from penstock.operators.source_times import TimeGuard
from penstock.operators.user_errors import place
from penstock.operators.valve import Valve
from penstock.operators.watermarks import LoadFunction, Strategy, make_strategy

SPLITS = "splits"
_SPLITS_SCHEMA = {
    "split": pl.String,
    "whole": pl.String,
    "place": pl.Int64,
    "options": pl.String,
    "position": pl.String,
    "watermark": pl.Int64,
    "ended": pl.Boolean,
}

_LEAST_WAIT_US = 1_000
"""A reader that names no time to wait is asked again after this: often enough for people, no busy loop."""

_STEPS = 4
"""A split that keeps step reads at most this part of its bound at once, so that it ends little beyond."""

_REST_US = 1_000_000
"""How long the task may leave a source alone that will never emit again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PollResult:
    """What one poll came to; None: as it was."""

    rows: int = 0
    """That were read; some may have been dropped."""
    watermark: int | None = None
    idle: bool | None = None
    ended: bool = False
    """All splits are read and no new ones can come. Said by every poll from then on."""
    wait_us: int = 0
    """With nothing emitted: how long it makes sense to wait."""

    @property
    def emitted(self) -> bool:
        """Whether there were rows."""
        return self.rows > 0


@dataclass(slots=True)
class _SplitProgress:
    split: Split
    position: str | None = None
    """JSON; while a reader is open, it knows better."""
    watermark: int = MIN_WATERMARK
    ended: bool = False
    reader: SplitReader | None = None
    active_at: float = 0.0
    """Monotonic seconds when it was opened or last gave rows."""
    size: BatchSize | None = None
    """Of a split that keeps step: rows that bring it on by a part of the bound."""
    begins: bool = False
    """Nothing of it was read before."""
    strategy: Strategy | None = None
    """What it is asked for a watermark after each batch; None: nothing is."""

    def current_position(self) -> str | None:
        return self.position if self.reader is None else _json(self.reader.position())


class SourceOperator(Operator):
    """Drives a Source. The head of a chain: `poll` takes the place of `on_batch`."""

    def __init__(self, spec: specs.Source, source: Source, load_function: LoadFunction) -> None:
        self._spec, self._source, self._load_function = spec, source, load_function
        self._source_tells_time = isinstance(source, TimedSource) and source.tells_time
        self._restored: dict[str, _SplitProgress] = {}
        self._splits: dict[str, _SplitProgress] | None = None
        """This subtask's splits, in the order of reading; None until the first poll."""
        self._turn = 0
        self._valve: Valve[str] = Valve()
        self._reached = MIN_WATERMARK
        self._idle = False
        self._stopped = False
        self._ended = False
        self._discovery_due = 0.0
        self._ingested_us = MIN_WATERMARK
        self._ahead_by_us = None if spec.alignment is None else spec.alignment.within_us
        self.others = MIN_WATERMARK
        """How far the slowest of all sources is that this one keeps step with, itself left out."""
        self.held = False
        """A split is so far ahead that it is not read just now."""

    def open(self, context: OperatorContext, output: Output) -> None:
        """Nothing is read before the first poll: what is restored decides where to begin."""
        super().open(context, output)
        self._settings = context.settings.source
        self._source_context = SourceContext(
            subtask_index=context.subtask.index,
            parallelism=context.parallelism,
            columns=self._spec.columns,
            predicates=tuple(predicate.polars for predicate in self._spec.predicates),
            settings=self._settings,
            clock=context.clock,
            place=f"{context.job}/{place(context)}",
        )
        self._guard = None
        if self._spec.event_time is not None and self._spec.time_kind == "event":
            self._guard = TimeGuard(self._spec.event_time, self._settings, place(context))
            self._make_strategy = make_strategy(
                self._spec.watermarks, self._spec.event_time, context, self._load_function
            )

    # ------------------------------------------------------------ reading

    @property
    def most_rows(self) -> int:
        """Rows that a batch may have."""
        return self._settings.batch_rows

    def poll(self, max_rows: int | None = None) -> PollResult:
        """Read at most one batch and emit it."""
        if self._stopped or self._ended:
            return PollResult(ended=self._ended, wait_us=_REST_US)
        now = self.context.clock.monotonic()
        splits = self._own_splits(now)
        wait_us = self._discover(splits, now)
        rows, self.held = 0, False
        for progress in self._in_turn(splits):
            if self._is_ahead(progress, now):
                self.held = True
                continue
            result = self._read(progress, now, max_rows or self.most_rows)
            if result.frame is not None and result.frame.height:
                rows = result.frame.height
                break
            if not progress.ended:
                wait_us = min(wait_us, max(result.wait_us, _LEAST_WAIT_US), self._check_idle(progress, now))
        self._ended = not self._source.discovers and all(each.ended for each in splits.values())
        return self._report(splits, rows=rows, wait_us=wait_us)

    def stop_emitting(self) -> None:
        """A STOP or RESTART barrier has passed: what is emitted after it would be in vain."""
        self._stopped = True

    def go_on(self) -> None:
        """That barrier was given up."""
        self._stopped = False

    @property
    def current_watermark(self) -> int:
        """Event time that has been reported."""
        return self._reached

    @property
    def awaited_time(self) -> int:
        """How far it is for sources that keep step with it; MAX_WATERMARK: they need not wait for it."""
        return MAX_WATERMARK if self._ended or self._idle else self._reached

    def _in_turn(self, splits: Mapping[str, _SplitProgress]) -> Iterator[_SplitProgress]:
        """Splits to ask for rows: the first that is not read yet, or all, beginning after the last that had some."""
        unread = [each for each in splits.values() if not each.ended]
        if self._source.sequential:
            for progress in unread:
                yield progress
                if not progress.ended:
                    return
            return
        start = self._turn % len(unread) if unread else 0
        for offset, progress in enumerate(unread[start:] + unread[:start]):
            self._turn = start + offset + 1
            yield progress

    def _is_ahead(self, progress: _SplitProgress, now: float) -> bool:
        """Whether the split must wait for the slowest. The slowest itself never does."""
        if self._ahead_by_us is None:
            return False
        self._reader(progress, now)
        own = MAX_WATERMARK if self._valve.idle else self._valve.watermark
        if progress.watermark <= min(own, self.others) + self._ahead_by_us:
            return False
        progress.active_at = now  # it is not silent, nobody listens
        return True

    def _reader(self, progress: _SplitProgress, now: float) -> SplitReader:
        if progress.reader is None:
            position = None if progress.position is None else msgspec.json.decode(progress.position)
            progress.reader = self._source.open(progress.split, position, self._source_context)
            progress.active_at, progress.begins = now, position is None
            if self._guard is not None and not self._source_tells_time:
                progress.strategy = self._make_strategy(progress.watermark)
            if self._ahead_by_us is not None:
                # Nobody knows how much time a row is until some were read.
                target = self._ahead_by_us / _STEPS
                progress.size = BatchSize(self.most_rows, target=target, first=1)
            self._valve.add(progress.split.id)
            self._valve.on_watermark(progress.split.id, progress.watermark)
        return progress.reader

    def _read(self, progress: _SplitProgress, now: float, max_rows: int) -> ReadResult:
        reader = self._reader(progress, now)
        result = reader.read(max_rows if progress.size is None else min(max_rows, progress.size.rows))
        self.context.counters.bad_rows += result.bad_rows
        before = progress.watermark
        if result.frame is not None and result.frame.height:
            self._take(progress, result.frame, now)
        if result.watermark is not None:
            self._advance(progress, result.watermark)
        if progress.size is not None and result.frame is not None and before != MIN_WATERMARK:
            progress.size.measured(result.frame.height, progress.watermark - before)
        if result.idle:
            self._valve.on_idleness(progress.split.id, True)
        if result.ended:
            progress.position, progress.ended = _json(reader.position()), True
            reader.close()
            progress.reader = None
            self._valve.remove(progress.split.id)
        return result

    def _take(self, progress: _SplitProgress, frame: pl.DataFrame, now: float) -> None:
        progress.active_at = now
        self._valve.on_idleness(progress.split.id, False)
        if self._guard is not None:
            now_us = self.context.clock.now_us()
            timed = self._guard.check(frame, now_us)
            self.context.counters.bad_rows += timed.dropped
            frame = timed.frame
            if progress.begins and frame.height:
                self._guard.check_unit(frame, now_us)
                progress.begins = False
            if timed.latest_us is not None and progress.strategy is not None:
                reached = progress.strategy.on_batch(frame, timed.latest_us)
                if reached is not None:
                    self._advance(progress, self._guard.check_watermark(reached, now_us))
        elif self._spec.time_kind == "ingestion" and self._spec.ingestion_column is not None:
            arrived = pl.lit(self._ingestion_time(), pl.Int64).cast(pl.Datetime("us"))
            frame = frame.with_columns(arrived.alias(self._spec.ingestion_column))
        self.output.emit(frame)

    def _advance(self, progress: _SplitProgress, watermark: int) -> None:
        progress.watermark = max(progress.watermark, watermark)
        self._valve.on_watermark(progress.split.id, progress.watermark)

    def _ingestion_time(self) -> int:
        """The wall clock, without its jumps back."""
        self._ingested_us = max(self._ingested_us, self.context.clock.now_us())
        return self._ingested_us

    def _check_idle(self, progress: _SplitProgress, now: float) -> int:
        """A split without rows for long enough is idle; microseconds until this must be looked at again."""
        if self._spec.idle_after_us is None:
            return _REST_US
        remaining_us = round((progress.active_at - now) * 1_000_000) + self._spec.idle_after_us
        if remaining_us <= 0:
            self._valve.on_idleness(progress.split.id, True)
        return remaining_us if remaining_us > 0 else _REST_US

    # ------------------------------------------------------------ time

    def _report(self, splits: Mapping[str, _SplitProgress], *, rows: int, wait_us: int) -> PollResult:
        watermark = self._current_time()
        # With nothing to read but what may be discovered one day, this subtask must not hold the others back.
        idle = not self._ended and (self._valve.idle or all(each.ended for each in splits.values()))
        result = PollResult(
            rows=rows,
            watermark=watermark if watermark > self._reached else None,
            idle=idle if idle != self._idle else None,
            ended=self._ended,
            wait_us=0 if rows else wait_us,
        )
        self._reached, self._idle = max(self._reached, watermark), idle
        if self.held and (result.watermark is not None or result.idle is not None):
            # Time has come further without rows: those that are held may be let go.
            return replace(result, wait_us=min(result.wait_us, _LEAST_WAIT_US))
        return result

    def _current_time(self) -> int:
        if self._ended:
            return MAX_WATERMARK
        if self._spec.time_kind == "ingestion":
            return self._ingestion_time() - 1
        return self._valve.watermark

    # ------------------------------------------------------------ splits

    def _known_splits(self) -> list[Split]:
        """Of all subtasks, in the same order in each: as listed, then what was discovered before the restore.

        A whole that was restored stays cut as it was, in its place among those that are listed.
        """
        restored: dict[str, list[Split]] = {}
        for progress in sorted(self._restored.values(), key=lambda each: (each.split.place, each.split.id)):
            restored.setdefault(progress.split.origin, []).append(progress.split)
        known: dict[str, Split] = {}
        for listed in self._source.splits():
            known |= {split.id: split for split in restored.get(listed.origin, (listed,))}
        for origin in sorted(restored):
            known |= {split.id: split for split in restored[origin]}
        return list(known.values())

    def _own_splits(self, now: float) -> dict[str, _SplitProgress]:
        """Number i of all splits belongs to subtask i mod p."""
        if self._splits is None:
            mine = self._known_splits()[self.context.subtask.index :: self.context.parallelism]
            self._splits = {split.id: self._restored.get(split.id) or _SplitProgress(split) for split in mine}
            if not self._source.sequential:
                unread = [progress for progress in self._splits.values() if not progress.ended]
                # All are known before the first says how far it was: alone it would carry time past the others.
                for progress in unread:
                    self._valve.add(progress.split.id)
                for progress in unread:
                    self._reader(progress, now)
        return self._splits

    def _discover(self, splits: dict[str, _SplitProgress], now: float) -> int:
        """Look for new splits when it is time; microseconds until the next look."""
        if not self._source.discovers:
            return _REST_US
        interval = self._settings.discovery_interval_us / 1_000_000
        if now >= self._discovery_due:
            seen = frozenset(each.split.origin for each in (*splits.values(), *self._restored.values()))
            for split in self._source.discover(seen, self._source_context):
                splits.setdefault(split.id, _SplitProgress(split))
            self._discovery_due = now + interval
        return max(_LEAST_WAIT_US, int((self._discovery_due - now) * 1_000_000))

    # ------------------------------------------------------------ snapshot and restore

    def snapshot(self, checkpoint: CheckpointId) -> Snapshot:
        """Where every split of this subtask is."""
        rows = [
            (each.split, each.current_position(), each.watermark, each.ended)
            for each in self._own_splits(self.context.clock.monotonic()).values()
        ]

        def sections() -> Sequence[Section]:
            frame = pl.DataFrame(
                [
                    (split.id, split.whole, split.place, _json(split.options), position, watermark, ended)
                    for split, position, watermark, ended in rows
                ],
                schema=_SPLITS_SCHEMA,
                orient="row",
            )
            return (Section(SPLITS, Redistribution.UNION, frame),)

        return sections

    def restore(self, sections: Mapping[str, Sequence[pl.DataFrame]]) -> None:
        """Remember where all splits were, of all subtasks: ours are chosen at the first poll."""
        for frame in sections.get(SPLITS, ()):
            for name, whole, offset, options, position, watermark, ended in frame.iter_rows():
                self._restored[name] = _SplitProgress(
                    Split(id=name, whole=whole, place=offset, options=msgspec.json.decode(options)),
                    position,
                    watermark,
                    ended,
                )

    def close(self) -> None:
        """Close all readers."""
        for progress in (self._splits or {}).values():
            if progress.reader is not None:
                progress.reader.close()


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
