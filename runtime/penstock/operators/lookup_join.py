"""Lookup joins: rows beside what a user's function knows about their key, asked for once and remembered for a while.

Owns: the answers (a cache, and no state: after a restore the function is asked again) and the threads that ask. All
keys of a batch that have no answer yet are asked for at once, up to `capacity` at a time; the batch waits for them, so
rows stay in order and nothing is under way at a barrier.
"""

import asyncio
import inspect
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import polars as pl

from penstock.model import schemas
from penstock.model.specs import Lookup
from penstock.operators.base import Operator, OperatorContext, Output
from penstock.operators.rows import RowBuilder
from penstock.operators.user_errors import place, user_code
from penstock.state.columns import to_objects
from penstock.state.tables import NEVER, NONE, KeyedTable

_FOUND = "__found"


class LookupJoin(Operator):
    """Asks a function about keys."""

    def __init__(self, spec: Lookup, function: Callable[..., Any]) -> None:
        self._spec, self._function = spec, function
        self._keys = list(spec.on)
        self._cache = KeyedTable(spec.on)
        self._made = schemas.polars_schema(spec.made)
        self._threads: ThreadPoolExecutor | None = None

    def open(self, context: OperatorContext, output: Output) -> None:
        """Start threads for functions that block."""
        super().open(context, output)
        self._rows = RowBuilder(self._spec.made, where=place(context), function=self._spec.function.name)
        if not self._spec.per_batch and not inspect.iscoroutinefunction(self._function):
            self._threads = ThreadPoolExecutor(self._spec.capacity, thread_name_prefix=f"lookup-{context.uid}")

    def on_batch(self, frame: pl.DataFrame, port: int = 0) -> None:
        """Ask about keys that are not known, then emit the rows in their order."""
        keys = frame[self._keys]
        complete = keys.drop_nulls().unique(maintain_order=True)
        if complete.height:
            self._ask(complete)
        slots = self._cache.find(keys) if len(self._cache) else np.full(frame.height, NONE, np.int64)
        slots[keys.select(pl.any_horizontal(pl.all().is_null())).to_series().to_numpy()] = NONE
        known = slots != NONE
        if known.any():
            answers = self._cache.rows(slots[known])
            known[known] = answers.get_column(_FOUND).to_numpy()
        found = self._cache.rows(slots[known]) if known.any() else pl.DataFrame(schema=self._made)
        if self._spec.how == "inner":
            self._emit(frame[np.flatnonzero(known)], found)
        else:
            position = pl.Series(np.where(known, np.cumsum(known) - 1, -1)).cast(pl.Int64)
            nullable = position.replace(-1, None)
            self._emit(frame, found.select(pl.col(name).gather(nullable) for name in self._made))
        self._forget()

    def _ask(self, keys: pl.DataFrame) -> None:
        slots = self._cache.find(keys, expired=self._expired())
        missing = keys[np.flatnonzero(slots == NONE)]
        if not missing.height:
            return
        answers = self._asked_at_once(missing) if self._spec.per_batch else self._asked_one_by_one(missing)
        # What has expired is there still: its slot is used again.
        self._cache.put(answers, self._cache.find(answers), self.context.clock.now_us())

    def _expired(self) -> int:
        if self._spec.cache_us is None:
            return NEVER
        return self.context.clock.now_us() - self._spec.cache_us

    def _asked_at_once(self, keys: pl.DataFrame) -> pl.DataFrame:
        with user_code(self.context, self._spec.function.name, lambda: {"keys": keys.height}):
            made = self._function(keys)
        both = RowBuilder(
            (*schemas.fields(keys.schema), *self._spec.made),
            where=place(self.context),
            function=self._spec.function.name,
        ).conform(made)
        answered = both.unique(subset=self._keys, keep="last", maintain_order=True).with_columns(
            pl.lit(True).alias(_FOUND)
        )
        joined = keys.join(answered, on=self._keys, how="left", maintain_order="left")
        return joined.with_columns(pl.col(_FOUND).fill_null(False))

    def _asked_one_by_one(self, keys: pl.DataFrame) -> pl.DataFrame:
        columns = [to_objects(column) for column in keys.get_columns()]
        asked: dict[str, object] = {}
        with user_code(self.context, self._spec.function.name, lambda: asked):
            rows = self._call(list(zip(*columns, strict=True)), asked)
        found = np.array([row is not None for row in rows], np.bool_)
        given = self._rows.frame(self._rows.columns([row for row in rows if row is not None]))
        position = pl.Series(np.where(found, np.cumsum(found) - 1, -1)).replace(-1, None)
        values = given.select(pl.col(name).gather(position) for name in self._made)
        return keys.hstack(values).hstack([pl.Series(_FOUND, found)])

    def _call(self, keys: Sequence[tuple[Any, ...]], asked: dict[str, object]) -> list[Any]:
        """What the function says for each key; `asked` tells which it was if it raises."""
        if self._threads is None:
            return asyncio.run(self._gather(keys, asked))
        calls = [self._threads.submit(self._function, *key) for key in keys]
        results = []
        try:
            for key, call in zip(keys, calls, strict=True):
                asked.update(zip(self._keys, key, strict=True))
                results.append(call.result())
        finally:
            for call in calls:
                call.cancel()
        return results

    async def _gather(self, keys: Sequence[tuple[Any, ...]], asked: dict[str, object]) -> list[Any]:
        room = asyncio.Semaphore(self._spec.capacity)

        async def one(key: tuple[Any, ...]) -> Any:
            async with room:
                try:
                    return await self._function(*key)
                except BaseException:
                    asked.update(zip(self._keys, key, strict=True))
                    raise

        async with asyncio.TaskGroup() as tasks:
            calls = [tasks.create_task(one(key)) for key in keys]
        return [call.result() for call in calls]

    def _emit(self, left: pl.DataFrame, found: pl.DataFrame) -> None:
        columns = [
            (left.get_column(column.left) if column.left is not None else found.get_column(column.right or "")).alias(
                column.name
            )
            for column in self._spec.columns
        ]
        self.output.emit(pl.DataFrame(columns))

    def _forget(self) -> None:
        """The answers that were given last are kept."""
        if len(self._cache) > self._spec.cache_rows:
            self._cache.keep_latest(self._spec.cache_rows // 2)

    def close(self) -> None:
        """End the threads, without waiting for what they do."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
