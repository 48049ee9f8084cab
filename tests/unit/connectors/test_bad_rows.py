"""Input that cannot be read is named with its code, its place, its value and a way out; or dropped and counted."""

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from penstock import connectors
from penstock.connectors import text_files
from penstock.model.errors import RecordError

SCHEMA = {"id": int, "amount": int}
Read = Callable[..., tuple[pl.DataFrame, int]]


def json_file(folder: Path, *lines: str) -> connectors.Endpoint:
    (folder / "a.jsonl").write_text("\n".join(lines))
    return connectors.json_lines(folder / "a.jsonl", schema=SCHEMA)


def csv_file(folder: Path, *lines: str) -> connectors.Endpoint:
    (folder / "a.csv").write_text("\n".join(["id,amount", *lines]))
    return connectors.csv(folder / "a.csv", schema=SCHEMA)


GOOD_JSON = [f'{{"id": {number}, "amount": {number}}}' for number in range(50)]
GOOD_CSV = [f"{number},{number}" for number in range(50)]


def test_a_broken_json_line_is_named_with_line_and_offset(tmp_path: Path, read_rows: Read) -> None:
    offset = len("\n".join(GOOD_JSON)) + 1
    with pytest.raises(RecordError) as caught:
        read_rows(json_file(tmp_path, *GOOD_JSON, '{"id": 1, "amo', *GOOD_JSON))
    text = str(caught.value)
    assert text.startswith("R001 job/orders[0]")
    assert f"a.jsonl:51 (byte {offset})" in text
    assert '{"id": 1, "amo' in text
    assert "expected an object" in text
    assert "fix:" in text


def test_a_json_field_that_changed_its_type_is_a_schema_change(tmp_path: Path, read_rows: Read) -> None:
    with pytest.raises(RecordError, match=r"R003 .*a\.jsonl:51 .*field amount: Int64 -> String"):
        read_rows(json_file(tmp_path, *GOOD_JSON, '{"id": 1, "amount": "ten"}'))


def test_a_json_line_that_is_no_object_is_refused(tmp_path: Path, read_rows: Read) -> None:
    with pytest.raises(RecordError, match=r"R001 .*a JSON List, expected an object"):
        read_rows(json_file(tmp_path, "[1, 2]"))


def test_a_csv_value_of_the_wrong_type_is_named_with_its_column(tmp_path: Path, read_rows: Read) -> None:
    with pytest.raises(RecordError, match=r"R001 .*a\.csv:52 .*amount is 'ten', expected Int64: 7,ten"):
        read_rows(csv_file(tmp_path, *GOOD_CSV, "7,ten", *GOOD_CSV))


def test_a_csv_row_with_too_many_values_is_refused(tmp_path: Path, read_rows: Read) -> None:
    with pytest.raises(RecordError, match=r"R001 .*not a row of 2 values, expected id,amount: 1,2,3"):
        read_rows(csv_file(tmp_path, "1,2,3"))


@pytest.mark.parametrize(
    ("make", "good", "bad"),
    [
        (json_file, GOOD_JSON, ['{"id"', "[]", '{"id": "x"}', "nonsense"]),
        (csv_file, GOOD_CSV, ["x,1", "1,2,3", "2,y", '9,"']),
    ],
    ids=["json lines", "csv"],
)
@pytest.mark.parametrize("batch_rows", [1, 7, 1000])
def test_bad_rows_are_dropped_and_counted_when_asked(
    make: Callable[..., connectors.Endpoint],
    good: list[str],
    bad: list[str],
    batch_rows: int,
    tmp_path: Path,
    read_rows: Read,
) -> None:
    lines = [*good[:10], bad[0], bad[1], *good[10:40], bad[2], *good[40:], bad[3]]
    rows, dropped = read_rows(make(tmp_path, *lines), batch_rows, on_bad_record="drop")
    assert rows["id"].to_list() == list(range(50))
    assert dropped == 4


def test_a_row_of_more_than_16_mebibytes_is_refused_or_dropped(tmp_path: Path, read_rows: Read) -> None:
    long = '{"id": 1, "amount": 1, "padding": "' + "x" * text_files.MAX_ROW_BYTES + '"}'
    endpoint = json_file(tmp_path, *GOOD_JSON, long, *GOOD_JSON)
    with pytest.raises(RecordError, match=r"R002 .*a\.jsonl:51 .*row exceeds 16 MiB"):
        read_rows(endpoint)
    rows, dropped = read_rows(endpoint, on_bad_record="drop")
    assert rows.height == 100
    assert dropped == 1


def test_a_parquet_file_whose_schema_differs_is_refused(tmp_path: Path, read_rows: Read) -> None:
    pl.DataFrame({"id": [1], "amount": [1]}).write_parquet(tmp_path / "a.parquet")
    pl.DataFrame({"id": [1], "amount": ["ten"]}).write_parquet(tmp_path / "b.parquet")
    with pytest.raises(RecordError, match=r"R003 .*field amount: Int64 -> String at .*b\.parquet"):
        read_rows(connectors.parquet(tmp_path))


def test_a_parquet_file_that_lacks_a_column_is_refused(tmp_path: Path, read_rows: Read) -> None:
    pl.DataFrame({"id": [1], "amount": [1]}).write_parquet(tmp_path / "a.parquet")
    pl.DataFrame({"id": [1]}).write_parquet(tmp_path / "b.parquet")
    with pytest.raises(RecordError, match=r"R003 .*field amount: Int64 -> missing at"):
        read_rows(connectors.parquet(tmp_path))


def test_a_csv_file_with_another_header_is_refused(tmp_path: Path, read_rows: Read) -> None:
    (tmp_path / "a.csv").write_text("id,sum\n1,2\n")
    with pytest.raises(RecordError, match=r"R003 .*field amount: Int64 -> missing .*its header has id, sum"):
        read_rows(connectors.csv(tmp_path, schema=SCHEMA))


def test_a_file_that_is_not_parquet_is_refused(tmp_path: Path, read_rows: Read) -> None:
    (tmp_path / "a.parquet").write_text("hello")
    with pytest.raises(RecordError, match=r"R001 .*a\.parquet is not a Parquet file"):
        read_rows(connectors.parquet(tmp_path))


def test_a_file_that_shrank_since_the_program_was_built_is_refused(
    tmp_path: Path, source_context: Callable[..., connectors.base.SourceContext]
) -> None:
    endpoint = json_file(tmp_path, *GOOD_JSON)
    source = connectors.make_source(endpoint.as_source().resolve(source_context().settings).connector)
    (tmp_path / "a.jsonl").write_text("")
    with pytest.raises(RecordError, match=r"R010 .*when the job was built, now 0"):
        source.open(source.splits()[0], None, source_context())
