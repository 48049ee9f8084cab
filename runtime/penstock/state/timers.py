"""Event-time timers of one operator: which keys want to be called when.

Owns: a bucket of keys per time, and the order of times.
A key has at most one timer per time. Timers come due in the order of time, and of registration within one time.
A snapshot is O(1) (state.layers): a bucket is copied when it is changed while a snapshot of it is in use.
"""

import heapq
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any

import polars as pl

from penstock.state.columns import to_column, to_objects
from penstock.state.key_groups import sort_by_group
from penstock.state.keys import KeyCodec
from penstock.state.layers import CHUNK, LayeredDict, View
from penstock.state.values import MakeTable, own_name


class Timers:
    """All event-time timers of one operator in one subtask."""

    def __init__(self, keys: KeyCodec, *, max_parallelism: int) -> None:
        self._keys, self._max_parallelism = keys, max_parallelism
        self._buckets: LayeredDict[int, Any] = LayeredDict(copy_value=dict.copy)
        """Time -> keys in the order of registration, as the keys of a dict."""
        self._times: list[int] = []
        """A heap of the times that have a bucket; a time whose bucket was emptied stays until it is due."""

    def set(self, time: int, key: Any) -> None:
        """Call `key` when the watermark reaches `time`."""
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

    def set_many(self, times: Sequence[int], keys: Sequence[Any]) -> None:
        """One timer per pair."""
        for time, key in zip(times, keys, strict=True):
            self.set(time, key)

    def due(self, watermark: int) -> Iterator[tuple[int, Any]]:
        """Take out what is due, in order. Timers that are set or deleted meanwhile are respected."""
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
        return keys

    @property
    def next_time(self) -> int | None:
        """Nothing is due before this."""
        return self._times[0] if self._times else None

    # ------------------------------------------------------------ snapshot and restore

    def merge(self) -> bool:
        """Put together what snapshots that are finished have kept apart."""
        return self._buckets.merge()

    def snapshot(self) -> MakeTable:
        """Freeze the timers as they are now."""
        view = self._buckets.freeze()
        return lambda: self._make_table(view)

    def restore(self, frame: pl.DataFrame) -> None:
        """Take the rows of an earlier snapshot: key group, keys, time."""
        columns = frame.get_columns()
        self.set_many(to_objects(columns[-1]), self._keys.decode(pl.DataFrame(columns[1:-1])))

    def _make_table(self, view: View[int, Any]) -> pl.DataFrame | None:
        name = own_name("time", self._keys.names)
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
            pl.DataFrame([*self._keys.encode(keys[start:end]), to_column(name, times[start:end], pl.Int64())])
            for start in range(0, len(keys), CHUNK)
            for end in (start + CHUNK,)
        ]
        return sort_by_group(pl.concat(parts, rechunk=True), self._keys.names, self._max_parallelism)
