"""Whether a job can go on from a savepoint: every change of a program, its verdict, and the flag that allows it."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from made import take

import penstock as ps
from penstock.api.flows import Flow
from penstock.checkpoint import canonical
from penstock.graph import JobGraph
from penstock.model.errors import UserError
from penstock.savepoints import RestoreOptions
from penstock.savepoints.checks import Report, restore_report
from penstock.savepoints.restoring import adopt
from penstock.savepoints.shapes import shapes
from penstock.state.key_groups import key_groups
from penstock.storage import MemoryStore
from penstock.testing.scripted import Capture, ScriptedInput

OUTPUT = {"user": str, "n": int}
SCHEMA = {"user": pl.String, "amount": pl.Int64, "ts": pl.Int64}


@dataclasses.dataclass
class Old:
    count: int
    low: float


@dataclasses.dataclass
class Wider:
    count: int
    low: float
    name: str | None = None
    weight: int = 7


@dataclasses.dataclass
class Narrower:
    count: int


@dataclasses.dataclass
class Renamed:
    times: int
    low: float


def function(states: dict[str, Any]) -> ps.KeyedProcessFunction:
    def process(self: Any, ctx: ps.KeyedContext, amount: int) -> Any:
        if "facts" in states:
            self.facts.value = Old(amount, 0.5)
        if "total" in states:
            self.total.value = amount
        return ctx.key, amount

    return type("Function", (ps.KeyedProcessFunction,), {**states, "process": process})()


def program(states: dict[str, Any], *, uid: str = "f", window: str = "10s", counts: str = "counts") -> Any:
    def build(rows: ps.DataStream) -> dict[str, ps.DataStream]:
        keyed = rows.key_by("user")
        return {
            "out": keyed.process(function(states), output=OUTPUT, uid=uid),
            "counts": keyed.window(ps.tumbling(window)).agg(n=ps.count(), uid=counts),
        }

    return build


BEFORE = {"total": ps.ValueState(pl.Int32, default=0), "facts": ps.ValueState(Old)}


@pytest.fixture(scope="module")
def taken():
    return take(program(BEFORE))


def graph_of(build: Any, *, parallelism: int = 2, max_parallelism: int = 128, name: str = "test") -> JobGraph:
    """As `run_stream` builds it, so that the sources are the same."""
    flow = Flow(name)
    source = ScriptedInput("rows", pl.Schema(SCHEMA), ((),), False)
    stream = flow.read(source, uid="rows", event_time="ts", unit="s")
    for each, made in build(stream).items():
        made.write(Capture(), uid=f"returned: {each}")
    return flow.plan(parallelism=parallelism, max_parallelism=max_parallelism)


def check(taken: Any, build: Any, options: RestoreOptions | None = None, **graph: Any) -> Report:
    return restore_report(taken.savepoint.manifest, graph_of(build, **graph), options or RestoreOptions())


def verdicts(report: Report) -> dict[str, str]:
    return {finding.name: finding.verdict for finding in report.findings}


def adopted(taken: Any, build: Any, options: RestoreOptions, state: str, **graph: Any) -> pl.DataFrame:
    """The rows of a state as the new job has them."""
    target, made = MemoryStore("new"), graph_of(build, **graph)
    report = restore_report(taken.savepoint.manifest, made, options)
    manifest = adopt(
        taken.savepoint.store, taken.savepoint.manifest, report, target, max_parallelism=made.max_parallelism
    )
    sections = [s for handle in manifest.handles for s in handle.sections if f"{s.uid}.{s.state}" == state]
    return pl.concat(canonical.decode(target.get(s.path) or b"", s.columns) for s in sections)


def test_the_same_program_is_restored_whole(taken):
    found = verdicts(check(taken, program(BEFORE)))
    assert set(found.values()) == {"restored"}
    assert found.keys() >= {"f.total", "f.facts", "counts.panes", "rows.splits"}


@pytest.mark.parametrize("parallelism", [1, 2, 7])
def test_what_state_depends_on_is_the_same_at_every_parallelism(parallelism):
    """Plans differ: without an exchange nothing has to be narrowed or aggregated in front of it."""

    def build(rows: ps.DataStream) -> dict[str, ps.DataStream]:
        other = rows.select("user", "ts", other=ps.col("amount") + 1)
        keyed = rows.key_by("user")
        return {
            "ever": rows.join(other, on="user", uid="ever").select("user", "other"),
            "near": rows.join(other, on="user", within=ps.interval("0s", "5s"), uid="near").select("other"),
            "best": keyed.top_n(2, by="amount", within=ps.tumbling("10s"), uid="best"),
            "counts": keyed.window(ps.tumbling("10s")).agg(n=ps.count(), top=ps.max("amount"), uid="counts"),
        }

    found, other = (shapes(graph_of(build, parallelism=each)) for each in (parallelism, 3))
    assert {uid: shape for uid, shape in found.items() if shape} == {uid: s for uid, s in other.items() if s}


def test_an_operator_that_is_gone_is_refused_mapped_or_left_behind(taken):
    other = program(BEFORE, uid="renamed")
    refused = check(taken, other).refused
    assert [(each.code, each.name) for each in refused] == [("S004", "f.facts"), ("S004", "f.total")]
    assert "--map-uid f=NEW" in refused[0].fix
    assert "--allow-non-restored" in refused[0].fix
    with pytest.raises(UserError, match=r'S004 .*f.facts: no operator of the job has the uid "f"'):
        check(taken, other).require("here")
    mapped = check(taken, other, RestoreOptions(map_uid=(("f", "renamed"),)))
    assert not mapped.refused
    assert verdicts(mapped)["renamed.total"] == "restored"
    left = check(taken, other, RestoreOptions(allow_non_restored=True))
    assert not left.refused
    assert verdicts(left)["f.total"] == "dropped"
    assert verdicts(left)["renamed.total"] == "new"


def test_a_state_that_is_gone_or_called_another(taken):
    only = program({"sum": ps.ValueState(pl.Int32, default=0), "facts": ps.ValueState(Old)})
    (refused,) = check(taken, only).refused
    assert (refused.code, refused.name) == ("S004", "f.total")
    renamed = check(taken, only, RestoreOptions(map_uid=(("f.total", "f.sum"),)))
    assert not renamed.refused
    assert verdicts(renamed)["f.sum"] == "restored"
    empty = check(taken, only, RestoreOptions(map_uid=(("f.total", ""),)))
    assert verdicts(empty)["f.total"] == "dropped"


def test_numbers_may_get_wider_not_narrower(taken):
    wider = program({**BEFORE, "total": ps.ValueState(int, default=0)})
    report = check(taken, wider)
    (finding,) = [each for each in report.findings if each.name == "f.total"]
    assert (finding.verdict, finding.detail) == ("evolved", "Int32 -> Int64")
    assert adopted(taken, wider, RestoreOptions(), "f.total").schema["total"] == pl.Int64
    narrower = program({**BEFORE, "total": ps.ValueState(pl.Int16, default=0)})
    (refused,) = check(taken, narrower).refused
    assert (refused.code, refused.detail) == ("S005", "Int32 -> Int16 has no migration")
    text = program({**BEFORE, "total": ps.ValueState(str, default="")})
    assert [each.code for each in check(taken, text).refused] == ["S005"]


def test_new_fields_get_their_default(taken):
    wider = program({**BEFORE, "facts": ps.ValueState(Wider)})
    assert verdicts(check(taken, wider))["f.facts"] == "evolved"
    rows = adopted(taken, wider, RestoreOptions(), "f.facts")["facts"].to_list()
    assert all(row["name"] is None and row["weight"] == 7 and row["low"] == 0.5 for row in rows)


def test_a_field_is_dropped_only_when_that_is_allowed(taken):
    narrower = program({**BEFORE, "facts": ps.ValueState(Narrower)})
    (refused,) = check(taken, narrower).refused
    assert (refused.code, refused.detail) == ("S026", "low is dropped")
    assert "--evolve" in refused.fix
    allowed = RestoreOptions(evolve=True)
    assert verdicts(check(taken, narrower, allowed))["f.facts"] == "evolved"
    assert all(row.keys() == {"count"} for row in adopted(taken, narrower, allowed, "f.facts")["facts"].to_list())


def test_a_field_is_renamed_by_map(taken):
    renamed = program({**BEFORE, "facts": ps.ValueState(Renamed)})
    assert [each.code for each in check(taken, renamed).refused] == ["S026"]
    options = RestoreOptions(map_uid=(("f.facts.count", "f.facts.times"),))
    before = taken.savepoint.frame("f.facts")["facts"].to_list()
    after = adopted(taken, renamed, options, "f.facts")["facts"].to_list()
    assert sorted(row["times"] for row in after) == sorted(row["count"] for row in before)


def test_another_kind_of_state_is_refused(taken):
    listed = program({**BEFORE, "total": ps.ListState(int)})
    (refused,) = check(taken, listed).refused
    assert (refused.code, refused.name) == ("S023", "f.total")


def test_a_window_of_another_size_cannot_take_the_panes(taken):
    other = program(BEFORE, window="20s")
    refused = check(taken, other).refused
    assert {each.code for each in refused} == {"S022"}
    assert "assigner.size_us: 10000000 -> 20000000" in refused[0].detail
    fresh = check(taken, other, RestoreOptions(map_uid=(("counts", ""),)))
    assert not fresh.refused


def test_another_job_or_a_name_that_is_not_there(taken):
    (refused,) = check(taken, program(BEFORE), name="another").refused
    assert (refused.code, refused.name) == ("S003", "savepoint")
    assert not check(taken, program(BEFORE), RestoreOptions(allow_foreign=True), name="another").refused
    (wrong,) = check(taken, program(BEFORE), RestoreOptions(map_uid=(("nothing", "f"),))).refused
    assert wrong.code == "S025"


def test_another_max_parallelism_computes_key_groups_anew(taken):
    (refused,) = check(taken, program(BEFORE), max_parallelism=64).refused
    assert (refused.code, "--evolve" in refused.fix) == ("S009", True)
    options = RestoreOptions(evolve=True)
    assert not check(taken, program(BEFORE), options, max_parallelism=64).refused
    rows = adopted(taken, program(BEFORE), options, "f.total", max_parallelism=64)
    assert rows["key_group"].to_list() == key_groups(rows, ["user"], 64).tolist()
    assert rows.height == taken.savepoint.frame("f.total").height
    progress = adopted(taken, program(BEFORE), options, "counts.progress", max_parallelism=64)
    assert progress["end_group"].unique().to_list() == [64]
