"""Whom a slot listens to: peers that were admitted for its job and attempt, and nobody else."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from penstock import graph as graphs
from penstock.api import Flow
from penstock.connectors import discard, items
from penstock.exchange import wire
from penstock.exchange.ports import Buffer
from penstock.model import messages
from penstock.model.clocks import SystemClock
from penstock.model.ids import Attempt, JobId, SlotId, TaskManagerId
from penstock.model.settings import JobSettings
from penstock.model.tasks import Deployment
from penstock.operators.factory import make_operator
from penstock.storage import MemoryStore
from penstock.taskmanager.slot import Slot

HERE, THERE = SlotId(TaskManagerId("tm"), 0), SlotId(TaskManagerId("tm"), 1)
JOB, ATTEMPT = JobId("job"), Attempt(1)


class SilentLink:
    writable = True
    closed = False

    def send(self, parts: Sequence[Buffer]) -> None:
        pass

    def close(self) -> None:
        self.closed = True


class LonelyTransport:
    address = "here:1"

    def connect(self, address: str, job: JobId, attempt: Attempt, sender: SlotId) -> SilentLink:
        return SilentLink()


class AtOnce:
    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        done(work())


@pytest.fixture
def told() -> list[object]:
    return []


@pytest.fixture
def slot(told: list[object]) -> Slot:
    """The first of two slots that exchange rows, deployed."""
    flow = Flow("two")
    flow.read(items([{"n": 1}]), uid="numbers").rebalance().write(discard(), uid="out")
    [region] = graphs.execution(flow.plan(parallelism=2, max_parallelism=8))
    infos = [messages.SlotInfo(slot=each, address=f"{each}", pid=1) for each in (HERE, THERE)]
    tasks = dict(graphs.place(region, infos))[HERE]
    made = Slot(
        HERE,
        clock=SystemClock(),
        background=AtOnce(),
        open_store=lambda _: MemoryStore(),
        make_operator=make_operator,
        report=told.append,
    )
    made.transport = LonelyTransport()
    deployment = Deployment(job=JOB, attempt=ATTEMPT, slot=HERE, tasks=tasks, settings=JobSettings(), store="")
    made.on_message(messages.Deploy(deployment=deployment))
    assert [type(message) for message in told] == [messages.Running]
    told.clear()
    return made


def send_out_of_order(slot: Slot, link: SilentLink) -> None:
    """A frame that fails the slot if it is looked at."""
    [channel] = [channel for channel, (_, _, sender) in slot._receive.items() if sender == THERE]
    header = wire.pack_header(wire.FrameKind.WATERMARK, ATTEMPT, channel, 7, 8)
    slot.on_frame(link, header, memoryview(bytes(8)))


def test_a_peer_is_listened_to(slot: Slot, told: list[Any]) -> None:
    link = SilentLink()
    slot.on_accept(link, JOB, ATTEMPT, THERE)
    send_out_of_order(slot, link)
    assert [message.code for message in told] == ["C010"]


@pytest.mark.parametrize(("job", "attempt"), [(JobId("job before"), ATTEMPT), (JOB, Attempt(2))])
def test_a_link_for_other_work_is_closed_and_its_frames_do_not_count(
    slot: Slot, told: list[Any], job: JobId, attempt: Attempt
) -> None:
    link = SilentLink()
    slot.on_accept(link, job, attempt, THERE)
    assert link.closed
    send_out_of_order(slot, link)
    assert told == []
