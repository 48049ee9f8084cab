"""Functions over the aggregates of windows: `window(...).apply(function, of={"bids": ps.count()}, output=...)`."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl

from penstock.api import functions, row_types
from penstock.api.building import Options
from penstock.model import schemas, specs
from penstock.model.errors import UserError

if TYPE_CHECKING:
    from penstock.api.streams import DataStream
    from penstock.api.windowed import WindowedStream


def add(
    window: "WindowedStream",
    aggregated: "DataStream",
    function: Callable[..., pl.DataFrame],
    output: Any,
    options: Options,
    *,
    where: str,
) -> "DataStream":
    """The function behind the window whose results are `aggregated`."""
    called = functions.per_batch(function, name=options.name or options.uid or "apply", where=where)
    made = row_types.schema_of(output, where=where)
    schema = window._key_and_window_columns(where)
    if taken := [column for column in made if column in schema]:
        raise UserError(
            "P020",
            f'apply: the result has a column "{taken[0]}" already',
            where=where,
            fix="results have the keys and the window's start and end in front: choose other names",
        )
    schema |= made
    spec = specs.ApplyResults(
        keys=window._keys, function=called, made=schemas.fields(made), output=schemas.fields(schema)
    )
    sides = {name: replace(side, source=aggregated._uid) for name, side in window._sides.items()}
    alone = Options(parallelism=options.parallelism if window._keys else 1)
    return aggregated._add(
        "apply",
        spec,
        pl.Schema(schema),
        alone,
        where=where,
        default_name=called.name,
        sides=sides,
        takes_changes=True,
    )
