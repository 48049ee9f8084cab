"""What every source promises, checked on each of them.

Splits cover the input exactly; reading can stop after any batch and go on from its position, in another
process, with the same rows as if it had never stopped; only the columns that are asked for are given.
"""

import gzip
import tempfile
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from penstock import connectors
from penstock.connectors import Endpoint
from penstock.connectors.base import Source, SourceContext, Split
from penstock.model.clocks import SystemClock
from penstock.model.errors import RecordError
from penstock.model.settings import SourceSettings
from penstock.model.specs import Connector
from penstock.storage import open_store

ROWS = pl.DataFrame(
    {
        "id": range(1000),
        "name": [f"user-{number % 7}" if number % 5 else None for number in range(1000)],
        "amount": [number / 4 for number in range(1000)],
        "at": [datetime(2026, 1, 1) + timedelta(seconds=number) for number in range(1000)],  # noqa: DTZ001
    },
    schema_overrides={"at": pl.Datetime("us")},
)
MakeEndpoint = Callable[[Path], Endpoint]


def parquet_files(folder: Path) -> Endpoint:
    ROWS.head(600).write_parquet(folder / "a.parquet", row_group_size=70)
    (folder / "sub").mkdir()
    ROWS.tail(400).write_parquet(folder / "sub" / "b.parquet", row_group_size=1000)
    return connectors.parquet(folder)


def csv_files(folder: Path) -> Endpoint:
    ROWS.write_csv(folder / "a.csv", datetime_format="%FT%T")
    return connectors.csv(folder / "*.csv", schema=ROWS.schema, splittable=True)


def json_files(folder: Path) -> Endpoint:
    ROWS.write_ndjson(folder / "a.jsonl")
    return connectors.json_lines(folder / "a.jsonl", schema=ROWS.schema)


def compressed_json_files(folder: Path) -> Endpoint:
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(ROWS.write_ndjson().encode()))
    return connectors.json_lines(folder, schema=ROWS.schema)


def compressed_csv_files(folder: Path) -> Endpoint:
    text = ROWS.write_csv(datetime_format="%FT%T").encode()
    (folder / "a.csv.gz").write_bytes(gzip.compress(text))
    return connectors.csv(folder, schema=ROWS.schema)


def generated(_: Path) -> Endpoint:
    columns = {"n": connectors.sequence(), "x": connectors.uniform(1, 6), "c": connectors.choice(["a", "b"])}
    return connectors.generate(columns, rows=1000, seed=3, splits=3)


def in_a_bucket(
    make: Callable[..., Endpoint], name: str, write: Callable[[Path], object], path: str = ""
) -> MakeEndpoint:
    """A file beside others that are none of it, in a bucket."""

    def endpoint(folder: Path) -> Endpoint:
        bucket = f"memory://sources-{folder.as_posix().replace('/', '-')}"
        write(folder / name)
        store = open_store(bucket)
        store.put(f"in/a/{name}", (folder / name).read_bytes())
        store.put("in/_penstock/staging/note.json", b"{}")
        store.put("in2/other.parquet", b"not to be read")
        return make(f"{bucket}/{path or 'in'}")

    return endpoint


def csv_with_schema(path: str) -> Endpoint:
    return connectors.csv(path, schema=ROWS.schema, splittable=True)


def json_with_schema(path: str) -> Endpoint:
    return connectors.json_lines(path, schema=ROWS.schema)


IN_BUCKETS = {
    "parquet in a bucket": in_a_bucket(
        connectors.parquet, "a.parquet", lambda file: ROWS.write_parquet(file, row_group_size=70)
    ),
    "one parquet object": in_a_bucket(
        connectors.parquet, "a.parquet", lambda file: ROWS.write_parquet(file, row_group_size=300), "in/a/a.parquet"
    ),
    "csv in a bucket": in_a_bucket(
        csv_with_schema, "a.csv", lambda file: ROWS.write_csv(file, datetime_format="%FT%T"), "in/**/*.csv"
    ),
    "json lines in a bucket": in_a_bucket(json_with_schema, "a.jsonl", ROWS.write_ndjson, "in/*/[a-c].jsonl"),
    "compressed json lines in a bucket": in_a_bucket(
        json_with_schema, "a.jsonl.gz", lambda file: file.write_bytes(gzip.compress(ROWS.write_ndjson().encode()))
    ),
}

SOURCES: dict[str, MakeEndpoint] = {
    "parquet": parquet_files,
    "csv": csv_files,
    "json lines": json_files,
    "compressed json lines": compressed_json_files,
    "compressed csv": compressed_csv_files,
    **IN_BUCKETS,
    "items": lambda _: connectors.items(ROWS),
    "items in small batches": lambda _: connectors.items(ROWS, batch_rows=7),
    "generate": generated,
    "nexmark bids": lambda _: connectors.nexmark(events=700, splits=3),
    "nexmark, all kinds": lambda _: connectors.nexmark(events=700, splits=2, kind="all"),
}
SAME_ROWS = ("parquet", "csv", "json lines", "compressed json lines", "compressed csv", "items", *IN_BUCKETS)


