"""Schemas from what users already have."""

import dataclasses
import datetime
from pathlib import Path
from typing import Annotated, TypedDict

import polars as pl
import pyarrow as pa
import pydantic
import pytest

from penstock.api.row_types import is_row_type, schema_of
from penstock.model.errors import UserError

EXPECTED = pl.Schema({"auction": pl.Int64, "price": pl.Float64, "ts": pl.Datetime("us"), "tags": pl.List(pl.String)})


@dataclasses.dataclass
class BidClass:
    auction: int
    price: float
    ts: datetime.datetime
    tags: list[str]


class BidDict(TypedDict):
    auction: int
    price: float | None
    ts: datetime.datetime
    tags: list[str]


class BidModel(pydantic.BaseModel):
    auction: int
    price: float | None = None
    ts: datetime.datetime
    tags: list[str]


ARROW = pa.schema(
    [("auction", pa.int64()), ("price", pa.float64()), ("ts", pa.timestamp("us")), ("tags", pa.list_(pa.string()))]
)


@pytest.mark.parametrize("described", [BidClass, BidDict, BidModel, ARROW, EXPECTED, dict(EXPECTED.items())])
def test_a_schema_is_read_from_whatever_describes_rows(described):
    assert schema_of(described, where="here") == EXPECTED


def test_annotated_and_nested_types_have_their_say():
    @dataclasses.dataclass
    class Inner:
        x: Annotated[int, pl.Int16()]

    assert schema_of({"inner": Inner}, where="here") == {"inner": pl.Struct({"x": pl.Int16})}
    assert is_row_type(Inner)
    assert not is_row_type(int)
    assert not is_row_type(Inner(1))


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "csv", "jsonl"])
def test_a_schema_is_read_from_a_file(tmp_path: Path, suffix: str):
    frame, path = pl.DataFrame({"a": [1], "b": ["x"]}), tmp_path / f"rows.{suffix}"
    {
        "parquet": frame.write_parquet, "arrow": frame.write_ipc, "csv": frame.write_csv, "jsonl": frame.write_ndjson,
    }[suffix](path)  # fmt: skip
    assert schema_of(path, where="here") == frame.schema
    assert schema_of(str(path), where="here") == frame.schema


@pytest.mark.parametrize("described", [42, int, {"a": object}, "no/such/file.parquet", {}])
def test_what_describes_no_rows_is_refused_with_the_place(described):
    with pytest.raises(UserError, match=r"P022 prog.py:7: "):
        schema_of(described, where="prog.py:7")
