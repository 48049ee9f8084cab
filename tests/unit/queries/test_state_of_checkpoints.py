"""What a checkpoint answers is what the savepoint of the same barrier holds, whatever the state lies in."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

sys.path.insert(0, str(Path(__file__).parents[1] / "savepoints"))
from made import accounts, take

import penstock as ps
from penstock.checkpoint import journal
from penstock.model.errors import UserError
from penstock.queries import CheckpointState, StateTooLargeError, answer, key_of, state_of
from penstock.savepoints import Savepoint
from penstock.testing import runs


@dataclass(frozen=True, slots=True)
class Both:
    """A barrier as it was saved in two forms."""

    state: CheckpointState
    savepoint: Savepoint
    run: runs.Run


def both(backend: str, program: Any = accounts, **options: Any) -> Both:
    """The first run of a job, which is stopped with a savepoint."""
    first: list[runs.Run] = []
    end = runs.Run.end

    def watched(run: runs.Run, savepoint: str = "") -> Any:
        first.append(run)
        return end(run, savepoint)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs.Run, "end", watched)
        taken = take(program, backend=backend, **options)
    run = first[0]
    assert run.manifest is not None
    return Both(CheckpointState(run.store, taken.graph, run.manifest), taken.savepoint, run)


@pytest.fixture(scope="module", params=["memory", "rocksdb"])
def held(request: pytest.FixtureRequest) -> Both:
    return both(request.param)


def test_tables_are_those_of_the_savepoint(held: Both) -> None:
    names = [state.name for state in held.savepoint.manifest.states if state.redistribution.value == "keyed"]
    assert len(names) >= 6
    assert set(names) <= set(held.state.states)
    for name in names:
        expected = held.savepoint.frame(name)
        found = held.state.frame(name)
        assert found.columns == expected.columns
        by = [column for column, dtype in expected.schema.items() if not dtype.is_nested()]
        assert_frame_equal(found.sort(by), expected.sort(by))


def test_one_key_is_read_from_its_own_group(held: Both) -> None:
    for name in ("account.total", "account.names", "account.seen", "account.timers:event", "counts.panes"):
        whole = held.state.frame(name)
        for user in whole["user"].unique().to_list():
            expected = whole.filter(user=user)
            assert_frame_equal(held.state.key(name, user), expected, check_row_order=False)
    assert held.state.key("account.total", "nobody").is_empty()


def test_ranges_of_key_groups_add_up(held: Both) -> None:
    parts = [held.state.frame("account.total", range(start, start + 16)) for start in range(0, 128, 16)]
    there = [part for part in parts if part.height]
    assert len(there) > 2
    assert_frame_equal(pl.concat(there), held.state.frame("account.total"))


def test_what_does_not_fit_is_refused(held: Both) -> None:
    with pytest.raises(UserError, match=r"S024 .*no keyed state \"account.nothing\""):
        held.state.frame("account.nothing")
    with pytest.raises(UserError, match=r"S031 account.total has the key user, and 2 values"):
        held.state.key("account.total", "u1", "u2")
    small = CheckpointState(held.run.store, held.state._graph, held.state.manifest, limit_bytes=10)
    with pytest.raises(StateTooLargeError, match="S032"):
        small.frame("account.total")


def test_answers_are_stamped_and_plain(held: Both) -> None:
    key = key_of(held.state, "account.total", ["u1"])
    view = answer(held.state, "account.total", held.state.key("account.total", *key), held.state.taken_us + 5)
    assert (view.checkpoint, view.age_us) == (held.state.checkpoint, 5)
    assert view.columns == {"key_group": "UInt16", "user": "String", "total": "Int64"}
    assert json.loads(json.dumps(view.rows))[0]["user"] == "u1"


class Pairs(ps.KeyedProcessFunction):
    total = ps.ValueState(int, default=0)

    def process(self, ctx: ps.KeyedContext, amount: int) -> Any:
        self.total.value += amount
        return *ctx.key, self.total.value


def pairs(rows: ps.DataStream) -> dict[str, ps.DataStream]:
    keyed = rows.select("user", "amount", odd=ps.col("amount") % 2 == 1).key_by("user", "odd")
    return {"sums": keyed.process(Pairs(), output={"user": str, "odd": bool, "total": int}, uid="sums")}


def test_keys_of_several_columns_are_typed_as_texts() -> None:
    held = both("memory", pairs)
    whole = held.state.frame("sums.total")
    one = whole.row(0, named=True)
    texts = [one["user"], json.dumps(one["odd"])]
    rows = held.state.key("sums.total", *key_of(held.state, "sums.total", texts))
    assert rows.rows(named=True) == [one]
    with pytest.raises(UserError, match=r"S031 \"maybe\" is no Boolean"):
        key_of(held.state, "sums.total", [one["user"], "maybe"])


def test_tables_of_aggregates() -> None:

    def running(rows: ps.DataStream) -> dict[str, ps.DataStream]:
        return {"all": rows.key_by("user").agg(n=ps.count(), top=ps.max("amount"), uid="all")}

    held = both("memory", running)
    names = [name for name in held.state.states if name.startswith("all.")]
    assert names
    for name in names:
        by = ["user"]
        assert_frame_equal(held.state.frame(name).sort(by), held.savepoint.frame(name).sort(by))


def test_the_latest_or_a_retained_checkpoint_is_asked(held: Both) -> None:
    entries = [recorded.entry for recorded in journal.read_journal(held.run.store)]
    latest = state_of(held.run.store, held.state._graph, entries)
    assert latest.checkpoint == held.state.checkpoint
    again = state_of(held.run.store, held.state._graph, entries, checkpoint=latest.checkpoint)
    assert again.manifest == latest.manifest
    with pytest.raises(UserError, match=r"S030 .*no checkpoint 999"):
        state_of(held.run.store, held.state._graph, entries, checkpoint=999)
    with pytest.raises(UserError, match=r"S030 the job has no checkpoint yet"):
        state_of(held.run.store, held.state._graph, [])
