"""A method of a function, called with rows that every subtask gets.

Owns: that broadcast state is written here and nowhere else, what may be done with keyed state (all keys at once, or
none), and who tells of a row that fails: it fails everywhere alike, so the first subtask does.
"""

from collections.abc import Callable
from typing import Any

import polars as pl

from penstock.model import specs
from penstock.operators.contexts import NO_KEY, KeyedContext
from penstock.operators.failures import Failures
from penstock.operators.function_calls import FunctionCalls
from penstock.operators.loops import Loop
from penstock.operators.record_calls import make_calls


class BroadcastCalls:
    """Like RecordCalls or BatchCalls, for rows that have no key."""

    def __init__(
        self, calls: FunctionCalls, method: Callable[..., Any], input_: specs.ProcessInput, on_error: str
    ) -> None:
        self._calls = calls
        failures = Failures(on_error, calls.operator, calls.output, tells=self._tells)
        self._rows = make_calls(calls, method, input_, failures=failures)
        self._going_over_keys = False
        """Still set when something fails on the way: that one key has failed, in this subtask alone."""

    def run(self, frame: pl.DataFrame) -> None:
        """Call the method, and emit what it returned."""
        calls, context = self._calls, self._calls.context
        keyed = context if isinstance(context, KeyedContext) else None
        with calls.without_key():
            calls.operator_states.let_broadcast(True)
            if keyed is not None:
                keyed._each_key = self._for_each_key
            try:
                self._rows.run(frame)
            finally:
                calls.operator_states.let_broadcast(False)
                if keyed is not None:
                    keyed._each_key = None

    def _tells(self) -> bool:
        of_a_key, self._going_over_keys = self._going_over_keys, False
        return of_a_key or self._calls.operator.subtask.index == 0

    def _for_each_key(self, state: Any, function: Callable[..., Any]) -> None:
        calls, context = self._calls, self._calls.context
        table = calls.states.table_of(state)
        loop = Loop(function, "context", (), calls.states.loaded, calls.rows)
        self._going_over_keys = True
        context.has_key = True
        calls.operator_states.let_broadcast(False)
        try:
            for keys in table.held_keys(calls.operator.groups):
                calls.begin()
                calls.states.prepare(keys)
                made = calls.rows.empty()
                try:
                    loop.run(context, filter(table.is_alive, keys), made)
                finally:
                    calls.emit(calls.rows.frame(made))
        finally:
            context.key, context.has_key = NO_KEY, False
            calls.states.unload()
            calls.operator_states.let_broadcast(True)
        self._going_over_keys = False
