"""A JobManager as a process of its own: who owns a state directory, and what survives a kill."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from penstock.graph import JobGraph, Vertex
from penstock.jobmanager.state_dir import StateDir
from penstock.model.errors import UserError
from penstock.model.ids import Uid, VertexId
from penstock.model.specs import Connector, Operator, Sink, Source
from penstock.model.tasks import ChainLink
from penstock.rpc import RestClient


def wait_until(condition: Callable[[], bool], *, seconds: float = 200) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


class Started:
    """`penstock jobmanager` on any free ports."""

    def __init__(self, state_dir: Path, *more: str) -> None:
        self.state_dir = state_dir
        self._errors = (state_dir.parent / f"{state_dir.name}.log").open("a+")
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "penstock.cli",
                "jobmanager",
                "--port=0",
                "--rest-port=0",
                f"--state-dir={state_dir}",
                *more,
            ],
            stderr=self._errors,
        )

    def client(self) -> RestClient:
        def is_mine() -> bool:
            addresses = StateDir(self.state_dir).addresses()
            return addresses is not None and addresses.pid == self.process.pid

        wait_until(is_mine)
        addresses = StateDir(self.state_dir).addresses()
        assert addresses is not None
        return RestClient(addresses.rest)

    def rest_port(self) -> int:
        return int(self.client().url.rpartition(":")[2])

    def errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read()

    def end(self, number: int = signal.SIGKILL) -> int:
        self.process.send_signal(number)
        return self.process.wait(200)

    def close(self) -> None:
        if self.process.poll() is None:
            self.end()
        self._errors.close()


@pytest.fixture
def start(tmp_path) -> Iterator[Callable[..., Started]]:
    started: list[Started] = []

    def one(*more: str) -> Started:
        started.append(Started(tmp_path / "state", *more))
        return started[-1]

    yield one
    for jobmanager in started:
        jobmanager.close()


def graph(name: str = "calm") -> bytes:
    source = Operator(uid=Uid("read"), name="read", spec=Source(connector=Connector(kind="items")))
    sink = Operator(uid=Uid("out"), name="out", spec=Sink(connector=Connector(kind="discard")))
    chain = (ChainLink(operator=source, parent=None), ChainLink(operator=sink, parent=0))
    vertex = Vertex(id=VertexId("read"), chain=chain, parallelism=1)
    return msgspec.json.encode(JobGraph(name=name, vertices=(vertex,), edges=(), bounded=True))


def test_it_says_where_it_listens_and_ends_in_order(start):
    jobmanager = start()
    client = jobmanager.client()
    assert client.health()["pid"] == jobmanager.process.pid
    [process] = client.cluster().processes
    assert (process.role, process.pid) == ("jobmanager", jobmanager.process.pid)
    assert jobmanager.end(signal.SIGTERM) == 0
    assert StateDir(jobmanager.state_dir).addresses() is None


def test_one_that_may_not_stand_by_is_refused_with_the_pid_of_the_first(start):
    first = start()
    first.client()
    second = start("--no-standby")
    assert second.process.wait(200) == 2
    assert f"C001 http://127.0.0.1:{first.rest_port()}: the state directory belongs to a running JobManager, pid " in (
        second.errors()
    )
    assert f"kill {first.process.pid}" in second.errors()
    assert "Traceback" not in second.errors()


def test_a_job_waits_for_slots_and_survives_the_death_of_its_jobmanager(start):
    first = start()
    client = first.client()
    job = client.submit(graph(), name="patient").id
    assert job.startswith("patient-")
    wait_until(lambda: client.job(job).state == "waiting-for-slots")
    submitted_us = client.job(job).submitted_us
    first.end(signal.SIGKILL)

    again = start().client()
    view = again.job(job)
    assert (view.name, view.submitted_us) == ("patient", submitted_us)
    assert msgspec.json.decode(again.graph(job), type=JobGraph).name == "patient"
    again.cancel(job)
    wait_until(lambda: again.job(job).state == "cancelled")
    assert again.cancel(job).state == "cancelled"


def test_a_job_that_is_submitted_twice_under_one_id_is_one_job(start):
    first = start()
    client = first.client()
    assert client.submit(graph(), job_id="orders-1").id == "orders-1"
    assert client.submit(graph(), job_id="orders-1").id == "orders-1"
    first.end(signal.SIGKILL)
    again = start().client()
    assert again.submit(graph(), job_id="orders-1").id == "orders-1"
    assert [job.id for job in again.jobs()] == ["orders-1"]
    for wrong in ("../orders", "Orders", "a" * 101):
        with pytest.raises(UserError, match="H003"):
            again.submit(graph(), job_id=wrong)


def test_a_job_cannot_start_from_what_is_not_there(start):
    client = start().client()
    with pytest.raises(UserError, match=r"S001 .*there is no earlier job"):
        client.submit(graph(), origin="latest")
    job = client.submit(graph()).id
    with pytest.raises(UserError, match=f"S008 .*{job} has not ended"):
        client.submit(graph(), origin="latest")
    client.cancel(job)
    wait_until(lambda: client.job(job).state == "cancelled")
    with pytest.raises(UserError, match=f'S001 .*no checkpoint "{job}@7"'):
        client.submit(graph(), origin=f"{job}@7")
    with pytest.raises(UserError, match=r'S001 .*no job "nobody"'):
        client.submit(graph(), origin="nobody")


def test_a_broken_journal_keeps_no_other_job_down(start):
    first = start()
    client = first.client()
    broken, whole = (client.submit(graph(name)).id for name in ("broken", "whole"))
    wait_until(lambda: client.job(broken).state == client.job(whole).state == "waiting-for-slots")
    first.end()
    entry = next((first.state_dir / "jobs" / broken / "journal").iterdir())
    os.truncate(entry, 5)
    assert [job.id for job in start().client().jobs()] == [whole]
