"""Frames over real sockets: whole, in order, and every loss is noticed."""

import socket
import time
from collections.abc import Callable, Iterator

import pytest

from penstock.exchange import wire
from penstock.exchange.ports import Buffer, Link
from penstock.exchange.sockets import SocketTransport
from penstock.model.ids import Attempt, ChannelId, JobId, SlotId, TaskManagerId

JOB, ATTEMPT = JobId("job"), Attempt(3)
ME = SlotId(TaskManagerId("tm"), 0)


class Recorder:
    """A LinkHandler that remembers."""

    def __init__(self) -> None:
        self.accepted: list[tuple[Link, JobId, Attempt, SlotId]] = []
        self.frames: list[tuple[wire.Header, bytes]] = []
        self.lost: list[str] = []

    def on_accept(self, link: Link, job: JobId, attempt: Attempt, sender: SlotId) -> None:
        self.accepted.append((link, job, attempt, sender))

    def on_frame(self, link: Link, header: Buffer, body: memoryview) -> None:
        self.frames.append((wire.unpack_header(header), bytes(body)))

    def on_lost(self, link: Link, reason: str) -> None:
        self.lost.append(reason)


class Ends:
    def __init__(self) -> None:
        self.here, self.there = Recorder(), Recorder()
        self.caller = SocketTransport("127.0.0.1", self.here)
        self.called = SocketTransport("127.0.0.1", self.there)

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 5
        while not condition():
            assert time.monotonic() < deadline, "nothing happened"
            self.caller.poll(0.001)
            self.called.poll(0.001)


@pytest.fixture
def ends() -> Iterator[Ends]:
    pair = Ends()
    yield pair
    pair.caller.close()
    pair.called.close()


def frame(sequence: int, body: bytes) -> list[bytes]:
    return [wire.pack_header(wire.FrameKind.BATCH, ATTEMPT, ChannelId(1), sequence, len(body)), body]


def test_the_called_side_learns_who_calls(ends: Ends) -> None:
    ends.caller.connect(ends.called.address, JOB, ATTEMPT, ME)
    ends.until(lambda: bool(ends.there.accepted))
    assert ends.there.accepted[0][1:] == (JOB, ATTEMPT, ME)


def test_frames_of_any_size_arrive_whole_and_in_order(ends: Ends) -> None:
    link = ends.caller.connect(ends.called.address, JOB, ATTEMPT, ME)
    bodies = [b"", b"x", b"y" * 20_000_000, b"z" * 100]
    for sequence, body in enumerate(bodies):
        link.send(frame(sequence, body))
    assert not link.writable
    ends.until(lambda: len(ends.there.frames) == len(bodies))
    assert [(header.sequence, body) for header, body in ends.there.frames] == list(enumerate(bodies))
    assert link.writable


def test_frames_travel_back_on_the_same_link(ends: Ends) -> None:
    ends.caller.connect(ends.called.address, JOB, ATTEMPT, ME)
    ends.until(lambda: bool(ends.there.accepted))
    ends.there.accepted[0][0].send([wire.credit_frame(ATTEMPT, ChannelId(4), 77)])
    ends.until(lambda: bool(ends.here.frames))
    header, body = ends.here.frames[0]
    assert (header.kind, header.channel, wire.unpack_credit(body)) == (wire.FrameKind.CREDIT, ChannelId(4), 77)


def test_a_closed_link_is_lost_on_the_other_side_only(ends: Ends) -> None:
    link = ends.caller.connect(ends.called.address, JOB, ATTEMPT, ME)
    ends.until(lambda: bool(ends.there.accepted))
    link.close()
    ends.until(lambda: bool(ends.there.lost))
    assert not ends.here.lost


def test_sending_on_a_broken_link_is_no_error_until_the_next_poll(ends: Ends) -> None:
    link = ends.caller.connect(ends.called.address, JOB, ATTEMPT, ME)
    ends.until(lambda: bool(ends.there.accepted))
    ends.there.accepted[0][0].close()
    deadline = time.monotonic() + 5
    while link.writable:  # the first frames may still go into the void
        assert time.monotonic() < deadline
        link.send(frame(0, b"x" * 100_000))
    assert not ends.here.lost
    while not ends.here.lost:
        assert time.monotonic() < deadline
        ends.caller.poll(0.001)


def test_nobody_listening_is_a_lost_link(ends: Ends) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ends.caller.connect(address, JOB, ATTEMPT, ME)
        ends.until(lambda: bool(ends.here.lost))


def test_a_refused_connection_is_told_from_poll_and_not_before(ends: Ends) -> None:
    ends.caller.connect("127.0.0.1:0", JOB, ATTEMPT, ME)
    assert not ends.here.lost
    ends.until(lambda: bool(ends.here.lost))


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", bytes([2]) + bytes(23), b"\xff" * 64])
def test_a_stranger_is_hung_up_on(ends: Ends, garbage: bytes) -> None:
    host, _, port = ends.called.address.rpartition(":")
    with socket.create_connection((host, int(port))) as stranger:
        stranger.sendall(garbage)
        ends.until(lambda: bool(ends.there.lost))
    assert not ends.there.accepted
    assert not ends.there.frames
