"""Questions and answers as texts: what goes over REST and comes from a command line."""

import base64
import json
from collections.abc import Sequence
from typing import Any

import polars as pl

from penstock.model.errors import UserError
from penstock.model.views import StateView
from penstock.queries.reading import CheckpointState


def key_of(state: CheckpointState, name: str, texts: Sequence[str]) -> list[Any]:
    """The values of a key that somebody has typed."""
    types = state.key_types(name)
    columns = zip(texts, state.key_columns(name), types, strict=False)
    return [_value(text, column, dtype) for text, column, dtype in columns] + list(texts[len(types) :])


def answer(state: CheckpointState, name: str, rows: pl.DataFrame, now_us: int) -> StateView:
    """Rows as JSON, stamped with the checkpoint and its age."""
    binary = [column for column, dtype in rows.schema.items() if dtype == pl.Binary]
    shown = rows.with_columns(pl.col(binary).map_elements(_base64, return_dtype=pl.String)) if binary else rows
    return StateView(
        state=name,
        checkpoint=state.checkpoint,
        taken_us=state.taken_us,
        age_us=max(0, now_us - state.taken_us),
        columns={column: str(dtype) for column, dtype in rows.schema.items()},
        rows=tuple(json.loads(shown.write_json())) if rows.height else (),
    )


def _value(text: str, column: str, dtype: pl.DataType) -> Any:
    if dtype == pl.Boolean:
        if text in ("true", "false"):
            return text == "true"
    else:
        try:
            return pl.Series([text]).cast(dtype).item()
        except pl.exceptions.PolarsError:
            pass
    raise UserError("S031", f'"{text}" is no {dtype}, which the key column {column} is', fix="write it as JSON would")


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()
