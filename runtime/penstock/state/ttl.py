"""How long state lives without being used.

A value is alive while the time is before its expiry. Event time is the time of the row that asks, or the watermark
where that is later; a batch counts as one moment, that of its latest row. Expiry never moves back.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from penstock.model.durations import parse_duration
from penstock.model.errors import UserError

Duration = str | timedelta | int | float


@dataclass(frozen=True, slots=True)
class TimeToLive:
    """Made by `ttl`."""

    duration_us: int
    event_time: bool = False
    on_read: bool = False


def ttl(
    duration: Duration,
    *,
    time: Literal["processing", "event"] = "processing",
    update: Literal["write", "read"] = "write",
) -> TimeToLive:
    """State that is forgotten `duration` after it was last written, or with `update="read"` last used.

    By the clock, or with `time="event"` by event time. What has expired is never seen again, and is not part of
    later checkpoints.
    """
    if time not in ("processing", "event") or update not in ("write", "read"):
        raise UserError(
            "P016",
            f"ttl(time={time!r}, update={update!r}) is not known",
            fix='time="processing" or "event", update="write" or "read"',
        )
    microseconds = parse_duration(duration, what="ttl")
    if microseconds <= 0:
        raise UserError("P011", f'ttl: "{duration}" is no time to live', fix='write a positive duration: "1h"')
    return TimeToLive(microseconds, event_time=time == "event", on_read=update == "read")


def as_ttl(given: TimeToLive | Duration | None) -> TimeToLive | None:
    """What `ttl=` was given: None, `ttl(...)`, or a duration by the clock since the last write."""
    return given if given is None or isinstance(given, TimeToLive) else ttl(given)
