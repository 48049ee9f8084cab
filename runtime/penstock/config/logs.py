"""Logs of the processes: one line per event, the message constant, its facts as key=value behind it."""

import logging
import sys
from collections.abc import Mapping, MutableMapping
from datetime import UTC, datetime
from typing import Any, TextIO

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
_QUIET = ("grpc", "uvicorn", "asyncio")


class FactsFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.000Z INFO message key=value key="two words"`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and the traceback below it when there is one."""
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        parts = [moment.removesuffix("+00:00") + "Z", record.levelname, record.getMessage()]
        parts += [f"{key}={_fact(value)}" for key, value in vars(record).items() if key not in _PLAIN]
        if record.exc_info:
            parts.append("\n" + self.formatException(record.exc_info))
        return " ".join(parts)


class BoundLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds the same facts to each line."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Facts of the call come after those that are bound, and win."""
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


def loggable(facts: Mapping[str, object]) -> dict[str, object]:
    """Facts under names that `logging` does not keep for itself."""
    return {f"{key}_" if key in _PLAIN else key: value for key, value in facts.items()}


def configure_logging(*, level: str = "INFO", stream: TextIO | None = None) -> None:
    """Set up the root logger of a process; called once, by whoever owns the process."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(FactsFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def _fact(value: object) -> str:
    text = str(value)
    if text and not any(character.isspace() or character in '"=' for character in text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
