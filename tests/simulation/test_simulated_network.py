from penstock.exchange import wire
from penstock.exchange.ports import Buffer, Link
from penstock.model.ids import Attempt, ChannelId, JobId, SlotId, TaskManagerId
from penstock.testing.network import HALF_OPEN_US, Conditions, Network, Transport
from penstock.testing.processes import Process
from penstock.testing.world import World

ME = SlotId(TaskManagerId("tm"), 0)


class Recorder:
    """A handler that notes what it is told."""

    def __init__(self) -> None:
        self.accepted: list[Link] = []
        self.frames: list[int] = []
        self.lost: list[str] = []
        self.woken = 0

    def on_accept(self, link: Link, job: JobId, attempt: Attempt, sender: SlotId) -> None:
        self.accepted.append(link)

    def on_frame(self, link: Link, header: Buffer, body: memoryview) -> None:
        self.frames.append(wire.unpack_header(header).sequence)

    def on_lost(self, link: Link, reason: str) -> None:
        self.lost.append(reason)

    def wake(self) -> None:
        self.woken += 1


class Pair:
    """Two processes on one network."""

    def __init__(self, conditions: Conditions | None = None) -> None:
        self.world = World(1)
        self.network = Network(self.world, conditions or Conditions())
        self.processes = [Process(self.world, name, pid=number) for number, name in enumerate(("a", "b"))]
        self.handlers = [Recorder(), Recorder()]
        self.transports = [self.listen(number) for number in range(2)]

    def listen(self, number: int) -> Transport:
        handler = self.handlers[number]
        return self.network.listen("ab"[number], self.processes[number], handler, handler.wake)

    def connect(self) -> Link:
        return self.transports[0].connect("b", JobId("job"), Attempt(1), ME)

    def run(self, for_us: int = 60_000_000) -> None:
        self.world.run(until=lambda: False, limit_us=self.world.now_us + for_us)


def frame(sequence: int, size: int = 10) -> list[Buffer]:
    header = wire.pack_header(wire.FrameKind.BATCH, Attempt(1), ChannelId(3), sequence, size)
    return [header, bytes(size)]


def test_frames_arrive_in_the_order_in_which_they_were_sent() -> None:
    pair = Pair(Conditions(jitter_us=50_000))
    link = pair.connect()
    for sequence in range(30):
        link.send(frame(sequence))
    pair.run()
    assert pair.handlers[1].frames == list(range(30))
    assert len(pair.handlers[1].accepted) == 1


def test_a_full_connection_is_not_writable_until_the_receiver_has_read() -> None:
    pair = Pair(Conditions(room_bytes=100))
    link = pair.connect()
    link.send(frame(0, size=200))
    assert not link.writable
    pair.run()
    assert link.writable
    assert pair.handlers[0].woken > 0


def test_a_paused_receiver_fills_its_connection() -> None:
    pair = Pair(Conditions(room_bytes=100))
    link = pair.connect()
    pair.processes[1].pause(1_000_000)
    link.send(frame(0, size=200))
    pair.run(900_000)
    assert not link.writable
    pair.run(200_000)
    assert link.writable


def test_both_ends_of_a_broken_connection_learn_of_it_and_what_was_on_the_way_is_lost() -> None:
    pair = Pair()
    link = pair.connect()
    pair.run()
    link.send(frame(0))
    pair.network.connections[0].break_up(reason="cut")
    pair.run()
    assert [handler.lost for handler in pair.handlers] == [["cut"], ["cut"]]
    assert pair.handlers[1].frames == []


def test_a_half_open_connection_fools_one_end_for_long() -> None:
    pair = Pair()
    pair.connect()
    pair.run()
    connection = pair.network.connections[0]
    connection.break_up(reason="cut", late=connection.ends[0])
    pair.run(HALF_OPEN_US - 1_000_000)
    assert [handler.lost for handler in pair.handlers] == [[], ["cut"]]
    pair.run()
    assert pair.handlers[0].lost == ["cut"]


def test_a_peer_sees_the_end_of_a_process_and_a_closed_link_but_not_its_own_close() -> None:
    pair = Pair()
    pair.connect()
    pair.run()
    pair.processes[1].kill("test")
    pair.run()
    assert pair.handlers[0].lost == ["connection reset by peer"]
    assert pair.handlers[1].lost == []

    other = Pair()
    link = other.connect()
    other.run()
    link.close()
    other.run()
    assert [handler.lost for handler in other.handlers] == [[], ["closed by peer"]]


def test_nobody_listening_refuses() -> None:
    pair = Pair()
    pair.processes[1].kill("test")
    pair.connect()
    pair.run()
    assert pair.handlers[0].lost == ["connection refused"]


def test_a_frame_for_a_dead_process_may_reach_the_next_one_at_its_address() -> None:
    pair = Pair()
    link = pair.connect()
    pair.run()
    link.send(frame(7))
    pair.processes[1].kill("test")
    pair.processes[1] = Process(pair.world, "b2", pid=9)
    pair.transports[1] = pair.listen(1)
    pair.connect()
    pair.run()
    assert pair.handlers[1].frames == [7]
