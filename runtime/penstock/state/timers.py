"""Timers of one operator, of event time or of the clock: which keys want to be called when.

Owns: a bucket of keys per time, and the order of times. With a database (state.stored_timers) these are the timers
that are not in it yet, and what comes due is merged from both.
A key has at most one timer per time. Timers come due in the order of time; within one time in that of registration,
as long as they are in memory.
A snapshot is O(1) (state.layers): a bucket is copied when it is changed while a snapshot of it is in use.
"""

import heapq
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any

import polars as pl

from penstock.state.columns import to_column, to_objects
from penstock.state.key_groups import KEY_GROUP, key_groups, sort_by_group
from penstock.state.keys import KeyCodec
from penstock.state.layers import CHUNK, LayeredDict, View
from penstock.state.rocks import Database
from penstock.state.stored import StoredView
from penstock.state.stored_timers import StoredTimers
from penstock.state.values import MakeTable, own_name


class Timers:
    """All event-time timers of one operator in one subtask."""

    def __init__(self, keys: KeyCodec, *, max_parallelism: int) -> None:
        self._keys, self._max_parallelism = keys, max_parallelism
        self._buckets: LayeredDict[int, Any] = LayeredDict(copy_value=dict.copy)
        """Time -> keys in the order of registration, as the keys of a dict."""
        self._times: list[int] = []
        """A heap of the times that have a bucket; a time whose bucket was emptied stays until it is due."""
        self._stored: StoredTimers | None = None

    def set(self, time: int, key: Any) -> None:
        """Call `key` when the watermark reaches `time`."""
        self._hold(time, key)
        if self._stored is not None:
            self._stored.set(time, key)

    def _hold(self, time: int, key: Any) -> None:
        front = self._buckets.front
        bucket = front[time]
        if bucket is None:
            heapq.heappush(self._times, time)
            bucket = {}
        bucket[key] = True
        front[time] = bucket

    def delete(self, time: int, key: Any) -> None:
        """Do not call; nothing happens when there is no such timer."""
        front = self._buckets.front
        bucket = front[time]
        if bucket is not None and key in bucket:
            del bucket[key]
            front[time] = bucket
        if self._stored is not None:
            self._stored.delete(time, key)

    def set_many(self, times: Sequence[int], keys: Sequence[Any]) -> None:
        """One timer per pair."""
        for time, key in zip(times, keys, strict=True):
            self.set(time, key)

    def due(self, watermark: int) -> Iterator[tuple[int, Any]]:
        """Take out what is due, in order. Timers that are set or deleted meanwhile are respected."""
        stored = self._stored
        if stored is None:
            yield from self._due_in_memory(watermark)
            return
        while True:
            head = stored.head()
            for time, key in self._due_in_memory(watermark if head is None else min(watermark, head[0])):
                stored.delete(time, key)
                yield time, key
            if head is not stored.head():
                continue
            if head is None or head[0] > watermark:
                return
            stored.delete(*head)
            yield head

    def _due_in_memory(self, watermark: int) -> Iterator[tuple[int, Any]]:
        while self._times and (time := self._times[0]) <= watermark:
            bucket = self._buckets.front[time]
            if not bucket:
                heapq.heappop(self._times)
                self._buckets.clear(time)
                continue
            self._buckets.front[time] = bucket
            for key in tuple(bucket):
                if key in bucket:
                    del bucket[key]
                    yield time, key
                    if self._times[0] < time:
                        break

    def upcoming(self, watermark: int, limit: int) -> list[Any]:
        """Keys whose timers come due first, about `limit` of them; a key may be there twice."""
        keys: list[Any] = []
        for time in sorted(time for time in self._times if time <= watermark):
            keys.extend(self._buckets.front.peek(time) or ())
            if len(keys) >= limit:
                break
        if self._stored is not None:
            keys += self._stored.upcoming(watermark, limit)
        return keys

    @property
    def next_time(self) -> int | None:
        """Nothing is due before this."""
        recent = self._times[0] if self._times else None
        head = None if self._stored is None else self._stored.head()
        if head is None:
            return recent
        return head[0] if recent is None else min(recent, head[0])

    def retain(self, groups: range) -> None:
        """Forget the timers of keys in other groups. Only in memory."""
        assert self._stored is None, "timers in a database stay with it"
        timers = [(time, key) for time in set(self._times) for key in self._buckets.front.peek(time) or ()]
        if timers:
            keys = pl.DataFrame(self._keys.encode([key for _, key in timers]))
            own = key_groups(keys, self._keys.names, self._max_parallelism)
            for (time, key), group in zip(timers, own.tolist(), strict=True):
                if group not in groups:
                    self.delete(time, key)

    # ------------------------------------------------------------ snapshot and restore

    def merge(self) -> bool:
        """Put together what snapshots that are finished have kept apart."""
        if self._stored is not None and self._stored.merge(self._times[0] if self._times else None):
            self._buckets, self._times = LayeredDict(copy_value=dict.copy), []
            for time, key in self._stored.recent():
                self._hold(time, key)
        return self._buckets.merge()

    def snapshot(self) -> MakeTable:
        """Freeze the timers as they are now."""
        view = self._buckets.freeze()
        return lambda: self._make_table(view)

    # ------------------------------------------------------------ in a database

    def store_in(self, database: Database, name: str, groups: range, budget: int) -> None:
        """Keep timers there from now on, with `budget` bytes of them in memory. What there is moves."""
        held = self._buckets.freeze()
        self._stored = StoredTimers(
            database, name, self._keys, groups, max_parallelism=self._max_parallelism, budget=budget
        )
        for times, buckets in held.chunks():
            for time, bucket in zip(times, buckets, strict=True):
                for key in bucket:
                    self._stored.set(time, key)
        held.release()

    @property
    def is_stored(self) -> bool:
        """Whether a snapshot of the database is one of the timers."""
        return self._stored is not None

    @property
    def is_full(self) -> bool:
        """Whether timers in memory have to go to the database."""
        return self._stored is not None and self._stored.is_full

    def freeze(self) -> StoredView:
        """Timers in a database as they are now."""
        assert self._stored is not None
        return self._stored.freeze()

    def restore(self, frame: pl.DataFrame) -> None:
        """Take the rows of an earlier snapshot: key group, keys, time."""
        self.set_many(to_objects(frame.get_columns()[-1]), self._keys.decode(frame))

    def _make_table(self, view: View[int, Any]) -> pl.DataFrame | None:
        try:
            keys: list[Any] = []
            times: list[int] = []
            for chunk in view.chunks():
                for time, bucket in zip(*chunk, strict=True):
                    keys.extend(bucket)
                    times.extend(repeat(time, len(bucket)))
        finally:
            view.release()
        if not keys:
            return None
        parts = [
            timer_table(times[start:end], keys[start:end], self._keys, self._max_parallelism)
            for start in range(0, len(keys), CHUNK)
            for end in (start + CHUNK,)
        ]
        return pl.concat(parts, rechunk=True).sort(KEY_GROUP, maintain_order=True)


def timer_table(times: Sequence[int], keys: Sequence[Any], codec: KeyCodec, max_parallelism: int) -> pl.DataFrame:
    """Timers as rows, as snapshots of timers in memory have them."""
    column = to_column(own_name("time", codec.names), times, pl.Int64())
    return sort_by_group(pl.DataFrame([*codec.encode(keys), column]), codec.names, max_parallelism)
