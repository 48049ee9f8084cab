"""What may go of a job's folder, and of a place for savepoints."""

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "savepoints"))
from made import take

from penstock.checkpoint import journal
from penstock.garbage import Find, Rules
from penstock.garbage.folders import find_in_folder
from penstock.garbage.jobs import attempt_of, find_in_job
from penstock.jobmanager.state_dir import GRAPH
from penstock.model.errors import UserError
from penstock.model.handles import Manifest, Redistribution, SectionHandle, StateHandle
from penstock.model.ids import Attempt, CheckpointId, SubtaskId, Uid, VertexId
from penstock.savepoints import catalogue
from penstock.savepoints.manifest import ABANDONED, MANIFEST, encode, read_manifest
from penstock.storage import MemoryStore, Prefixed

HOUR_US = 3_600_000_000


class Clock:
    now = 1000 * HOUR_US

    def now_us(self) -> int:
        return self.now

    def monotonic(self) -> float:
        return self.now / 1e6


class Job:
    """A job's folder, written by hand."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.store = MemoryStore("job", self.clock)
        self._parent, self._sequence = "", 0
        self.store.put(GRAPH, b"{}")

    def write(self, kind: type[journal.Entry], **fields: object) -> None:
        entry = kind(sequence=self._sequence, parent=self._parent, writer="w", time_us=self.clock.now, **fields)
        result = journal.append(self.store, entry)  # type: ignore[arg-type]
        assert isinstance(result, journal.Appended)
        self._parent, self._sequence = result.sha256, self._sequence + 1

    def submitted(self, initial: Manifest | None = None) -> None:
        self.write(journal.Submitted, name="n", graph_sha256="", initial=initial)

    def attempt(self, number: int, region: int = 0) -> None:
        self.write(journal.AttemptStarted, attempt=Attempt(number), region=region, restored=None)

    def checkpoint(self, number: int, *paths: str) -> None:
        self.write(journal.CheckpointCompleted, manifest=manifest(number, *paths))

    def find(self, **rules: int) -> list[str]:
        finds = list(find_in_job(self.store, Rules(**rules), self.clock.now)[1])
        return [item.where.removeprefix("memory://job/") for find in finds for item in find.items]


def manifest(number: int, own: str, *shared: str) -> Manifest:
    sections = tuple(
        SectionHandle(
            uid=Uid("u"), state="s", redistribution=Redistribution.KEYED, offset=0, length=1, rows=1, path=path
        )
        for path in shared
    )
    handle = StateHandle(subtask=SubtaskId(VertexId("v"), 0), path=own, size=1, sha256="", sections=sections)
    return Manifest(
        checkpoint=CheckpointId(number),
        kind="checkpoint",
        parallelism={"v": 1},
        max_parallelism=128,
        triggered_us=0,
        completed_us=0,
        handles=(handle,),
    )


@pytest.fixture
def job() -> Job:
    job = Job()
    job.submitted(manifest(1, "restored/1/000000"))
    job.attempt(1)
    for path in (
        "restored/1/000000",
        "restored/1/000009",
        "checkpoints/2/1-v-0.state",
        "checkpoints/3/1-v-0.state",
        "checkpoints/4/2-v-0.state",
        "checkpoints/5/2-v-0.state",
        "shared/1-v-0/aa",
        "shared/1-v-0/bb",
        "shared/2-v-0/cc",
        "notes-of-somebody.txt",
    ):
        job.store.put(path, b"x")
    job.checkpoint(3, "checkpoints/3/1-v-0.state", "shared/1-v-0/aa")
    job.attempt(2)
    job.checkpoint(4, "checkpoints/4/2-v-0.state", "shared/1-v-0/aa")
    return job


OF_ATTEMPT_1 = ["checkpoints/2/1-v-0.state", "restored/1/000009", "shared/1-v-0/bb"]
OF_ATTEMPT_2 = ["checkpoints/5/2-v-0.state", "shared/2-v-0/cc"]


def test_what_an_attempt_has_left_goes_when_another_has_replaced_it(job: Job) -> None:
    assert job.find() == []
    job.clock.now += 2 * HOUR_US
    assert job.find() == OF_ATTEMPT_1
    assert job.find(grace_us=3 * HOUR_US) == []


def test_when_a_job_has_ended_all_that_is_not_named_goes(job: Job) -> None:
    job.write(journal.Ended, outcome="stopped")
    job.clock.now += 2 * HOUR_US
    assert sorted(job.find()) == sorted(OF_ATTEMPT_1 + OF_ATTEMPT_2)


def test_regions_have_attempts_of_their_own(job: Job) -> None:
    job.attempt(3, region=1)
    job.attempt(4, region=1)
    job.clock.now += 2 * HOUR_US
    assert job.find() == OF_ATTEMPT_1


def test_a_job_whose_submission_was_cut_short_goes_after_a_day() -> None:
    job = Job()
    job.store.put("restored/1/000000", b"x")
    job.clock.now += 23 * HOUR_US
    assert job.find() == []
    job.clock.now += 2 * HOUR_US
    assert job.find() == [GRAPH, "restored/1/000000"]


def test_jobs_that_ended_long_ago_go_as_a_whole_and_their_graph_first(job: Job) -> None:
    job.write(journal.Ended, outcome="finished")
    job.clock.now += 48 * HOUR_US
    everything = [info.path for info in job.store.list("")]
    assert job.find(ended_us=72 * HOUR_US) == OF_ATTEMPT_1[:1] + OF_ATTEMPT_2[:1] + OF_ATTEMPT_1[1:] + OF_ATTEMPT_2[1:]
    found = job.find(ended_us=24 * HOUR_US)
    assert found[0] == GRAPH
    assert sorted(found) == sorted(everything)
    [find] = find_in_job(job.store, Rules(ended_us=24 * HOUR_US), job.clock.now)[1]
    assert find.remove() == len(everything)
    assert list(job.store.list("")) == []


@pytest.mark.parametrize(
    ("path", "attempt"),
    [
        ("checkpoints/12/3-map-0.state", 3),
        ("shared/17-map-0/ab", 17),
        ("restored/1/000000", None),
        ("journal/000000000001.json", None),
        ("graph.json", None),
    ],
)
def test_paths_say_which_attempt_wrote_them(path: str, attempt: int | None) -> None:
    assert attempt_of(path) == attempt


# ---------------------------------------------------------------- savepoints


@pytest.fixture(scope="module")
def taken():
    return take().savepoint


@pytest.fixture
def place(taken) -> Iterator[tuple[MemoryStore, Clock]]:
    """Two savepoints of one job, and a third one under way."""
    clock = Clock()
    store = MemoryStore("place", clock)
    for number, name in enumerate(("s-1", "s-2", "s-3")):
        manifest = msgspec.structs.replace(taken.manifest, created_us=number)
        for _, table in taken.manifest.tables:
            store.put(f"{name}/{table.path}", taken.store.get(table.path))
        if name != "s-3":
            store.put(f"{name}/{MANIFEST}", encode(manifest))
    return store, clock


def found(place, patience_us: int = 0, **rules: int) -> list[Find]:
    store, clock = place
    return list(find_in_folder(store, Rules(**rules), patience_us, clock.now))


def names(finds: list[Find]) -> set[str]:
    return {item.where.removeprefix("memory://place/").partition("/")[0] for find in finds for item in find.items}


def test_a_savepoint_in_progress_stays_for_as_long_as_one_may_take(place) -> None:
    assert found(place) == []
    place[1].now += 2 * HOUR_US
    assert found(place, patience_us=3 * HOUR_US) == []
    assert names(found(place)) == {"s-3"}


def test_who_completes_a_savepoint_before_it_is_removed_keeps_it(place, taken) -> None:
    store, clock = place
    clock.now += 2 * HOUR_US
    [find] = found(place)
    store.put(f"s-3/{MANIFEST}", store.get(f"s-2/{MANIFEST}"))
    assert find.remove() == 0
    kept = Prefixed(store, "s-3")
    assert catalogue.verify(kept, read_manifest(kept), deep=True) == []


def test_an_abandoned_savepoint_is_claimed_then_gone(place) -> None:
    store, clock = place
    clock.now += 2 * HOUR_US
    [find] = found(place)
    assert find.remove() == len(find.items) > 3
    assert list(store.list("s-3/")) == []


def test_a_claim_of_somebody_who_died_is_taken_over_when_it_is_old(place) -> None:
    store, clock = place
    store.put(f"s-3/{MANIFEST}", ABANDONED)
    with pytest.raises(UserError, match=r"S001 .*being removed"):
        read_manifest(Prefixed(store, "s-3"))
    assert found(place) == []
    clock.now += 2 * HOUR_US
    [find] = found(place)
    find.remove()
    assert list(store.list("s-3/")) == []


def test_the_newest_savepoints_of_a_job_stay(place) -> None:
    assert names(found(place, keep_savepoints=2)) == set()
    [find] = found(place, keep_savepoints=1)
    assert names([find]) == {"s-1"}
    assert find.items[0].where.endswith(MANIFEST)
    find.remove()
    assert list(place[0].list("s-1/")) == []


def test_savepoints_that_were_built_for_any_job_stay(place) -> None:
    store, _ = place
    for name in ("s-1", "s-2"):
        manifest = read_manifest(Prefixed(store, name))
        store.put(f"{name}/{MANIFEST}", encode(msgspec.structs.replace(manifest, job_name="")))
    assert found(place, keep_savepoints=0) == []


def test_what_a_savepoint_does_not_name_goes(place, taken) -> None:
    store, clock = place
    stray = taken.manifest.states[0].tables[0].path.replace(".parquet", "-x.parquet")
    store.put(f"s-1/{stray}", b"x")
    store.put("s-1/README.txt", b"somebody's own")
    clock.now += 2 * HOUR_US
    items = [item.where for find in found(place) for item in find.items if "s-1/" in item.where]
    assert items == [f"memory://place/s-1/{stray}"]
