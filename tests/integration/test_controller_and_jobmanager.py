"""The controller's view of a real JobManager: what the two images have agreed upon is the JSON between them."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from penstock.jobmanager.state_dir import StateDir
from penstock_operator.deciding.facts import Engine, EngineJob
from penstock_operator.engine import EngineRefusedError, Engines

PROGRAMS = Path(__file__).parent / "embedded_programs.py"
PENSTOCK = [sys.executable, "-m", "penstock.cli"]


async def until(condition: Callable[[], Awaitable[bool]], *, seconds: float = 200) -> None:
    deadline = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.05)


@pytest.fixture
def address(tmp_path) -> Iterator[str]:
    """A JobManager, and a TaskManager with two slots."""
    with (tmp_path / "log").open("w") as log:
        words = ["jobmanager", "--port=0", "--rest-port=0", f"--state-dir={tmp_path}"]
        jobmanager = subprocess.Popen([*PENSTOCK, *words], stderr=log)
        deadline = time.monotonic() + 100
        while (addresses := StateDir(tmp_path).addresses()) is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        words = ["taskmanager", f"--jobmanager={addresses.grpc}", "--slots=2", "--id=orders-taskmanager-0"]
        taskmanager = subprocess.Popen([*PENSTOCK, *words], stderr=log, stdout=log)
        yield addresses.rest
        for process in (taskmanager, jobmanager):
            process.send_signal(signal.SIGTERM)
            assert process.wait(200) == 0


@pytest.fixture
async def engines() -> AsyncIterator[Engines]:
    async with Engines() as opened:
        yield opened


async def test_the_life_of_a_job_as_the_controller_sees_it(address, engines, tmp_path):
    async def look() -> Engine:
        found = await engines.look(["http://127.0.0.1:9", address], "orders-1")
        assert found is not None
        assert found[0] == address
        return found[1]

    async def job() -> EngineJob:
        found = (await look()).job("orders-1")
        assert found is not None
        return found

    async def has_slots() -> bool:
        return (await look()).slots == 2

    await until(has_slots)
    program = [f"{PROGRAMS}:drip_for_ever", "--checkpoint-interval=100ms", "--detach", "--id=orders-1"]
    command = [*PENSTOCK, "run", *program, f"--jobmanager={address}"]
    await asyncio.to_thread(subprocess.run, command, check=True, stdout=subprocess.DEVNULL)

    async def has_checkpoint() -> bool:
        return (await job()).checkpoints > 0

    await until(has_checkpoint)
    first = await job()
    assert (first.state, first.parallelism, first.ended) == ("running", 1, False)
    assert first.running_us is not None
    assert first.checkpoint_id is not None
    engine = await look()
    assert engine.busy_pods == {"orders-taskmanager-0"}
    assert engine.rescales == ()

    await engines.rescale(address, "orders-1", 2)

    async def is_rescaled() -> bool:
        rescales = (await look()).rescales
        assert rescales
        assert rescales[-1].status != "failed", rescales
        return rescales[-1].status == "completed"

    await until(is_rescaled)
    assert (await job()).parallelism == 2

    folder = str(tmp_path / "mine")
    for _ in range(2):
        await engines.take_savepoint(address, "orders-1", name="before-2", folder=folder, stop=True)

    async def has_stopped() -> bool:
        return (await job()).ended

    await until(has_stopped)
    assert (await job()).state == "stopped"
    [taken] = (await look()).savepoints
    assert (taken.name, taken.status) == ("before-2", "completed")
    with pytest.raises(EngineRefusedError, match="S008"):
        await engines.take_savepoint(address, "orders-1", name="another", folder=folder, stop=False)
    await engines.cancel(address, "orders-1")
    assert (await job()).state == "stopped"


async def test_a_jobmanager_that_is_not_there_is_no_engine(engines):
    assert await engines.look(["http://127.0.0.1:9"], None) is None
