"""CSV as a source. Columns are found by their names in the header.

Quoted values may hold newlines. A reader that begins at the start of a file sees which newlines are quoted;
one that begins in the middle cannot, so files are cut only when the user says that no value holds a newline
(`splittable=True`).
"""

from typing import Any

import numpy as np
import polars as pl

from penstock.connectors import base, text_files
from penstock.connectors.files import selected
from penstock.connectors.places import Place, place_of
from penstock.model.errors import RecordError
from penstock.model.schemas import type_to_text


class CsvFormat:
    """CSV files."""

    suffixes: tuple[str, ...] = tuple(
        f"{suffix}{compression}" for suffix in (".csv", ".tsv") for compression in ("", *text_files.COMPRESSED)
    )

    def splittable(self, path: str, options: dict[str, Any]) -> bool:
        """Only when promised, and not compressed."""
        return bool(options.get("splittable")) and not path.endswith(text_files.COMPRESSED)

    def infer(self, path: str, options: dict[str, Any]) -> pl.Schema:
        """From the first rows; a column that is empty there is text."""
        try:
            rows = pl.read_csv(
                text_files.first_rows(path, row_ends, place_of(options["path"])),
                has_header=not options.get("no_header"),
                separator=options.get("separator", ","),
                infer_schema_length=None,
                try_parse_dates=True,
            )
        except text_files.UNREADABLE as error:
            raise RecordError(
                "R001", f"cannot find the columns of {path}: {error}", fix="correct the file, or pass schema="
            ) from error
        return rows.schema

    def open(
        self,
        split: base.Split,
        position: dict[str, Any] | None,
        schema: pl.Schema,
        options: dict[str, Any],
        context: base.SourceContext,
    ) -> base.SplitReader:
        """Position: byte offset of the next row."""
        separator, place = options.get("separator", ","), place_of(options["path"])
        header_bytes, names = 0, list(schema)
        if not options.get("no_header"):
            header_bytes, names = _read_header(split.options["path"], separator, place)
            _check_header(split.options["path"], names, schema, context.place)
        parser = CsvParser(names, selected(schema, context.columns), separator)
        ends = text_files.line_ends if options.get("splittable") else row_ends
        return text_files.TextReader(split, position, context, parser, ends, place, header_bytes)


class CsvParser:
    """Rows of CSV without a header."""

    def __init__(self, names: list[str], wanted: pl.Schema, separator: str) -> None:
        # Columns that nobody asked for are still counted, and must not be parsed as anything but text.
        self._all = {name: wanted.get(name, pl.String()) for name in names}
        self._wanted = wanted
        self._indices = [names.index(name) for name in wanted]
        self._separator = separator

    def parse(self, block: bytes) -> pl.DataFrame:
        """All rows at once, in the columns that are wanted."""
        return self._read(block, self._all, self._indices)

    def explain(self, row: bytes) -> text_files.ParseError:
        """The first value that is not what its column holds, or a broken row."""
        try:
            texts = self._read(row, dict.fromkeys(self._all, pl.String()), self._indices)
        except text_files.UNREADABLE:
            return text_files.ParseError("R001", f"not a row of {len(self._all)} values, expected {self._form()}")
        for (name, kind), index in zip(self._wanted.items(), self._indices, strict=True):
            try:
                self._read(row, {**dict.fromkeys(self._all, pl.String()), name: kind}, [index])
            except text_files.UNREADABLE:
                seen = texts[name].item()
                return text_files.ParseError("R001", f"{name} is {seen!r}, expected {type_to_text(kind)}")
        return text_files.ParseError("R001", f"the row cannot be read, expected {self._form()}")

    def _read(self, block: bytes, schema: dict[str, pl.DataType], indices: list[int]) -> pl.DataFrame:
        return pl.read_csv(block, has_header=False, schema=schema, columns=indices, separator=self._separator)

    def _form(self) -> str:
        return self._separator.join(self._all)


def row_ends(block: bytes) -> text_files.Offsets:
    """Rows end at newlines that stand after an even number of quotes."""
    ends = text_files.line_ends(block)
    if b'"' not in block:
        return ends
    quotes = np.flatnonzero(np.frombuffer(block, dtype=np.uint8) == 0x22)
    outside = np.searchsorted(quotes, ends) % 2 == 0
    return np.compress(outside, ends)


def _read_header(path: str, separator: str, place: Place) -> tuple[int, list[str]]:
    """Length of the first row, and the names in it."""
    start = text_files.first_rows(path, row_ends, place)
    ends = row_ends(start)
    length = int(ends[0]) if len(ends) else len(start)
    if not start[:length].strip():
        return length, []
    header = pl.read_csv(start[:length], has_header=True, separator=separator, infer_schema=False)
    return length, header.columns


def _check_header(path: str, names: list[str], expected: pl.Schema, place: str) -> None:
    for name, kind in expected.items():
        if name not in names:
            raise RecordError(
                "R003",
                f"field {name}: {type_to_text(kind)} -> missing at {path}; its header has {', '.join(names)}",
                where=place,
                fix="give all files the same header, or pass header=False if there is none",
            )
