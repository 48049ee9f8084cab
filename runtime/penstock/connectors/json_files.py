"""JSON lines as a source: one object per line, fields by name; a missing field is null, others are ignored."""

import json
from typing import Any

import polars as pl

from penstock.connectors import base, text_files
from penstock.connectors.files import selected
from penstock.connectors.places import place_of
from penstock.model.errors import RecordError
from penstock.model.schemas import type_to_text


class JsonFormat:
    """JSON lines files."""

    suffixes: tuple[str, ...] = tuple(
        f"{suffix}{compression}"
        for suffix in (".jsonl", ".ndjson", ".json")
        for compression in ("", *text_files.COMPRESSED)
    )

    def splittable(self, path: str, options: dict[str, Any]) -> bool:
        """Unless compressed: JSON writes a newline inside a string as an escape."""
        return not path.endswith(text_files.COMPRESSED)

    def infer(self, path: str, options: dict[str, Any]) -> pl.Schema:
        """From the first rows; a column that is always null there is text."""
        try:
            start = text_files.first_rows(path, text_files.line_ends, place_of(options["path"]))
            rows = pl.read_ndjson(start, infer_schema_length=None)
        except text_files.UNREADABLE as error:
            raise RecordError(
                "R001", f"cannot find the columns of {path}: {error}", fix="correct the file, or pass schema="
            ) from error
        return pl.Schema({name: pl.String() if kind == pl.Null else kind for name, kind in rows.schema.items()})

    def open(
        self,
        split: base.Split,
        position: dict[str, Any] | None,
        schema: pl.Schema,
        options: dict[str, Any],
        context: base.SourceContext,
    ) -> base.SplitReader:
        """Position: byte offset of the next line."""
        parser = JsonParser(selected(schema, context.columns))
        return text_files.TextReader(split, position, context, parser, text_files.line_ends, place_of(options["path"]))


class JsonParser:
    """Lines of JSON objects."""

    def __init__(self, schema: pl.Schema) -> None:
        self._schema = schema

    def parse(self, block: bytes) -> pl.DataFrame:
        """All lines at once; blank ones are no rows."""
        return pl.read_ndjson(block, schema=self._schema)

    def explain(self, row: bytes) -> text_files.ParseError:
        """A broken line, or a field that has changed its type."""
        try:
            value = json.loads(row)
        except ValueError as error:
            return text_files.ParseError("R001", f"not JSON ({error}), expected an object")
        if not isinstance(value, dict):
            return text_files.ParseError("R001", f"a JSON {_json_type(value)}, expected an object")
        for name, kind in self._schema.items():
            try:
                pl.read_ndjson(row, schema={name: kind})
            except text_files.UNREADABLE:
                return text_files.ParseError(
                    "R003", f"field {name}: {type_to_text(kind)} -> {_json_type(value.get(name))}"
                )
        return text_files.ParseError("R001", "the row cannot be read")


def _json_type(value: Any) -> str:
    """What a JSON value would be as a column."""
    names = {bool: "Boolean", int: "Int64", float: "Float64", str: "String", list: "List", dict: "Struct"}
    return names.get(type(value), "null")