@pytest.fixture(params=SOURCES, ids=str)
def endpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Endpoint:
    return SOURCES[request.param](tmp_path)


def open_source(endpoint: Endpoint, **given: Any) -> Source:
    """As a task gets it: through JSON."""
    connector = endpoint.as_source().resolve(SourceSettings(**given)).connector
    return connectors.make_source(msgspec.json.decode(msgspec.json.encode(connector), type=Connector))


def context(columns: tuple[str, ...] | None = None) -> SourceContext:
    return SourceContext(
        subtask_index=0,
        parallelism=1,
        columns=columns,
        settings=SourceSettings(),
        clock=SystemClock(),
        place="job/source[0]",
    )


def read_split(
    source: Source,
    split: Split,
    batch_rows: int,
    *,
    columns: tuple[str, ...] | None = None,
    reopen_every: int = 0,
) -> list[pl.DataFrame]:
    """All batches of a split; with `reopen_every`, by a new reader after so many reads."""
    frames: list[pl.DataFrame] = []
    reader = source.open(split, None, context(columns))
    reads, ended = 0, False
    while not ended:
        result = reader.read(batch_rows)
        reads, ended = reads + 1, result.ended
        if result.frame is not None:
            assert 0 < result.frame.height <= batch_rows
            frames.append(result.frame)
        if reopen_every and reads % reopen_every == 0 and not ended:
            position = msgspec.json.decode(msgspec.json.encode(reader.position()))
            reader.close()
            reader = source.open(split, position, context(columns))
    reader.close()
    return frames


def read_all(source: Source, batch_rows: int, **how: Any) -> pl.DataFrame:
    frames = [frame for split in source.splits() for frame in read_split(source, split, batch_rows, **how)]
    return pl.concat(frames)


def test_a_source_knows_its_schema_before_it_runs(endpoint: Endpoint) -> None:
    definition = endpoint.as_source().resolve(SourceSettings())
    assert definition.bounded
    assert definition.schema is not None
    assert read_all(open_source(endpoint), 1000).schema == definition.schema


@pytest.mark.parametrize("name", SAME_ROWS)
def test_all_rows_are_read_once_and_in_order(name: str, tmp_path: Path) -> None:
    source = open_source(SOURCES[name](tmp_path), split_bytes=5000)
    assert_frame_equal(read_all(source, 64), ROWS)


def test_splits_are_the_same_in_every_subtask(endpoint: Endpoint) -> None:
    first, second = open_source(endpoint).splits(), open_source(endpoint).splits()
    assert list(first) == list(second)
    assert len({split.id for split in first}) == len(first)


@pytest.mark.parametrize("reopen_every", [1, 3])
@pytest.mark.parametrize("batch_rows", [7, 33, 1000])
def test_reading_goes_on_anywhere_as_if_it_had_never_stopped(
    endpoint: Endpoint, batch_rows: int, reopen_every: int
) -> None:
    source = open_source(endpoint, split_bytes=20_000)
    whole = read_all(source, 1000)
    assert_frame_equal(read_all(source, batch_rows, reopen_every=reopen_every), whole)


def test_a_split_that_was_read_to_its_end_gives_nothing_more(endpoint: Endpoint) -> None:
    source = open_source(endpoint)
    for split in source.splits():
        reader = source.open(split, None, context())
        while not reader.read(100).ended:
            pass
        reopened = source.open(split, reader.position(), context())
        result = reopened.read(100)
        assert result.ended
        assert result.frame is None
        reader.close()
        reopened.close()


def test_only_the_columns_that_are_asked_for_are_given(endpoint: Endpoint) -> None:
    source = open_source(endpoint)
    whole = read_all(source, 1000)
    last, first = whole.columns[-1], whole.columns[0]
    assert_frame_equal(read_all(source, 1000, columns=(last, first)), whole.select(first, last))


def test_a_source_without_new_splits_says_so(endpoint: Endpoint) -> None:
    source = open_source(endpoint)
    assert not source.discovers
    assert list(source.discover(frozenset(), context())) == []


TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=12)
CSV_TEXT = st.one_of(TEXT, st.sampled_from(["line\nbreak", 'a "quoted" word', "\n\n", ",", '"']))
LISTS = st.lists(st.tuples(st.integers(-(2**40), 2**40), TEXT), min_size=1, max_size=60)
SPLIT_BYTES = st.integers(8, 400)
BATCH_ROWS = st.integers(1, 70)


