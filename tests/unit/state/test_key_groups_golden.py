"""Every vector that Spark computed, alone and in bulk."""

import itertools
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from penstock.state.spark_hash import xxhash64

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "spark_xxhash64_golden.json").read_text())
VECTORS = GOLDEN["vectors"]

TYPES: dict[str, pl.DataType] = {
    "boolean": pl.Boolean(),
    "tinyint": pl.Int8(),
    "smallint": pl.Int16(),
    "int": pl.Int32(),
    "bigint": pl.Int64(),
    "float": pl.Float32(),
    "double": pl.Float64(),
    "string": pl.String(),
    "binary": pl.Binary(),
    "date": pl.Date(),
    "timestamp": pl.Datetime("us", "UTC"),
    "timestamp_ntz": pl.Datetime("us"),
    "decimal(18,2)": pl.Decimal(18, 2),
    "decimal(38,4)": pl.Decimal(38, 4),
}


def value(kind: str, text: Any) -> Any:
    if text is None:
        return None
    match kind:
        case "float":
            return np.array([int(text["bits"], 16)], np.uint32).view(np.float32)[0]
        case "double":
            return np.array([int(text["bits"], 16)], np.uint64).view(np.float64)[0]
        case "binary":
            return bytes.fromhex(text["hex"])
        case "date":
            return date.fromisoformat(text)
        case "timestamp":
            return datetime.fromisoformat(text).astimezone(UTC)
        case "timestamp_ntz":
            return datetime.fromisoformat(text)
        case _ if kind.startswith("decimal"):
            return Decimal(text)
    return text


def columns(types: list[str], rows: list[list[Any]]) -> list[pl.Series]:
    return [
        pl.Series([value(kind, row[position]) for row in rows], dtype=TYPES[kind], strict=True)
        for position, kind in enumerate(types)
    ]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: "-".join(vector["types"]))
def test_a_single_row_hashes_as_spark_hashes_it(vector: dict[str, Any]) -> None:
    hashed = xxhash64(columns(vector["types"], [vector["values"]]), seed=GOLDEN["seed"])
    assert hashed.tolist() == [vector["hash"]]


@pytest.mark.parametrize(
    ("types", "vectors"),
    [
        (types, list(vectors))
        for types, vectors in itertools.groupby(
            sorted(VECTORS, key=lambda vector: vector["types"]), key=lambda vector: vector["types"]
        )
    ],
    ids=lambda argument: "-".join(argument) if isinstance(argument[0], str) else "",
)
def test_rows_across_blocks_and_chunks_hash_as_each_does_alone(types: list[str], vectors: list[Any]) -> None:
    repeats = 40_000 // len(vectors)
    once = columns(types, [vector["values"] for vector in vectors])
    many = [pl.concat([column] * repeats, rechunk=False) for column in once]
    sliced = [column.slice(1, len(column) - 2) for column in many]
    expected = np.tile([vector["hash"] for vector in vectors], repeats)
    assert np.array_equal(xxhash64(many), expected)
    assert np.array_equal(xxhash64(sliced), expected[1:-1])


def test_a_string_hashes_the_same_as_first_and_as_later_column() -> None:
    strings = [vector for vector in VECTORS if vector["types"] == ["string"]]
    column = pl.Series([vector["values"][0] for vector in strings], dtype=pl.String)
    nothing = pl.Series([None] * len(column), dtype=pl.Int64)
    assert xxhash64([nothing, column]).tolist() == [vector["hash"] for vector in strings]
