"""Keyed state on every backend: a process function with all kinds of state gives what plain dictionaries give, with
snapshots, restores at another parallelism, and changes of the backend on the way."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.checkpoint import state_objects
from penstock.model import schemas, specs
from penstock.model.errors import UserError
from penstock.model.handles import StateHandle
from penstock.model.ids import Attempt, CheckpointId, JobId, SubtaskId, Uid, VertexId
from penstock.model.settings import JobSettings
from penstock.operators.base import OperatorContext, StateHome
from penstock.operators.contexts import KeyedContext
from penstock.operators.process import ProcessOperator
from penstock.operators.user_functions import KeyedProcessFunction, describe
from penstock.operators.user_states import ListState, MapState, ReducingState, ValueState
from penstock.state.key_groups import group_range, key_groups
from penstock.state.stored import StoredDict
from penstock.storage import ObjectStore, open_store

M = 8
UID = Uid("f")
OUTPUT = {"user": pl.String(), "seen": pl.String()}


class Ledger(KeyedProcessFunction):
    """Tells what it holds, then changes it; what is 9 is forgotten by a timer."""

    total = ValueState(int, default=0)
    items = ListState(int)
    counts = MapState(str, int)
    top = ReducingState(max, int)
    fresh = ValueState(int, ttl="1s")

    def process(self, ctx: KeyedContext, amount: int) -> Any:
        seen = f"{self.total.value} {self.items.get()} {self.counts.items()} {self.top.get()} {self.fresh.value}"
        self.total.value += amount
        self.items.add(amount)
        self.counts[str(amount)] = self.counts.get(str(amount), 0) + 1
        self.top.add(amount)
        self.fresh.value = amount
        if amount == 9:
            ctx.set_timer(0)
        return ctx.key, seen

    def on_timer(self, ctx: KeyedContext, time: int) -> Any:
        self.total.clear()
        for state in (self.items, self.counts, self.top):
            state.clear()


class Model:
    """The same, plainly."""

    def __init__(self) -> None:
        self.held: dict[str, list[int]] = {}
        self.fresh: dict[str, tuple[int, int]] = {}
        self.nines: set[str] = set()

    def row(self, user: str, amount: int, now: int) -> tuple[str, str]:
        items = self.held.setdefault(user, [])
        counts = {str(item): items.count(item) for item in items}
        value, until = self.fresh.get(user, (0, 0))
        top = max(items) if items else None
        seen = f"{sum(items)} {items} {list(counts.items())} {top} {value if until > now else None}"
        items.append(amount)
        self.fresh[user] = (amount, now + 1_000_000)
        if amount == 9:
            self.nines.add(user)
        return user, seen

    def watermark(self) -> None:
        for user in self.nines:
            self.held[user] = []
        self.nines.clear()


class Clock:
    now = 0

    def now_us(self) -> int:
        return self.now

    def monotonic(self) -> float:
        return self.now / 1e6


class Job:
    """Subtasks of one operator on one backend, with a store."""

    incremental_rows = 3

    def __init__(self, store: ObjectStore, folder: Path, backend: str, budget: int = 64 * 1024 * 1024) -> None:
        self.store, self.folder, self.budget = store, folder, budget
        self.clock = Clock()
        self.emitted: list[tuple[Any, ...]] = []
        self.checkpoint = 0
        self.attempt = 0
        self.time = 0
        self.uploaded: list[int] = []
        self.handles: tuple[StateHandle, ...] = ()
        self.function: type[KeyedProcessFunction] = Ledger
        self.subtasks: list[ProcessOperator] = []
        self.start(backend, 1)

    def emit(self, frame: pl.DataFrame) -> None:
        self.emitted += frame.iter_rows()

    def emit_side(self, name: str, frame: pl.DataFrame) -> None:
        raise AssertionError(name)

    def start(self, backend: str, parallelism: int) -> None:
        self.close()
        self.attempt += 1
        self.subtasks = []
        for index in range(parallelism):
            function = self.function()
            described = describe(function)
            spec = specs.Process(
                keys=("user",),
                function=specs.Function(name="Ledger", pickled=b"", columns=described.columns),
                per_batch=described.per_batch,
                states=described.states,
                output=schemas.fields(OUTPUT),
            )
            operator = ProcessOperator(spec, function)
            home = StateHome(backend, self.folder / f"{self.attempt}-{index}", self.budget, self.incremental_rows)
            context = OperatorContext(
                job=JobId("job"),
                attempt=Attempt(self.attempt),
                uid=UID,
                subtask=SubtaskId(VertexId("v"), index),
                parallelism=parallelism,
                max_parallelism=M,
                clock=self.clock,
                settings=JobSettings(),
                state=home,
            )
            operator.open(context, self)
            restored = state_objects.read(
                self.store,
                self.handles,
                groups=group_range(index, parallelism, M),
                index=index,
                parallelism=parallelism,
                uids=[UID],
                folder=self.folder,
            )
            if files := restored.files.get(UID):
                operator.restore_files(files)
            if sections := restored.get(UID):
                operator.restore(sections)
            self.subtasks.append(operator)

    def send(self, rows: list[tuple[str, int]]) -> None:
        frame = pl.DataFrame(rows, schema={"user": pl.String(), "amount": pl.Int64()}, orient="row")
        groups = key_groups(frame, ["user"], M)
        for index, operator in enumerate(self.subtasks):
            owned = group_range(index, len(self.subtasks), M)
            mine = frame.filter(pl.Series([int(group) in owned for group in groups], dtype=pl.Boolean()))
            if mine.height:
                operator.on_batch(mine)

    def watermark(self) -> None:
        """Time goes on: a timer for what has passed waits for that."""
        self.time += 1
        for operator in self.subtasks:
            operator.on_watermark(self.time)

    def freeze(self) -> Any:
        """The fast half of a checkpoint; call what is returned for the slow half."""
        self.checkpoint += 1
        checkpoint, attempt = CheckpointId(self.checkpoint), Attempt(self.attempt)
        snapshots = [operator.snapshot(checkpoint) for operator in self.subtasks]

        def write() -> None:
            handles = [
                state_objects.write(
                    self.store,
                    checkpoint,
                    attempt,
                    SubtaskId(VertexId("v"), index),
                    [(UID, section) for section in snapshot()],
                )
                for index, snapshot in enumerate(snapshots)
            ]
            self.handles = tuple(handles)
            self.uploaded.append(sum(handle.uploaded_size for handle in handles))

        return write

    def close(self) -> None:
        for operator in self.subtasks:
            operator.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="penstock-contract-"))
    yield path
    shutil.rmtree(path)


BACKENDS = ["memory", "rocksdb"]
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("rows"),
            st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 9)), min_size=1, max_size=8),
        ),
        st.just(("watermark",)),
        st.tuples(st.just("clock"), st.integers(0, 1_500_000)),
        st.just(("freeze",)),
        st.just(("write",)),
        st.tuples(st.just("restore"), st.sampled_from([1, 2, 3]), st.sampled_from(BACKENDS)),
    ),
    max_size=14,
)


A_TIMER_OF_THE_PAST = [("watermark",), ("rows", [("a", 9)]), ("restore", 1, "memory"), ("watermark",)]


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=12, deadline=None)
@given(steps=STEPS)
@example(steps=A_TIMER_OF_THE_PAST)
def test_state_is_what_a_dictionary_would_hold(backend: str, steps: list[Any]) -> None:
    root = Path(tempfile.mkdtemp(prefix="penstock-contract-"))
    job = Job(open_store(str(root / "store")), root / "work", backend, budget=1024 * 1024)
    model, wanted = Model(), list[tuple[str, str]]()
    slow_halves: list[Any] = []
    try:
        for step in [*steps, ("rows", [(user, 1) for user in "abcdefgh"])]:
            match step:
                case ("rows", rows):
                    job.send(rows)
                    # Subtasks emit in their own order: rows of a key keep theirs.
                    wanted += [model.row(user, amount, job.clock.now) for user, amount in rows]
                case ("watermark",):
                    job.watermark()
                    model.watermark()
                case ("clock", step_us):
                    job.clock.now += step_us
                case ("freeze",):
                    slow_halves.append(job.freeze())
                case ("write",) if slow_halves:
                    slow_halves.pop(0)()
                case ("restore", parallelism, other):
                    for write in slow_halves:
                        write()
                    slow_halves.clear()
                    job.freeze()()
                    job.start(other, parallelism)
    finally:
        job.close()
        shutil.rmtree(root)
    by_user = [sorted(rows, key=lambda row: row[0]) for rows in (job.emitted, wanted)]
    assert by_user[0] == by_user[1]


def test_a_late_snapshot_has_the_state_of_its_barrier(folder: Path) -> None:
    for backend in BACKENDS:
        job = Job(open_store(str(folder / backend)), folder / "work", backend)
        job.send([("a", 1), ("b", 2)])
        write = job.freeze()
        job.send([("a", 5), ("c", 7)])
        write()
        job.start(backend, 3)
        job.emitted.clear()
        job.send([("a", 1), ("b", 1), ("c", 1)])
        job.close()
        assert sorted(row[1].split()[0] for row in job.emitted) == ["0", "1", "2"]


def test_a_burst_behind_a_barrier_is_written_though_the_snapshot_waits(folder: Path) -> None:
    job = Job(open_store(str(folder / "store")), folder / "work", "rocksdb", budget=256 * 1024)
    job.send([("a", 1), ("b", 2)])
    write = job.freeze()
    for first in range(0, 10_000, 500):
        job.send([(f"user-{number}", number) for number in range(first, first + 500)])
    (table, *_) = job.subtasks[0].calls.states.tables
    assert isinstance(table.values, StoredDict)
    assert table.values.cached_rows < 3_000, "rows in memory stay within the budget"
    write()
    job.start("rocksdb", 1)
    job.emitted.clear()
    job.send([("a", 1), ("b", 1), ("user-7", 1)])
    job.close()
    assert sorted(row[1].split()[0] for row in job.emitted) == ["0", "1", "2"], "the state of the barrier"


def test_only_new_files_are_uploaded(folder: Path) -> None:
    job = Job(open_store(str(folder / "store")), folder / "work", "rocksdb")
    job.send([(f"user-{number}", number) for number in range(20_000)])
    job.freeze()()
    job.send([("user-1", 1)])
    job.freeze()()
    assert job.uploaded[1] < job.uploaded[0] / 10
    job.start("rocksdb", 1)
    job.send([("user-2", 1)])
    job.freeze()()
    job.close()
    assert job.uploaded[2] < job.uploaded[0] / 10, "files that were restored are in the store already"


def test_only_changes_of_large_state_in_memory_are_uploaded(folder: Path) -> None:
    job = Job(open_store(str(folder / "store")), folder / "work", "memory")
    job.send([(f"user-{number}", number) for number in range(20_000)])
    job.freeze()()
    for _ in range(3):
        job.send([("user-1", 1), ("user-9", 9)])
        job.watermark()
        job.freeze()()
    assert max(job.uploaded[1:]) < job.uploaded[0] / 10
    job.start("memory", 3)
    job.emitted.clear()
    job.send([("user-1", 1), ("user-9", 1), ("user-50", 1)])
    assert sorted(row[1].split()[0] for row in job.emitted) == ["0", "4", "50"]


def test_nothing_is_left_on_the_disk(folder: Path) -> None:
    job = Job(open_store(str(folder / "store")), folder / "work", "rocksdb")
    job.send([("a", 1)])
    job.freeze()()
    job.start("rocksdb", 2)
    job.start("rocksdb", 1)
    job.close()
    assert list((folder / "work").iterdir()) == []


def test_state_larger_than_its_cache(folder: Path) -> None:
    job = Job(open_store(str(folder / "store")), folder / "work", "rocksdb", budget=4 * 1024 * 1024)
    users = [f"user-{number}" for number in range(30_000)]
    for start in range(0, len(users), 2_000):
        job.send([(user, 1) for user in users[start : start + 2_000]])
    table = job.subtasks[0].calls.states.tables[0]
    assert table.rows < len(users), "not all rows are at hand"
    job.emitted.clear()
    job.send([(user, 1) for user in users[::7]])
    job.close()
    assert {row[1].split()[0] for row in job.emitted} == {"1"}


def test_auto_moves_to_rocksdb_when_state_grows(folder: Path) -> None:
    job = Job(open_store(str(folder / "store")), folder / "work", "memory", budget=4 * 1024 * 1024)
    job.start("auto", 1)
    tables = job.subtasks[0].calls.states.tables
    job.send([("a", 1)])
    assert not tables[0].is_stored
    job.send([(f"user-{number}", 2) for number in range(30_000)])
    assert tables[0].is_stored
    job.freeze()()
    job.start("auto", 2)
    job.emitted.clear()
    job.send([("a", 1), ("user-9", 1)])
    job.close()
    assert sorted(row[1].split()[0] for row in job.emitted) == ["1", "2"]


def test_another_type_is_converted_or_refused(folder: Path) -> None:
    class Wider(Ledger):
        total = ValueState(float, default=0.0)

    class Other(Ledger):
        total = ValueState(str, default="")

    class Fewer(KeyedProcessFunction):
        total = ValueState(int, default=0)

        def process(self, ctx: KeyedContext, amount: int) -> Any:
            return None

    job = Job(open_store(str(folder / "store")), folder / "work", "rocksdb")
    job.send([("a", 3)])
    job.freeze()()
    job.function = Wider
    job.start("rocksdb", 1)
    job.emitted.clear()
    job.send([("a", 1)])
    assert job.emitted[0][1].startswith("3.0 ")
    for function, code in ((Other, "S005"), (Fewer, "S004")):
        job.function = function
        with pytest.raises(UserError, match=code):
            job.start("rocksdb", 1)
    job.close()
