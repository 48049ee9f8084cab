"""The declared states of one keyed function in one subtask.

Owns: the table behind each state, and the time by which states expire.
Does not own: what users see of a state (operators.user_states), how values are kept (state.values).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl

from penstock.model.errors import UserError
from penstock.operators.base import OperatorContext
from penstock.operators.contexts import KeyedContext
from penstock.operators.loops import BoundState
from penstock.operators.user_errors import place
from penstock.operators.user_functions import KeyedFunction, declared_states, state_type
from penstock.operators.user_states import State, ValueState
from penstock.state.keys import KeyCodec
from penstock.state.values import MakeTable, ValueTable


def no_time() -> int | None:
    """The time of rows that have none."""
    return None


class KeyedStates:
    """Binds the states of a function, and takes care of them between calls."""

    def __init__(
        self, function: KeyedFunction, keys: KeyCodec, *, operator: OperatorContext, context: KeyedContext
    ) -> None:
        self._function, self._keys, self._operator, self._context = function, keys, operator, context
        self.row_time: Callable[[], int | None] = no_time
        """Event time of what the function is called with, set in front of the calls."""
        self.expire_by_event_time = False
        self.tables: list[ValueTable] = []
        self.loaded: list[BoundState] = []
        """Those that the loop loads and stores."""
        for name, declared in declared_states(function).items():
            self._bind(name, declared)

    def _bind(self, name: str, declared: State[Any]) -> None:
        where = place(self._operator)
        by_event_time = declared.ttl is not None and declared.ttl.event_time
        self.expire_by_event_time = self.expire_by_event_time or by_event_time
        table = ValueTable(
            name,
            state_type(name, declared, where=where),
            declared.default,
            self._keys,
            max_parallelism=self._operator.max_parallelism,
            where=where,
            ttl=declared.ttl,
            now=self._event_time if by_event_time else self._operator.clock.now_us,
        )
        handle = declared.bind(table, self._context)
        setattr(self._function, name, handle)
        self.tables.append(table)
        if isinstance(handle, ValueState) and handle.is_loaded:
            self.loaded.append(BoundState(handle, table))

    def _event_time(self) -> int:
        """Of the row that asks, or the watermark where that is later."""
        time = self.row_time()
        return self._context.watermark if time is None else max(time, self._context.watermark)

    # ------------------------------------------------------------ around calls

    def begin(self) -> None:
        """Before calls: put together what finished snapshots kept apart, forget some of what has expired."""
        self.row_time = no_time  # what a later, older row may still see is not swept
        for table in self.tables:
            table.values.merge()
            table.sweep()

    def count(self) -> None:
        """After calls: how much state there is."""
        fronts = [table.values.front for table in self.tables]
        if all(front.below is None for front in fronts):  # else the number is known when the layers are merged
            self._operator.counters.state_rows = sum(map(len, fronts))

    # ------------------------------------------------------------ snapshot and restore

    def snapshot(self) -> list[tuple[str, MakeTable]]:
        """Freeze all states."""
        self.row_time = no_time
        return [(table.name, table.snapshot()) for table in self.tables]

    def restore(self, sections: Mapping[str, Sequence[pl.DataFrame]]) -> None:
        """Take up what earlier subtasks left."""
        tables = {table.name: table for table in self.tables}
        for name, frames in sections.items():
            if name not in tables:
                function = type(self._function).__name__
                raise UserError(
                    "S004",
                    f'the checkpoint has state "{name}", which {function} does not declare any more',
                    where=place(self._operator),
                    fix=f"declare it again: {name} = ValueState(...)",
                )
            for frame in frames:
                tables[name].restore(frame)
