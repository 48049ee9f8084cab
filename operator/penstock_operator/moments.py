"""Times and durations as texts of the API: RFC 3339 to the second, and `5m`."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds_of(duration: str) -> float:
    """Of `500ms`, `30s`, `5m`, `6h`, `7d`; ValueError for anything else."""
    match = re.fullmatch(r"(\d+)(ms|s|m|h|d)", duration)
    if match is None:
        raise ValueError(f'"{duration}" is not a duration: write a whole number and a unit, such as 30s or 5m')
    return int(match[1]) * _UNITS[match[2]]


def text_of(moment: datetime) -> str:
    """As the API writes it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def moment_of(text: str) -> datetime:
    """What `text_of` wrote."""
    return datetime.fromisoformat(text)


def utc_now() -> datetime:
    """The clock of the controller; everything else is given its time."""
    return datetime.now(UTC)  # noqa: TID251


def from_us(micros: int) -> datetime:
    """Of a time of the engine."""
    return datetime.fromtimestamp(micros / 1e6, UTC)


def elapsed(since: str, now: datetime) -> float:
    """Seconds."""
    return (now - moment_of(since)) / timedelta(seconds=1)
