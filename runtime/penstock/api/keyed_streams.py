"""Keyed streams: what can be done with rows that meet by key."""

from penstock.api import places, windowed
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
