import dataclasses
import datetime
from pathlib import Path
from typing import Annotated, TypedDict

import msgspec
import polars as pl
import pyarrow as pa
import pydantic
import pytest

from penstock import connectors
from penstock.model.errors import UserError
from penstock.model.settings import SourceSettings
from penstock.model.specs import Connector


@dataclasses.dataclass
class Point:
    x: float
    y: float


@dataclasses.dataclass
class Bid:
    auction: int
    price: float | None
    tags: list[str]
    at: datetime.datetime
    where: Point
    small: Annotated[int, pl.Int8]


class BidDict(TypedDict):
    auction: int
    name: str


class BidModel(pydantic.BaseModel):
    auction: int
    name: str | None = None


FLAT = pl.Schema({"auction": pl.Int64(), "name": pl.String()})


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        (
            Bid,
            {
                "auction": pl.Int64(),
                "price": pl.Float64(),
                "tags": pl.List(pl.String()),
                "at": pl.Datetime("us"),
                "where": pl.Struct({"x": pl.Float64(), "y": pl.Float64()}),
                "small": pl.Int8(),
            },
        ),
        (BidDict, FLAT),
        (BidModel, FLAT),
        ({"auction": int, "name": pl.String}, FLAT),
        (FLAT, FLAT),
        (pa.schema([("auction", pa.int64()), ("name", pa.string())]), FLAT),
    ],
    ids=["dataclass", "TypedDict", "pydantic", "dict", "Polars", "Arrow"],
)
def test_a_schema_can_be_declared_in_many_ways(declared: object, expected: dict[str, pl.DataType]) -> None:
    assert dict(connectors.declared_schema(declared)) == dict(expected)


def test_a_type_that_no_column_can_have_is_refused_by_name() -> None:
    with pytest.raises(UserError, match="P022 column n: no column type for <class 'object'>"):
        connectors.declared_schema({"n": object})
    with pytest.raises(UserError, match="P022 cannot read a schema from 5"):
        connectors.declared_schema(5)


def test_what_can_only_be_written_to_says_so() -> None:
    for endpoint in (connectors.print(), connectors.discard(), connectors.collect()):
        with pytest.raises(UserError, match=r"P018 \w+ can only be written to\n  fix: use stream.write"):
            endpoint.as_source()


def test_what_can_only_be_read_from_says_so() -> None:
    endpoints = [
        connectors.items([1]),
        connectors.nexmark(),
        connectors.socket_lines("localhost", 1),
        connectors.generate({"n": connectors.sequence()}),
    ]
    for endpoint in endpoints:
        with pytest.raises(UserError, match=r"P018 \w+ can only be read from\n  fix: use flow.read"):
            endpoint.as_sink()


def test_arguments_for_the_other_direction_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="P018 parquet: partition_by= is for writing, not reading"):
        connectors.parquet(tmp_path, partition_by="day").as_source()
    with pytest.raises(UserError, match="P018 csv: watch=, schema= is for reading, not writing"):
        connectors.csv(tmp_path, watch=True, schema={"n": int}).as_sink()


def test_definitions_are_plain_json(tmp_path: Path) -> None:
    pl.DataFrame({"n": [1]}).write_parquet(tmp_path / "a.parquet")
    for endpoint in (
        connectors.parquet(tmp_path),
        connectors.items([{"n": 1}]),
        connectors.generate({"n": connectors.sequence(), "c": connectors.choice([1, 2])}),
        connectors.nexmark(start="2026-02-03"),
        connectors.socket_lines("localhost", 9999, wait="5s"),
    ):
        connector = endpoint.as_source().resolve(SourceSettings()).connector
        assert msgspec.json.decode(msgspec.json.encode(connector), type=Connector) == connector


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([{"a": 1, "b": "x"}, {"a": None, "b": "y"}], {"a": [1, None], "b": ["x", "y"]}),
        ([Point(1.0, 2.0)], {"x": [1.0], "y": [2.0]}),
        ([1, 2, 3], {"value": [1, 2, 3]}),
        (("a", "b"), {"value": ["a", "b"]}),
        (pl.DataFrame({"q": [1]}), {"q": [1]}),
    ],
    ids=["dicts", "dataclasses", "numbers", "words", "frame"],
)
def test_items_take_rows_in_many_forms(rows: object, expected: dict[str, list[object]], read_rows: object) -> None:
    frame, _ = read_rows(connectors.items(rows))  # type: ignore[operator]
    assert frame.to_dict(as_series=False) == expected


