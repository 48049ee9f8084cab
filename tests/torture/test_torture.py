"""Random SIGKILLs of real processes: whatever dies and when, the result is that of a run in which nothing does.

An episode runs one job on a cluster of its own while a seeded plan kills its JobManager, TaskManagers and slot
processes, and while an outside reader watches the sink's directory as any other program could.
"""

import contextlib
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from penstock.api.programs import build
from penstock.local import LocalCluster
from penstock.model.errors import RetryableError, UserError
from penstock.model.settings import CheckpointSettings, JobSettings, RestartSettings
from penstock.model.views import JobView

sys.path.insert(0, str(Path(__file__).parent))
from kinds import KINDS, kind_of
from outside_reader import OutsideReader, restarts_and_checkpoints

T = TypeVar("T")

TASK_MANAGERS = 2
EPISODE_SECONDS = 90.0
POLL_SECONDS = 0.02
ENDED = frozenset({"finished", "stopped", "cancelled", "failed"})


@dataclass(frozen=True, slots=True)
class Kill:
    after_seconds: float
    role: str
    choice: float
    """Which of the processes of that role, as a number between 0 and 1."""
    rescale_to: int | None = None
    """Parallelism that somebody asks for just before."""


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int
    kind: str
    parallelism: int
    kills: tuple[Kill, ...]
    alignment_timeout_us: int | None

    @classmethod
    def of(cls, seed: int) -> "Plan":
        """As many seeds in a row as there are kinds of jobs have each of them once."""
        rng = random.Random(seed)
        kills = tuple(
            Kill(rng.uniform(0.1, 1.5), rng.choice(("taskmanager", "slot", "jobmanager")), rng.random())
            for _ in range(rng.randint(2, 4))
        )
        parallelism = (2, 4)[seed // len(KINDS) % 2]
        wishes = random.Random(f"rescales of {seed}")
        if wishes.random() < 0.5:
            kills = tuple(replace(kill, rescale_to=wishes.randint(1, parallelism)) for kill in kills)
        patience_us = rng.choice((None, 0, 20_000))
        return cls(seed, kind_of(seed), parallelism, kills, patience_us)

    @property
    def settings(self) -> JobSettings:
        """Barriers overtake never, always, or after a while."""
        checkpoint = CheckpointSettings(interval_us=200_000, alignment_timeout_us=self.alignment_timeout_us)
        restart = RestartSettings(max_delay_us=500_000, budget=1_000)
        return JobSettings(checkpoint=checkpoint, restart=restart, state=KINDS[self.kind].state)


@pytest.mark.torture
@pytest.mark.timeout(EPISODE_SECONDS + 30)
def test_committed_output_equals_the_oracle_whatever_is_killed(
    seed: int, tmp_path: Path, totals: dict[str, Counter[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    plan, out, state_dir = Plan.of(seed), tmp_path / "out", tmp_path / "state"
    kind = KINDS[plan.kind]
    program = partial(kind.program, out=str(out), seed=seed)
    graph = build(program, parallelism=plan.parallelism, settings=plan.settings)
    with LocalCluster(
        state_dir, task_managers=TASK_MANAGERS, slots_per_task_manager=plan.parallelism // TASK_MANAGERS
    ) as cluster:
        job = cluster.client.submit(msgspec.json.encode(graph)).id
        reader = OutsideReader(out, state_dir / "jobs" / job, kind.oracle(seed))
        with reader.watching():
            _wait_for(lambda: cluster.client.job(job).running_us, "a running job")
            killed = [_carry_out(kill, cluster, job) for kill in plan.kills]
            view = _wait_for_end(cluster, job)
    assert not reader.complaints, "\n".join(reader.complaints)
    assert view.state == "finished", view.reason
    reader.look_at_the_end()
    assert not reader.complaints, "\n".join(reader.complaints)
    rows, (restarts, checkpoints) = reader.rows.height, restarts_and_checkpoints(reader.store)
    facts = {"episodes": 1, "kills": len(killed), "restarts": restarts, "checkpoints": checkpoints, "rows": rows}
    totals.setdefault(plan.kind, Counter()).update(facts)
    with capsys.disabled():
        print(
            f"\nseed {seed}: {plan.kind} x{plan.parallelism}, killed {', '.join(killed)}; {restarts} restarts, "
            f"{checkpoints} checkpoints, {rows} rows, looked {reader.looks} times: equal",
            flush=True,
        )


# ---------------------------------------------------------------- kills


def _carry_out(kill: Kill, cluster: LocalCluster, job: str) -> str:
    """Ask for another size or not, wait, then kill; returns what was done."""
    asked = ""
    if kill.rescale_to is not None:
        with contextlib.suppress(UserError, RetryableError):  # it may not run just now
            cluster.client.rescale(job, parallelism=kill.rescale_to)
            asked = f"x{kill.rescale_to} then "
    time.sleep(kill.after_seconds)  # not for something to happen: the moment is what is random
    pids = _wait_for(lambda: _pids(kill.role, cluster), f"a {kill.role}")
    with contextlib.suppress(ProcessLookupError):
        os.kill(pids[int(kill.choice * len(pids))], signal.SIGKILL)
    return asked + kill.role


def _pids(role: str, cluster: LocalCluster) -> list[int]:
    if role != "slot":
        return [pid for name, pid in sorted(cluster.pids().items()) if name.startswith(role)]
    try:
        return sorted(process.pid for process in cluster.client.cluster().processes if process.role == "slot")
    except RetryableError:
        return []


def _wait_for_end(cluster: LocalCluster, job: str) -> JobView:
    reasons = Counter[str]()

    def ended() -> JobView | None:
        cluster.check()
        with contextlib.suppress(RetryableError):
            view = cluster.client.job(job)
            reasons[view.reason] += 1
            return view if view.state in ENDED else None
        return None

    try:
        return _wait_for(ended, "the end of the job")
    except TimeoutError as error:
        raise TimeoutError(f"{error}; reasons that it gave, by number of looks: {dict(reasons)}") from error


def _wait_for(ask: Callable[[], T | None], what: str) -> T:
    deadline = time.monotonic() + EPISODE_SECONDS
    while not (answer := ask()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come within {EPISODE_SECONDS:.0f} s")
        time.sleep(POLL_SECONDS)
    return answer
