import hashlib

import msgspec
import pytest

from penstock.checkpoint import journal
from penstock.graph import JobGraph
from penstock.jobmanager.restoring import find_origin
from penstock.jobmanager.state_dir import GRAPH, StateDir
from penstock.model.errors import UserError
from penstock.model.handles import Manifest, StateHandle
from penstock.model.ids import CheckpointId, JobId, SubtaskId, VertexId
from penstock.savepoints import RestoreOptions
from penstock.storage import MemoryStore

GRAPH_OF_NONE = JobGraph(name="new", vertices=(), edges=(), bounded=True)


def add_job(state_dir: StateDir, name: str, *, at: int, checkpoints: int, ended: bool = True) -> None:
    store = state_dir.store(JobId(name))
    store.put(GRAPH, msgspec.json.encode(JobGraph(name=name, vertices=(), edges=(), bounded=True)))
    facts = {"writer": "w", "time_us": at}
    entries = [lambda **chain: journal.Submitted(name=name, graph_sha256="", **chain, **facts)]
    for number in range(1, checkpoints + 1):
        data = f"{name} {number}".encode()
        store.put(f"state/{number}", data)
        handle = StateHandle(
            subtask=SubtaskId(VertexId("v"), 0),
            path=f"state/{number}",
            size=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            sections=(),
        )
        manifest = Manifest(
            checkpoint=CheckpointId(number), kind="checkpoint", parallelism={"v": 1}, max_parallelism=128,
            triggered_us=0, completed_us=1, handles=(handle,),
        )  # fmt: skip
        entries.append(
            lambda manifest=manifest, **chain: journal.CheckpointCompleted(manifest=manifest, **chain, **facts)
        )
    if ended:
        entries.append(lambda **chain: journal.Ended(outcome="stopped", **chain, **facts))
    parent = ""
    for sequence, entry in enumerate(entries):
        result = journal.append(store, entry(sequence=sequence, parent=parent))
        assert isinstance(result, journal.Appended)
        parent = result.sha256


@pytest.fixture
def state_dir(tmp_path) -> StateDir:
    made = StateDir(tmp_path)
    add_job(made, "old", at=1, checkpoints=3)
    add_job(made, "new", at=2, checkpoints=2)
    return made


def test_latest_is_the_last_checkpoint_of_the_newest_job(state_dir):
    assert find_origin(state_dir, "latest").uri == "new@2"


def test_a_job_and_one_of_its_checkpoints_can_be_named(state_dir):
    assert find_origin(state_dir, "old").uri == "old@3"
    assert find_origin(state_dir, "old@1").uri == "old@1"


def test_what_is_not_there_is_refused_with_what_is(state_dir):
    with pytest.raises(UserError, match="job old has old@1, old@2, old@3"):
        find_origin(state_dir, "old@9")
    with pytest.raises(UserError, match="known jobs: new, old"):
        find_origin(state_dir, "../old")


def test_a_job_that_has_not_ended_is_not_started_from(state_dir):
    add_job(state_dir, "running", at=3, checkpoints=1, ended=False)
    with pytest.raises(UserError, match=r"(?s)S008 .*penstock stop running"):
        find_origin(state_dir, "latest")


def test_the_objects_are_copied_so_that_the_old_job_can_go(state_dir):
    target = MemoryStore("target")
    manifest = find_origin(state_dir, "old@2").adopt(GRAPH_OF_NONE, RestoreOptions(), target)
    assert manifest.checkpoint == 2
    assert [target.get(handle.path) for handle in manifest.handles] == [b"old 2"]


def test_a_changed_object_is_refused(state_dir):
    origin = find_origin(state_dir, "old@2")
    store = state_dir.store(JobId("old"))
    store.delete("state/2")
    with pytest.raises(UserError, match=r"S002 .*state of v/0 is missing"):
        origin.adopt(GRAPH_OF_NONE, RestoreOptions(), MemoryStore("other"))
    store.put("state/2", b"something else")
    with pytest.raises(UserError, match=r"S002 .*cannot be used"):
        origin.adopt(GRAPH_OF_NONE, RestoreOptions(), MemoryStore("another"))


def test_a_submission_that_was_cut_short_is_no_job(state_dir):
    state_dir.store(JobId("half")).put(GRAPH, b"{}")
    assert state_dir.load(JobId("half")) is None


def test_a_directory_that_cannot_be_made_is_an_error_with_a_fix(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="C001 cannot use the state directory"):
        StateDir(tmp_path / "file").prepare()
