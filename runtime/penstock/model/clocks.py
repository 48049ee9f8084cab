"""Time as a port. Nothing below `cli` reads the machine's clock by itself."""

import time
from typing import Protocol

MIN_WATERMARK = -(2**63)
"""Nothing is known about event time yet."""

MAX_WATERMARK = 2**63 - 1
"""Event time has ended: every window fires, every event-time timer runs."""


class Clock(Protocol):
    """What the engine may know about time."""

    def now_us(self) -> int:
        """Microseconds since 1970, UTC: ingestion time, processing time, display. May jump."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start: time-outs and durations. Never goes back."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now_us(self) -> int:
        """Wall-clock microseconds."""
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        """Seconds since the machine started, or so."""
        return time.monotonic()
