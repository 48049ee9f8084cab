"""Schemas from whatever a user already has: a dataclass, a TypedDict, a pydantic model, Arrow, Polars, a file."""

import dataclasses
import typing
from pathlib import Path
from typing import Any

import polars as pl

from penstock.connectors.declared import declared_schema
from penstock.model import schemas
from penstock.model.errors import UserError

_FILES = "a .parquet, .arrow, .ipc, .feather, .csv, .jsonl or .ndjson file"


def schema_of(described: Any, *, where: str) -> pl.Schema:
    """The columns that `described` stands for."""
    if isinstance(described, str | Path):
        schema = _file_schema(Path(described), where)
    else:
        try:
            schema = declared_schema(described)
        except UserError as error:
            raise UserError("P022", error.what, where=where, fix=f"{error.fix}; or the path of {_FILES}") from None
        except NameError as error:
            raise UserError(
                "P022",
                f"{getattr(described, '__name__', described)}: {error}",
                where=where,
                fix="define the types of its fields at the top level of the module",
            ) from None
    if not schema:
        raise UserError("P022", f"the schema {described!r} has no columns", where=where)
    schemas.fields(schema)  # every type has a text form, or the user is told now
    return schema


def is_row_type(kind: object) -> bool:
    """True for classes whose fields are columns. Pydantic is recognised by its looks, and never imported."""
    return isinstance(kind, type) and (
        dataclasses.is_dataclass(kind) or typing.is_typeddict(kind) or hasattr(kind, "model_fields")
    )


def _file_schema(path: Path, where: str) -> pl.Schema:
    if not path.is_file():
        raise UserError("P022", f"{path}: no such file to take a schema from", where=where, fix=f"give {_FILES}")
    match path.suffix:
        case ".parquet":
            return pl.Schema(pl.read_parquet_schema(path))
        case ".arrow" | ".ipc" | ".feather":
            return pl.Schema(pl.read_ipc_schema(path))
        case ".csv":
            return pl.scan_csv(path, try_parse_dates=True).collect_schema()
        case ".jsonl" | ".ndjson":
            return pl.scan_ndjson(path).collect_schema()
    raise UserError("P022", f"{path}: no schema can be taken from it", where=where, fix=f"give {_FILES}")
