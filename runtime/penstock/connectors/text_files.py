"""Files of text rows (CSV, JSON lines): byte ranges, whole rows, and what happens to a bad one.

The position is the byte offset of the next row. A block of whole rows is cut out by its line ends and parsed
by one vectorised call; only when that fails is the block halved until the bad row stands alone.
"""

from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import numpy as np
import polars as pl
import pyarrow as pa

from penstock.connectors import base
from penstock.connectors.places import Place, RandomAccess
from penstock.model.errors import RecordError

COMPRESSED = (".gz", ".zst", ".bz2")
MAX_ROW_BYTES = 16 * 1024 * 1024
"""A longer row is an error: most often a quote that is never closed, or not a text file."""

FIRST_BLOCK_BYTES = 256 * 1024
SHOWN_BYTES = 80
"""How much of a bad row an error shows."""

Offsets = np.ndarray[Any, np.dtype[np.int64]]
RowEnds = Callable[[bytes], Offsets]
"""The offsets right after each row of a block that ends in it."""


UNREADABLE = (pl.exceptions.PolarsError, pl.exceptions.PanicException)
"""What parsing bad text raises. Some rows, such as a quote alone, make the CSV parser panic."""


class ParseError(Exception):
    """Rows of a block that cannot be parsed; the text says why, for people."""

    def __init__(self, code: str, why: str) -> None:
        super().__init__(why)
        self.code = code


class Parser(Protocol):
    """One format's part of reading."""

    def parse(self, block: bytes) -> pl.DataFrame:
        """Whole rows as a frame; one of UNREADABLE when any of them is bad."""
        ...

    def explain(self, row: bytes) -> ParseError:
        """Why one row cannot be parsed."""
        ...


class CompressedFile:
    """A compressed file, read forwards only; offsets are those of the text inside."""

    def __init__(self, path: str, place: Place) -> None:
        file, codec = place.file(path), pa.Codec.detect(path).name
        # Of a file of Python's kind Arrow does not see the name.
        self._stream = pa.input_stream(file, compression=codec)
        self._window, self._window_start = b"", 0

    def read_at(self, offset: int, size: int) -> bytes:
        """`offset` never goes back."""
        while self._window_start + len(self._window) < offset + size:
            keep = self._window[max(0, offset - self._window_start) :]
            self._window_start += len(self._window) - len(keep)
            more = self._stream.read(max(FIRST_BLOCK_BYTES, size - len(keep)))
            self._window = keep + more
            if not more:
                break
        return self._window[max(0, offset - self._window_start) :][:size]

    def close(self) -> None:
        """Release the file."""
        self._stream.close()


def open_bytes(path: str, place: Place) -> RandomAccess:
    """The text of a file, compressed or not."""
    return CompressedFile(path, place) if path.endswith(COMPRESSED) else place.open(path)


def line_ends(block: bytes) -> Offsets:
    """Rows end at every newline."""
    return np.flatnonzero(np.frombuffer(block, dtype=np.uint8) == 0x0A) + 1


