"""Random SIGKILLs of real processes: whatever dies and when, the result is that of a run in which nothing does.

An episode runs one job on a cluster of its own while a seeded plan kills its JobManager, TaskManagers and slot
processes, and while an outside reader watches the sink's directory as any other program could.
"""

import contextlib
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
import polars as pl
import pytest

from penstock.api.programs import build
from penstock.checkpoint import journal
from penstock.local import LocalCluster
from penstock.model.errors import RetryableError
from penstock.model.settings import CheckpointSettings, JobSettings, RestartSettings
from penstock.model.views import JobView
from penstock.storage import open_store

sys.path.insert(0, str(Path(__file__).parent))
import torture_programs

T = TypeVar("T")

JOBS = {
    "keyed windows": (torture_programs.keyed_windows, torture_programs.expected_of_keyed_windows),
    "keyed process": (torture_programs.keyed_process, torture_programs.expected_of_keyed_process),
    "loop": (torture_programs.loop, torture_programs.expected_of_loop),
}
TASK_MANAGERS = 2
EPISODE_SECONDS = 90.0
READER_PAUSE_SECONDS = 0.02
ENDED = frozenset({"finished", "stopped", "cancelled", "failed"})


@dataclass(frozen=True, slots=True)
class Kill:
    after_seconds: float
    role: str
    choice: float
    """Which of the processes of that role, as a number between 0 and 1."""


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int
    job: str
    parallelism: int
    kills: tuple[Kill, ...]
    alignment_timeout_us: int | None

    @classmethod
    def of(cls, seed: int) -> "Plan":
        """As many seeds in a row as there are jobs have each of them once."""
        rng = random.Random(seed)
        kills = tuple(
            Kill(rng.uniform(0.1, 1.5), rng.choice(("taskmanager", "slot", "jobmanager")), rng.random())
            for _ in range(rng.randint(2, 4))
        )
        patience_us = rng.choice((None, 0, 20_000))
        return cls(seed, tuple(JOBS)[seed % len(JOBS)], (2, 4)[seed // len(JOBS) % 2], kills, patience_us)

    @property
    def settings(self) -> JobSettings:
        """Barriers overtake never, always, or after a while."""
        checkpoint = CheckpointSettings(interval_us=200_000, alignment_timeout_us=self.alignment_timeout_us)
        return JobSettings(checkpoint=checkpoint, restart=RestartSettings(max_delay_us=500_000, budget=1_000))


@pytest.mark.torture
@pytest.mark.timeout(EPISODE_SECONDS + 30)
def test_committed_output_equals_the_oracle_whatever_is_killed(
    seed: int, tmp_path: Path, totals: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    plan, out, state_dir = Plan.of(seed), tmp_path / "out", tmp_path / "state"
    program, oracle = JOBS[plan.job]
    expected = oracle(seed)
    graph = build(partial(program, out=str(out), seed=seed), parallelism=plan.parallelism, settings=plan.settings)
    with LocalCluster(
        state_dir, task_managers=TASK_MANAGERS, slots_per_task_manager=plan.parallelism // TASK_MANAGERS
    ) as cluster:
        job = cluster.client.submit(msgspec.json.encode(graph)).id
        reader = OutsideReader(out, state_dir / "jobs" / job, expected)
        with reader.watching():
            _wait_for(lambda: cluster.client.job(job).running_us, "a running job")
            killed = [_carry_out(kill, cluster) for kill in plan.kills]
            view = _wait_for_end(cluster, job)
    assert not reader.complaints, "\n".join(reader.complaints)
    assert view.state == "finished", view.reason
    reader.look()
    assert not reader.complaints, "\n".join(reader.complaints)
    rows = reader.rows.height
    assert rows == expected.height
    restarts, checkpoints = _restarts_and_checkpoints(reader.store)
    facts = {"episodes": 1, "kills": len(killed), "restarts": restarts, "checkpoints": checkpoints, "rows": rows}
    for name, value in facts.items():
        totals[name] = totals.get(name, 0) + value
    with capsys.disabled():
        print(
            f"\nseed {seed}: {plan.job} x{plan.parallelism}, killed {', '.join(killed)}; {restarts} restarts, "
            f"{checkpoints} checkpoints, {rows} rows, looked {reader.looks} times: equal",
            flush=True,
        )


# ---------------------------------------------------------------- kills


def _carry_out(kill: Kill, cluster: LocalCluster) -> str:
    """Wait, then kill; returns the role of what was killed."""
    time.sleep(kill.after_seconds)  # not for something to happen: the moment is what is random
    pids = _wait_for(lambda: _pids(kill.role, cluster), f"a {kill.role}")
    with contextlib.suppress(ProcessLookupError):
        os.kill(pids[int(kill.choice * len(pids))], signal.SIGKILL)
    return kill.role


def _pids(role: str, cluster: LocalCluster) -> list[int]:
    if role != "slot":
        return [pid for name, pid in sorted(cluster.pids().items()) if name.startswith(role)]
    try:
        return sorted(process.pid for process in cluster.client.cluster().processes if process.role == "slot")
    except RetryableError:
        return []


def _wait_for_end(cluster: LocalCluster, job: str) -> JobView:
    def ended() -> JobView | None:
        cluster.check()
        with contextlib.suppress(RetryableError):
            view = cluster.client.job(job)
            return view if view.state in ENDED else None
        return None

    return _wait_for(ended, "the end of the job")


def _wait_for(ask: Callable[[], T | None], what: str) -> T:
    deadline = time.monotonic() + EPISODE_SECONDS
    while not (answer := ask()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come within {EPISODE_SECONDS:.0f} s")
        time.sleep(READER_PAUSE_SECONDS)
    return answer


# ---------------------------------------------------------------- the outside reader


@dataclass(slots=True)
class OutsideReader:
    """Reads the sink's directory all the time, and complains about everything that no reader should see."""

    out: Path
    store: Path
    expected: pl.DataFrame
    complaints: list[str] = field(default_factory=list)
    looks: int = 0
    rows: pl.DataFrame = field(default_factory=pl.DataFrame)
    _seen: set[str] = field(default_factory=set)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Look from a thread of its own, until the block ends."""
        done = threading.Event()
        thread = threading.Thread(target=self._watch, args=(done,), name="outside-reader")
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _watch(self, done: threading.Event) -> None:
        while not done.wait(READER_PAUSE_SECONDS) and not self.complaints:
            try:
                self.look()
            except Exception as error:  # the thread's own failure must fail the test too
                self.complaints.append(f"the reader failed: {error!r}")

    def look(self) -> None:
        """One look at the directory. Files never change once they are there, so only new ones are read."""
        found = {str(path.relative_to(self.out)) for path in self.out.glob("**/*.parquet")}
        self.looks += 1
        if gone := self._seen - found:
            self.complaints.append(f"committed files have vanished: {sorted(gone)}")
        new = sorted(found - self._seen)
        self._seen |= found
        if not new:
            return
        # Read after the files were listed: whatever was visible must have been in the journal by now.
        newest = _newest_checkpoint(self.store)
        for name in new:
            # A checkpoint that was given up leaves its rows to the next: they are visible when that is completed.
            if _checkpoint_of(name) > newest:
                self.complaints.append(f"{name} is visible, and the newest checkpoint in the journal is {newest}")
        frames = [pl.read_parquet(self.out / name).select(self.expected.columns) for name in new]
        self._take(pl.concat([self.rows, *frames] if self.rows.width else frames, rechunk=True))

    def _take(self, rows: pl.DataFrame) -> None:
        self.rows = rows
        if duplicated := int(self.rows.is_duplicated().sum()):
            self.complaints.append(f"{duplicated} rows are there more than once")
        wrong = self.rows.cast(dict(self.expected.schema)).join(
            self.expected, on=self.expected.columns, how="anti", nulls_equal=True
        )
        if wrong.height:
            self.complaints.append(f"{wrong.height} rows are in no fault-free result: {wrong.head(3).rows()}")


def _newest_checkpoint(store: Path) -> int:
    manifest = journal.latest(each.entry for each in journal.read_journal(open_store(str(store))))
    return manifest.checkpoint if manifest is not None else 0


def _restarts_and_checkpoints(store: Path) -> tuple[int, int]:
    """As the journal has them, over all JobManagers; old checkpoints are deleted, but not renumbered."""
    entries = [each.entry for each in journal.read_journal(open_store(str(store)))]
    attempts = sum(isinstance(entry, journal.AttemptStarted) for entry in entries)
    others = len(entries) - sum(isinstance(entry, journal.CheckpointCompleted) for entry in entries)
    return attempts - 1, entries[-1].sequence + 1 - others


def _checkpoint_of(name: str) -> int:
    """Part files are called part-<uid>-<subtask>-<attempt>-<checkpoint>-<number>."""
    return int(Path(name).stem.rsplit("-", 2)[1])
