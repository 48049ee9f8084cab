"""Durations as people write them: "10s", "250ms", "1m30s"."""

import re
from datetime import timedelta

from penstock.model.errors import UserError

_MICROS = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "w": 604_800_000_000,
}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|min|s|m|h|d|w)\s*")


def parse_duration(text: str | timedelta | int | float, *, what: str = "duration") -> int:
    """Microseconds of `text`; plain numbers are seconds. Raises a UserError that shows how to write it."""
    if isinstance(text, timedelta):
        return round(text.total_seconds() * 1_000_000)
    if isinstance(text, int | float) and not isinstance(text, bool):
        return round(text * 1_000_000)
    total, position = 0.0, 0
    stripped = str(text).strip()
    while match := _PART.match(stripped, position):
        total += float(match[1]) * _MICROS[match[2]]
        position = match.end()
    if not stripped or position != len(stripped):
        raise UserError(
            "P011",
            f'{what}: cannot read "{text}" as a duration',
            fix='write a number with a unit: "500ms", "10s", "5m", "1h", "1m30s", "2d"',
        )
    return round(total)


def format_duration(micros: int) -> str:
    """The shortest text that `parse_duration` reads back."""
    if micros == 0:
        return "0s"
    for unit in ("d", "h", "m", "s", "ms"):
        if micros % _MICROS[unit] == 0:
            return f"{micros // _MICROS[unit]}{unit}"
    return f"{micros}us"