def test_items_follow_a_schema(read_rows: object) -> None:
    frame, _ = read_rows(connectors.items([(1, "x")], schema={"n": pl.Int8, "s": str}))  # type: ignore[operator]
    assert frame.schema == {"n": pl.Int8, "s": pl.String}
    nothing, _ = read_rows(connectors.items([], schema={"n": int}))  # type: ignore[operator]
    assert nothing.schema == {"n": pl.Int64}


def test_items_that_are_no_rows_are_refused() -> None:
    with pytest.raises(UserError, match="P022 items: these are no rows"):
        connectors.items([{"a": 1}, {"a": "x"}], schema={"a": int})
    with pytest.raises(UserError, match="P022"):
        connectors.items(5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: connectors.generate({"n": connectors.sequence()}, rows=-1),
        lambda: connectors.generate({"n": connectors.sequence()}, rate=0),
        lambda: connectors.generate({"n": connectors.sequence()}, splits=0),
        lambda: connectors.generate({}),
        lambda: connectors.nexmark(kind="bid"),  # type: ignore[arg-type]
        lambda: connectors.nexmark(start="tomorrow"),
        lambda: connectors.uniform(6, 1),
        lambda: connectors.choice([]),
        lambda: connectors.choice(["a"], weights=[1, 2]),
        lambda: connectors.socket_lines("localhost", 70_000),
    ],
)
def test_numbers_that_make_no_sense_are_refused(make: object) -> None:
    with pytest.raises(UserError, match=r"P018 .*\n  fix: "):
        make()  # type: ignore[operator]


def test_files_in_places_that_nobody_knows_are_refused() -> None:
    with pytest.raises(UserError, match='P017 no store for "hdfs://"'):
        connectors.parquet("hdfs://host/x")
    with pytest.raises(UserError, match=r"P017 .* cannot be the name of a bucket"):
        connectors.parquet("s3://B/x")
    with pytest.raises(UserError, match="P017 not a directory of this machine: s3://bucket/x"):
        connectors.collect("s3://bucket/x")


def test_files_in_a_bucket_keep_their_address() -> None:
    address = "s3://bucket/a/*.parquet?endpoint=http://localhost:9000"
    assert connectors.parquet(address).as_source().connector.options["path"] == address


def test_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert connectors.parquet("out").as_sink().connector.options["directory"] == str(tmp_path / "out")
    assert connectors.parquet(f"file://{tmp_path}/a%20b").as_source().connector.options["path"] == f"{tmp_path}/a b"


def test_a_sink_refuses_columns_that_its_format_cannot_hold(tmp_path: Path) -> None:
    nested, binary = pl.Schema({"tags": pl.List(pl.String())}), pl.Schema({"raw": pl.Binary()})
    with pytest.raises(UserError, match=r"P019 column tags of type List\(String\) does not fit into csv"):
        connectors.csv(tmp_path).as_sink().check(nested)
    with pytest.raises(UserError, match="P019 column raw of type Binary does not fit into json-lines"):
        connectors.json_lines(tmp_path).as_sink().check(binary)
    connectors.json_lines(tmp_path).as_sink().check(nested)
    connectors.parquet(tmp_path).as_sink().check(binary)


def test_a_partition_column_that_is_not_there_is_named_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"P020 .*no column 'dya'; there are day, n\n  fix: did you mean 'day'\?"):
        connectors.parquet(tmp_path, partition_by=["dya"]).as_sink().check(pl.Schema({"day": pl.Date, "n": pl.Int64}))
