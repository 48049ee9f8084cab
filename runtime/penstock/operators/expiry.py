"""When state has lived long enough: by the time of rows and the watermark, or by the clock.

State that was written at `t` has expired when the watermark (without event time: the clock) has reached `t + ttl`, and
is not seen from then on, whether it is still held or not.
"""

import numpy as np
import numpy.typing as npt
import polars as pl

from penstock.model.clocks import Clock
from penstock.model.specs import TimeToLive
from penstock.operators.panes import event_times
from penstock.state.tables import NEVER

_SWEEPS = 8
"""State is looked through this often in the time it lives: what is held too long is an eighth at most."""


class Expiry:
    """The time to live of one operator's state; without one nothing expires."""

    def __init__(self, ttl: TimeToLive | None, clock: Clock, uid: str) -> None:
        self._ttl, self._clock, self._uid = ttl, clock, uid
        self._watermark = NEVER
        self._swept = NEVER

    @property
    def expired(self) -> int:
        """What was written up to here has expired."""
        if self._ttl is None:
            return NEVER
        now = self._watermark if self._ttl.event_time is not None else self._clock.now_us()
        return max(NEVER, now - self._ttl.us)

    def written(self, frame: pl.DataFrame) -> npt.NDArray[np.int64]:
        """The time at which the state of these rows is written."""
        if self._ttl is None:
            return np.zeros(frame.height, np.int64)
        if self._ttl.event_time is None:
            return np.full(frame.height, self._clock.now_us(), np.int64)
        return event_times(frame, self._ttl.event_time, self._uid)

    def on_watermark(self, watermark: int) -> None:
        """Event time has come this far."""
        self._watermark = max(self._watermark, watermark)

    def sweep(self) -> int | None:
        """What to forget now, if it is time to: all that was written up to this."""
        if self._ttl is None or (expired := self.expired) <= self._swept + self._ttl.us // _SWEEPS:
            return None
        self._swept = expired
        return expired
