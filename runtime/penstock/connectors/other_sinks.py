"""Sinks without phases: print and discard. And how collected rows are read back."""

import sys
from pathlib import Path
from typing import Any

import polars as pl

from penstock.connectors import base
from penstock.model import schemas
from penstock.model.ids import CheckpointId
from penstock.model.specs import Connector, Schema


class OnePhaseSink:
    """What a sink without phases has in common: nothing is staged."""

    def prepare(self, checkpoint: CheckpointId) -> base.Stage | None:
        """Nothing to commit."""
        return None

    def commit(self, committables: list[dict[str, Any]]) -> None:
        """Nothing to make visible."""

    def recover(self, committables: list[dict[str, Any]]) -> None:
        """Nothing to clean up."""

    def close(self) -> None:
        """Nothing is open."""


class DiscardSink(OnePhaseSink):
    """Forgets all rows; with a rate, no faster than that, as a slow system at the other end would be."""

    def __init__(self, connector: Connector, context: base.SinkContext) -> None:
        self._rate: float | None = connector.options.get("rate")
        self._clock = context.clock
        self._ready_at = context.clock.monotonic()

    def write(self, frame: pl.DataFrame) -> None:
        """Forget; the next rows may come when these would have been written."""
        if self._rate is not None:
            self._ready_at = max(self._ready_at, self._clock.monotonic()) + frame.height / self._rate

    def ready_in_us(self) -> int:
        """Until the rows that it has would be written."""
        return max(0, round((self._ready_at - self._clock.monotonic()) * 1_000_000))


class PrintSink(OnePhaseSink):
    """Prints rows as they come, a line each; after a restore, rows since the checkpoint are printed again."""

    def __init__(self, connector: Connector, context: base.SinkContext) -> None:
        self._prefix: str = connector.options["prefix"]
        self._left: int | None = connector.options["limit"]

    def write(self, frame: pl.DataFrame) -> None:
        """One JSON object per row."""
        if self._left is not None:
            frame = frame.head(self._left)
            self._left -= frame.height
        if frame.is_empty():
            return
        lines = frame.write_ndjson()
        if self._prefix:
            lines = self._prefix + lines.removesuffix("\n").replace("\n", f"\n{self._prefix}") + "\n"
        sys.stdout.write(lines)
        sys.stdout.flush()


def read_collected(directory: str | Path, schema: Schema | None = None) -> pl.DataFrame:
    """All committed rows of a `collect` sink: by checkpoint, then by subtask. `schema` is used if there are none."""
    parts = sorted(Path(directory).glob("part-*.arrow"), key=_order)
    if not parts:
        return schemas.empty_frame(schema) if schema is not None else pl.DataFrame()
    return pl.concat([pl.read_ipc(part) for part in parts], rechunk=True)


def _order(part: Path) -> tuple[int, int, int, str]:
    uid, subtask, _attempt, checkpoint, number = part.stem.rsplit("-", 4)
    return int(checkpoint), int(subtask), int(number), uid
