"""Keyed streams: what can be done with rows that meet by key."""

from collections.abc import Mapping
from typing import Any

from penstock.api import function_verbs, places, windowed
from penstock.api.building import Options
from penstock.api.streams import DataStream
from penstock.api.windowed import WindowedStream
from penstock.api.windows import Assigner, Duration
from penstock.model import specs


class KeyedStream(DataStream):
    """A stream whose rows with equal keys meet in one subtask, in the order they came."""

    _partitioning: specs.Hash

    @property
    def keys(self) -> tuple[str, ...]:
        """The key columns."""
        return self._partitioning.keys

    def window(
        self, assigner: Assigner, *, allowed_lateness: Duration = 0, late_to: str | None = None
    ) -> WindowedStream:
        """The rows of each key by time: `ps.tumbling("10s")`, `ps.sliding("10s", every="2s")`, `ps.session("30s")`.

        With `allowed_lateness` a window is kept for that long after its end, and a row that still comes makes it emit
        its results again: the result is then a stream of updates, by key and window. Rows that are later than that
        are counted and dropped; with `late_to="late"` they can be read with `.side_output("late")` of the result.
        """
        return windowed.window(self, self.keys, assigner, allowed_lateness, late_to, where=places.caller())

    def process(
        self,
        function: Any,
        *,
        output: Any = None,
        side_outputs: Mapping[str, Any] | None = None,
        on_error: str = "stop",
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> DataStream:
        """Call a `KeyedProcessFunction`, with state and timers, for each row or each batch.

        `side_outputs={"tag": schema}` declares what the function puts out by `ctx.output("tag", row)`; read it with
        `side_output("tag")`. `on_error`: see `map`; what a row had changed before it raised stays changed, so raise
        first, and change state then.
        """
        options = Options(uid=uid, name=name, parallelism=parallelism)
        return function_verbs.process_keyed(
            self,
            function,
            output,
            options,
            side_outputs=side_outputs,
            on_error=on_error,
            where=places.caller(),
        )