class TextReader:
    """Reads the rows that start in the range of one split."""

    def __init__(
        self,
        split: base.Split,
        position: dict[str, Any] | None,
        context: base.SourceContext,
        parser: Parser,
        row_ends: RowEnds,
        place: Place,
        header_bytes: int = 0,
    ) -> None:
        self._path: str = split.options["path"]
        self._files = place
        self._drop_bad = context.settings.on_bad_record == "drop"
        self._place = context.place
        self._parser, self._row_ends = parser, row_ends
        self._bytes = open_bytes(self._path, place)
        compressed = self._path.endswith(COMPRESSED)
        self._end: float = float("inf") if compressed else split.options["start"] + split.options["length"]
        self._block_bytes = FIRST_BLOCK_BYTES
        self._bad_rows = 0
        if position is not None:
            self._offset: int = position["offset"]
        elif split.options["start"] == 0:
            self._offset = header_bytes
        else:
            self._offset = max(header_bytes, self._after_line(split.options["start"] - 1))

    def read(self, max_rows: int) -> base.ReadResult:
        """The next whole rows."""
        self._bad_rows = 0
        block, ends = self._next_block(max_rows)
        frames = self._parse(block, ends, self._offset) if block else []
        self._offset += len(block)
        frame = pl.concat(frames, rechunk=True) if len(frames) > 1 else frames[0] if frames else None
        return base.ReadResult(
            frame=frame if frame is not None and frame.height else None,
            ended=not block,
            bad_rows=self._bad_rows,
        )

    def position(self) -> dict[str, Any]:
        """Byte offset of the next row."""
        return {"offset": self._offset}

    def close(self) -> None:
        """Release the file."""
        self._bytes.close()

    def _next_block(self, max_rows: int) -> tuple[bytes, Offsets]:
        """Up to `max_rows` rows that start before the end of the split, and where each of them ends."""
        size = self._block_bytes
        nothing = np.empty(0, dtype=np.int64)
        while self._offset < self._end:
            data = self._bytes.read_at(self._offset, size)
            if not data:
                break
            ends = self._row_ends(data)
            if len(data) < size and (not len(ends) or ends[-1] < len(data)):
                ends = np.append(ends, len(data))  # the last row of the file needs no newline
            if len(ends) and ends[0] <= MAX_ROW_BYTES:
                return self._cut(data, ends, max_rows)
            if len(ends) or len(data) > MAX_ROW_BYTES:
                self._skip_long_row()
            else:
                size *= 4
        return b"", nothing

    def _cut(self, data: bytes, ends: Offsets, max_rows: int) -> tuple[bytes, Offsets]:
        starts = np.concatenate(([0], ends[:-1]))
        count = min(max_rows, len(ends), int(np.searchsorted(starts, self._end - self._offset)))
        if len(data) > MAX_ROW_BYTES and (longest := ends[:count] - starts[:count]).max() > MAX_ROW_BYTES:
            count = int(np.argmax(longest > MAX_ROW_BYTES))  # it stands at the front of the next block
        until = int(ends[count - 1])
        self._block_bytes = max(FIRST_BLOCK_BYTES, min(2 * MAX_ROW_BYTES, until // count * (max_rows + max_rows // 8)))
        return data[:until], ends[:count]

    def _skip_long_row(self) -> None:
        """Past a row that is too long to be one, if that is allowed."""
        if not self._drop_bad:
            raise RecordError(
                "R002",
                f"row exceeds {MAX_ROW_BYTES // 1024 // 1024} MiB",
                where=self._where(self._offset),
                fix='cut it up, close its quotes, or flow.configure({"source.on_bad_record": "drop"})',
            )
        self._bad_rows += 1
        self._offset = self._after_line(self._offset + MAX_ROW_BYTES)

    def _after_line(self, offset: int) -> int:
        """Where the line that covers `offset` is over."""
        while data := self._bytes.read_at(offset, FIRST_BLOCK_BYTES):
            newline = data.find(b"\n")
            if newline >= 0:
                return offset + newline + 1
            offset += len(data)
        return offset

    def _parse(self, block: bytes, ends: Offsets, offset: int) -> list[pl.DataFrame]:
        """The frames of a block: one, unless it holds bad rows."""
        try:
            return [self._parser.parse(block)]
        except UNREADABLE:
            if len(ends) == 1 and not self._drop_bad:
                self._raise(block, offset)
            if len(ends) == 1:
                self._bad_rows += 1
                return []
        half = len(ends) // 2
        middle = int(ends[half - 1])
        return [
            *self._parse(block[:middle], ends[:half], offset),
            *self._parse(block[middle:], ends[half:] - middle, offset + middle),
        ]

    def _raise(self, row: bytes, offset: int) -> NoReturn:
        reason = self._parser.explain(row)
        text = row.rstrip(b"\r\n").decode(errors="replace")
        shown = text if len(text) <= SHOWN_BYTES else f"{text[:SHOWN_BYTES]}... ({len(row)} bytes)"
        raise RecordError(
            reason.code,
            f"{reason}: {shown}",
            where=self._where(offset),
            fix='correct the row, change the schema, or flow.configure({"source.on_bad_record": "drop"})',
        )

    def _where(self, offset: int) -> str:
        """Place of a row, for people: they look for it by line number."""
        lines, at = 1, 0
        content = open_bytes(self._path, self._files)
        try:
            while at < offset and (data := content.read_at(at, min(FIRST_BLOCK_BYTES, offset - at))):
                lines += data.count(b"\n")
                at += len(data)
        finally:
            content.close()
        return f"{self._place} {self._path}:{lines} (byte {offset})"


def first_rows(path: str, row_ends: RowEnds, place: Place) -> bytes:
    """The beginning of a file, up to the end of a row: enough to guess its columns."""
    content = open_bytes(path, place)
    try:
        data = content.read_at(0, MAX_ROW_BYTES // 4)
        if len(data) < MAX_ROW_BYTES // 4:
            return data
        ends = row_ends(data)
        return data[: int(ends[-1])] if len(ends) else data
    finally:
        content.close()