def _frame(rows: list[tuple[int, str]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={"n": pl.Int64, "text": pl.String}, orient="row")


@settings(deadline=None, max_examples=60)
@given(rows=LISTS, split_bytes=SPLIT_BYTES, batch_rows=BATCH_ROWS, newline=st.booleans(), crlf=st.booleans())
def test_splits_of_json_lines_cover_the_file_exactly(
    rows: list[tuple[int, str]], split_bytes: int, batch_rows: int, newline: bool, crlf: bool
) -> None:
    frame = _frame(rows)
    text = frame.write_ndjson()
    text = text if newline else text.removesuffix("\n")
    text = text.replace("\n", "\r\n") if crlf else text
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.jsonl"
        path.write_bytes(text.encode())
        source = open_source(connectors.json_lines(path, schema=frame.schema), split_bytes=split_bytes)
        assert_frame_equal(read_all(source, batch_rows, reopen_every=1), frame)


@settings(deadline=None, max_examples=60)
@given(rows=LISTS, split_bytes=SPLIT_BYTES, batch_rows=BATCH_ROWS, newline=st.booleans())
def test_splits_of_csv_cover_the_file_exactly(
    rows: list[tuple[int, str]], split_bytes: int, batch_rows: int, newline: bool
) -> None:
    frame = _frame(rows)
    text = frame.write_csv(quote_style="non_numeric")
    text = text if newline else text.removesuffix("\n")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.csv"
        path.write_bytes(text.encode())
        endpoint = connectors.csv(path, schema=frame.schema, splittable=True)
        assert_frame_equal(read_all(open_source(endpoint, split_bytes=split_bytes), batch_rows, reopen_every=1), frame)


@settings(deadline=None, max_examples=60)
@given(rows=st.lists(st.tuples(st.integers(0, 9), CSV_TEXT), min_size=1, max_size=40), batch_rows=BATCH_ROWS)
def test_newlines_and_quotes_inside_csv_values_are_kept(rows: list[tuple[int, str]], batch_rows: int) -> None:
    frame = _frame(rows)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.csv"
        path.write_bytes(frame.write_csv(quote_style="non_numeric").encode())
        source = open_source(connectors.csv(path, schema=frame.schema), split_bytes=10)
        assert_frame_equal(read_all(source, batch_rows, reopen_every=1), frame)


@settings(deadline=None, max_examples=40)
@given(rows=st.integers(0, 200), group_rows=st.integers(1, 100), splits=st.integers(1, 6), batch_rows=BATCH_ROWS)
def test_splits_of_parquet_cover_the_file_exactly(rows: int, group_rows: int, splits: int, batch_rows: int) -> None:
    frame = ROWS.head(rows)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.parquet"
        frame.write_parquet(path, row_group_size=group_rows)
        source = open_source(connectors.parquet(path), split_bytes=path.stat().st_size // splits + 1)
        frames = [
            frame for split in source.splits() for frame in read_split(source, split, batch_rows, reopen_every=3)
        ]
        assert_frame_equal(pl.concat([frame.clear(), *frames]), frame)


def test_a_watched_folder_of_a_bucket_gives_each_new_object_to_one_subtask(tmp_path: Path) -> None:
    bucket = f"memory://watched-{tmp_path.as_posix().replace('/', '-')}"
    source = open_source(connectors.json_lines(f"{bucket}/in", schema=ROWS.schema, watch=True))
    subtasks = [msgspec.structs.replace(context(), subtask_index=index, parallelism=2) for index in range(2)]
    assert source.discovers
    assert [list(source.discover(frozenset(), each)) for each in subtasks] == [[], []]
    names = [f"in/{number}.jsonl" for number in range(20)]
    for name in names:
        open_store(bucket).put(name, ROWS.head(1).write_ndjson().encode())
    found = [source.discover(frozenset(), each) for each in subtasks]
    assert sorted(split.origin for splits in found for split in splits) == sorted(f"{bucket}/{name}" for name in names)
    assert all(found)
    seen = frozenset(split.origin for split in found[0])
    assert list(source.discover(seen, subtasks[0])) == []
    assert_frame_equal(pl.concat(read_split(source, found[0][0], 10)), ROWS.head(1))


def test_an_object_that_is_gone_is_named(tmp_path: Path) -> None:
    endpoint = IN_BUCKETS["parquet in a bucket"](tmp_path)
    source = open_source(endpoint)
    [split] = source.splits()
    open_store(split.options["path"].rpartition("/in/")[0]).delete("in/a/a.parquet")
    with pytest.raises(RecordError, match=r"R010.*in/a/a.parquet: there is no such object"):
        source.open(split, None, context())
