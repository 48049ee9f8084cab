import tempfile
from collections.abc import Callable
from datetime import date
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import connectors
from penstock.connectors.base import SourceContext
from penstock.connectors.files import stable_hash
from penstock.model.errors import UserError
from penstock.model.settings import SourceSettings

Read = Callable[..., tuple[pl.DataFrame, int]]
MakeContext = Callable[..., SourceContext]


def test_a_directory_is_read_with_all_below_it_but_not_what_is_hidden(tmp_path: Path, read_rows: Read) -> None:
    for number, name in enumerate(["a.parquet", "sub/b.parquet", "_penstock/c.parquet", ".d.parquet", "_e.parquet"]):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        pl.DataFrame({"n": [number]}).write_parquet(tmp_path / name)
    (tmp_path / "notes.txt").write_text("not data")
    rows, _ = read_rows(connectors.parquet(tmp_path))
    assert rows["n"].to_list() == [0, 1]


def test_a_glob_reads_what_it_matches(tmp_path: Path, read_rows: Read) -> None:
    for number, name in enumerate(["a1.parquet", "a2.parquet", "b.parquet"]):
        pl.DataFrame({"n": [number]}).write_parquet(tmp_path / name)
    rows, _ = read_rows(connectors.parquet(tmp_path / "a*.parquet"))
    assert rows["n"].to_list() == [0, 1]


def test_no_files_is_an_error_that_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"P015 no files at .*/nothing\n  fix: .*watch=True"):
        connectors.parquet(tmp_path / "nothing").as_source().resolve(SourceSettings())


def test_no_files_is_an_error_with_a_schema_too_unless_they_may_still_come(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="P015"):
        connectors.csv(tmp_path, schema={"n": int}).as_source().resolve(SourceSettings())
    waiting = connectors.csv(tmp_path, schema={"n": int}, watch=True).as_source().resolve(SourceSettings())
    assert not waiting.bounded


def test_columns_of_csv_are_inferred_and_found_by_name(tmp_path: Path, read_rows: Read) -> None:
    (tmp_path / "a.csv").write_text("day,n,price\n2026-01-01,1,2.5\n2026-01-02,,3\n")
    (tmp_path / "b.csv").write_text("n,price,other,day\n3,1,x,2026-01-03\n")
    rows, _ = read_rows(connectors.csv(tmp_path))
    assert rows.schema == {"day": pl.Date, "n": pl.Int64, "price": pl.Float64}
    assert rows.rows() == [(date(2026, 1, 1), 1, 2.5), (date(2026, 1, 2), None, 3.0), (date(2026, 1, 3), 3, 1.0)]


def test_csv_without_a_header_takes_its_columns_from_the_schema(tmp_path: Path, read_rows: Read) -> None:
    (tmp_path / "a.tsv").write_text("1\tx\n2\ty\n")
    endpoint = connectors.csv(tmp_path, header=False, separator="\t", schema={"n": int, "s": str})
    assert read_rows(endpoint)[0].rows() == [(1, "x"), (2, "y")]


def test_columns_of_json_lines_are_inferred(tmp_path: Path, read_rows: Read) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1, "s": null}\n\n{"n": 2.5, "tags": ["x"]}\n')
    rows, _ = read_rows(connectors.json_lines(tmp_path))
    assert rows.schema == {"n": pl.Float64, "s": pl.String, "tags": pl.List(pl.String)}
    assert rows.rows() == [(1.0, None, None), (2.5, None, ["x"])]


def test_dictionary_columns_of_parquet_flow_as_strings(tmp_path: Path, read_rows: Read) -> None:
    pl.DataFrame({"s": pl.Series(["a", "b", "a"], dtype=pl.Categorical)}).write_parquet(tmp_path / "a.parquet")
    rows, _ = read_rows(connectors.parquet(tmp_path))
    assert rows.schema == {"s": pl.String}
    assert rows["s"].to_list() == ["a", "b", "a"]


def test_a_reader_in_the_middle_of_a_row_group_goes_on_there(tmp_path: Path, source_context: MakeContext) -> None:
    pl.DataFrame({"n": range(1000)}).write_parquet(tmp_path / "a.parquet", row_group_size=300)
    source = connectors.make_source(connectors.parquet(tmp_path).as_source().resolve(SourceSettings()).connector)
    reader = source.open(source.splits()[0], {"rows": 300, "taken": 150}, source_context())
    result = reader.read(10)
    assert result.frame is not None
    assert result.frame["n"].to_list() == list(range(450, 460))
    assert reader.position() == {"rows": 300, "taken": 160}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=60),
    st.integers(1, 20),
    st.integers(1, 30),
    st.integers(0, 40),
    st.integers(0, 9),
)
def test_rows_that_a_filter_will_drop_are_left_out_and_reading_goes_on_anywhere(
    source_context: MakeContext, numbers: list[int], group: int, batch: int, stop_after: int, least: int
) -> None:
    wanted = pl.col("n") >= least
    with tempfile.TemporaryDirectory() as folder:
        frame = pl.DataFrame({"n": numbers, "at": range(len(numbers))}, schema={"n": pl.Int64, "at": pl.Int64})
        frame.write_parquet(Path(folder) / "a.parquet", row_group_size=group)
        source = connectors.make_source(connectors.parquet(folder).as_source().resolve(SourceSettings()).connector)
        [split] = source.splits()
        context = source_context(predicates=(wanted.meta.serialize(),))
        reader, got = source.open(split, None, context), [frame.clear()]
        for number in range(len(numbers) + 2):
            if number == stop_after:
                reader = source.open(split, reader.position(), context)
            result = reader.read(batch)
            got += [result.frame] if result.frame is not None else []
            if result.ended:
                break
    assert result.ended
    assert pl.concat(got).equals(frame.filter(wanted))


def test_a_condition_that_fails_on_data_is_left_to_the_filter(tmp_path: Path, source_context: MakeContext) -> None:
    pl.DataFrame({"s": ["1", "x"]}).write_parquet(tmp_path / "a.parquet")
    source = connectors.make_source(connectors.parquet(tmp_path).as_source().resolve(SourceSettings()).connector)
    failing = (pl.col("s").cast(pl.Int64) > 0).meta.serialize()
    result = source.open(source.splits()[0], None, source_context(predicates=(failing,))).read(10)
    assert result.frame is not None
    assert result.frame["s"].to_list() == ["1", "x"]


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_every_new_file_is_discovered_by_exactly_one_subtask(
    tmp_path: Path, source_context: MakeContext, parallelism: int
) -> None:
    endpoint = connectors.json_lines(tmp_path, watch=True, schema={"n": int})
    source = connectors.make_source(endpoint.as_source().resolve(SourceSettings()).connector)
    assert source.discovers
    assert source.splits() == ()
    contexts = [source_context(subtask_index=index, parallelism=parallelism) for index in range(parallelism)]
    seen: frozenset[str] = frozenset()
    for round_number in range(3):
        names = [f"{round_number}-{number}.jsonl" for number in range(8)]
        for name in names:
            (tmp_path / name).write_text('{"n": 1}\n')
        found = [split.origin for context in contexts for split in source.discover(seen, context)]
        assert len(found) == len(set(found))
        assert {Path(path).name for path in found} == set(names)
        seen |= set(found)
    assert all(not source.discover(seen, context) for context in contexts)


def test_the_hash_of_a_path_is_the_same_everywhere() -> None:
    assert stable_hash("/data/a.parquet") == 1759488091058181368
