"""Rows that the program itself holds, as a source: carried inside the job graph as Arrow IPC."""

import base64
import io
from collections.abc import Sequence
from typing import Any

import polars as pl

from penstock.connectors import base
from penstock.connectors.files import selected
from penstock.model.specs import Connector


def encode(rows: pl.DataFrame) -> str:
    """Rows as text that JSON can hold."""
    buffer = io.BytesIO()
    rows.write_ipc(buffer)
    return base64.b64encode(buffer.getvalue()).decode()


def decode(text: str) -> pl.DataFrame:
    """What `encode` wrote."""
    return pl.read_ipc(base64.b64decode(text))


class ItemSource:
    """Task side of `items`: one split, so that the order is kept."""

    sequential = True
    discovers = False

    def __init__(self, connector: Connector) -> None:
        self._rows = decode(connector.options["rows"])
        self._batch_rows: int | None = connector.options["batch_rows"]

    def splits(self) -> Sequence[base.Split]:
        """Just one."""
        return (base.Split(id="items"),)

    def discover(self, seen: frozenset[str], context: base.SourceContext) -> Sequence[base.Split]:
        """Never any."""
        return ()

    def open(
        self, split: base.Split, position: dict[str, Any] | None, context: base.SourceContext
    ) -> base.SplitReader:
        """Position: rows read."""
        rows = self._rows.select(selected(self._rows.schema, context.columns).names())
        return ItemReader(rows, self._batch_rows, position["rows"] if position else 0)


class ItemReader:
    """Slices of the rows."""

    def __init__(self, rows: pl.DataFrame, batch_rows: int | None, start: int) -> None:
        self._rows, self._batch_rows, self._next = rows, batch_rows, start

    def read(self, max_rows: int) -> base.ReadResult:
        """The next rows, not more than `batch_rows` at once."""
        frame = self._rows.slice(self._next, min(max_rows, self._batch_rows or max_rows))
        self._next += frame.height
        return base.ReadResult(frame=frame if frame.height else None, ended=self._next >= self._rows.height)

    def position(self) -> dict[str, Any]:
        """Rows read."""
        return {"rows": self._next}

    def close(self) -> None:
        """Nothing is open."""
