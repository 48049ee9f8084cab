"""A savepoint that was built from tables starts a job, and is refused when its rows do not fit."""

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from made import OUTPUT, ROWS, Account, calm, plain, take

import penstock as ps
from penstock import savepoints, testing
from penstock.model.errors import UserError
from penstock.model.settings import JobSettings, StateSettings
from penstock.state.key_groups import key_groups

USERS = [f"u{number}" for number in range(7)]


def only_accounts(rows: ps.DataStream) -> dict[str, ps.DataStream]:
    return {"accounts": rows.key_by("user").process(Account(), output=OUTPUT, uid="account")}


def start_from(uri: str, build: Any, **options: Any) -> testing.StreamResult:
    inputs = {"rows": testing.source(ROWS, event_time="ts", unit="s", batch_rows=2)}
    return testing.run_stream(build, inputs, start_from=uri, **options)


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_a_job_starts_with_state_that_it_did_not_compute(backend, tmp_path):
    builder = savepoints.Builder(max_parallelism=128)
    builder.add("account.total", pl.DataFrame({"user": USERS, "total": [1000] * 7}), keys="user")
    names = pl.DataFrame({"user": USERS, "name": ["old"] * 7, "number": [5] * 7})
    builder.add("account.names", names, keys="user", kind="map")
    builder.add("account.seen", pl.DataFrame({"user": USERS, "seen": [[1, 2]] * 7}), keys="user", kind="list")
    timers = pl.DataFrame({"user": USERS, "time": [15_000_000] * 7})
    builder.add("account.timers:event", timers, keys="user")
    uri = builder.write(str(tmp_path / "built"))

    settings = runs_settings(backend)
    result = start_from(uri, only_accounts, parallelism=3, settings=settings)
    expected = calm(only_accounts)
    assert result.frame.filter(pl.col("total") >= 0)["total"].sum() == (
        expected.frame.filter(pl.col("total") >= 0)["total"].sum() + 1000 * len(ROWS)
    )
    # One more name and two more sightings than without, and a timer of its own for each user.
    rows = result.frame.filter(pl.col("total") >= 0)
    assert rows["names"].max() == expected.frame["names"].filter(expected.frame["total"] >= 0).max() + 1
    assert rows["seen"].max() == expected.frame["seen"].filter(expected.frame["total"] >= 0).max() + 2
    assert result.frame.filter(pl.col("total") < 0).height == expected.frame.filter(pl.col("total") < 0).height + 7


def runs_settings(backend: str) -> Any:
    return JobSettings(state=StateSettings(backend=backend, memory_budget=1))


def test_state_is_repaired_and_everything_else_stays(tmp_path):
    taken = take(only_accounts)
    builder = savepoints.Builder.like(taken.savepoint)
    total = taken.savepoint.frame("account.total")
    builder.replace("account.total", total.with_columns(total=pl.col("total") + 500).drop("key_group"))
    uri = builder.write(str(tmp_path / "repaired"))
    result = start_from(uri, only_accounts, parallelism=2)
    expected = calm(only_accounts)
    last = expected.frame.filter(pl.col("total") >= 0).group_by("user").agg(pl.col("total").max() + 500)
    found = result.frame.filter(pl.col("total") >= 0).group_by("user").agg(pl.col("total").max())
    assert plain(found) == plain(last)
    assert savepoints.open(uri).manifest.sources == taken.savepoint.manifest.sources


def test_key_groups_are_computed_whatever_the_frame_says(tmp_path):
    frame = pl.DataFrame({"key_group": [0, 0, 0], "user": ["a", "b", "c"], "total": [1, 2, 3]})
    builder = savepoints.Builder(max_parallelism=32)
    builder.add("f.total", frame, keys=["user"])
    made = savepoints.open(builder.write(str(tmp_path / "built"))).frame("f.total")
    assert made["key_group"].to_list() == key_groups(made, ["user"], 32).tolist()
    assert made.sort("user")["total"].to_list() == [1, 2, 3]


def test_large_state_comes_in_parts_with_groups_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.savepoints.building.PART_BYTES", 4_000)
    frame = pl.DataFrame({"user": range(2_000), "total": range(2_000)})
    uri = savepoints.build(str(tmp_path / "built"), {"f.total": frame}, keys="user")
    built = savepoints.open(uri)
    tables = built.manifest.state("f.total").tables
    assert len(tables) > 3
    assert all(one.key_groups[1] <= other.key_groups[0] for one, other in pairwise(tables))
    assert built.frame("f.total").sort("user").select("user", "total").equals(frame)


@pytest.mark.parametrize(
    ("frame", "options", "problem"),
    [
        ({"user": ["a"], "x": [1], "y": [2]}, {"keys": "user"}, "cannot be made of the columns user, x, y"),
        ({"user": ["a"], "x": [1]}, {"keys": "name"}, "cannot be made"),
        ({"user": ["a", "a"], "x": [1, 2]}, {"keys": "user"}, "is there 2 times"),
        ({"user": ["a"], "x": [None]}, {"keys": "user"}, "has nulls"),
        ({"user": ["a"], "x": [1]}, {"keys": "user", "kind": "map"}, "cannot be made"),
    ],
)
def test_rows_that_do_not_fit_are_refused(frame, options, problem):
    with pytest.raises(UserError, match="S029") as refused:
        savepoints.Builder().add("f.total", pl.DataFrame(frame, strict=False), **options)
    assert problem in str(refused.value)


def test_a_replacement_has_the_columns_of_what_it_replaces():
    builder = savepoints.Builder.like(take(only_accounts).savepoint)
    with pytest.raises(UserError, match=r"S029 .*no column \"total\""):
        builder.replace("account.total", pl.DataFrame({"user": ["a"]}))
    with pytest.raises(UserError, match=r"S029 .*is String, and must be Int64"):
        builder.replace("account.total", pl.DataFrame({"user": ["a"], "total": ["x"]}))
    with pytest.raises(UserError, match="S024"):
        builder.drop("account.nothing")


def test_keys_of_another_type_have_other_key_groups_and_are_refused(tmp_path):
    frame = pl.DataFrame({"user": [1, 2], "total": [1, 2]})
    uri = savepoints.build(str(tmp_path / "built"), {"account.total": frame}, keys="user")
    with pytest.raises(UserError, match=r"S022 .*its keys are Int64, those of the operator String"):
        start_from(uri, only_accounts)


def test_a_savepoint_is_never_written_over(tmp_path):
    frame = pl.DataFrame({"user": [1], "total": [1]})
    savepoints.build(str(tmp_path / "built"), {"f.total": frame}, keys="user")
    with pytest.raises(UserError, match="S021"):
        savepoints.build(str(tmp_path / "built"), {"f.total": frame}, keys="user")
