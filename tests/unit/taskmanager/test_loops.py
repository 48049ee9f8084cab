"""A loop is over when, and only when, nothing is under way in it: the rounds against rows that wander at random."""

from collections import deque
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.exchange.channels import ReceiveChannel
from penstock.model.elements import LoopMark
from penstock.model.ids import ChannelId, Uid
from penstock.model.settings import ExchangeSettings
from penstock.taskmanager.loops import HeadRounds, PassingMarks

LOOP = Uid("loop")
Item = int | LoopMark
"""A row is the number of turns that it has yet to go."""


def channel(number: int, *, loop: Uid | None = LOOP) -> ReceiveChannel:
    return ReceiveChannel(ChannelId(number), 0, ExchangeSettings(), loop=loop)


def mark(round_: int, *, dirty: bool = False) -> LoopMark:
    return LoopMark(LOOP, round_, dirty)


def test_a_loop_is_over_after_a_round_without_rows() -> None:
    rounds = HeadRounds(LOOP, [ChannelId(0)])
    assert rounds.next_mark(0.0) == mark(1)
    assert rounds.next_mark(0.0) is None, "one round at a time"
    assert not rounds.on_mark(ChannelId(0), mark(1, dirty=True), 0.0)
    assert rounds.next_mark(0.0) is None, "a pause, so that nobody spins"
    assert rounds.wait(0.0) == 0.001
    assert rounds.next_mark(0.01) == mark(2)
    assert rounds.on_mark(ChannelId(0), mark(2), 0.01)


def test_rows_that_come_back_end_the_pause() -> None:
    rounds = HeadRounds(LOOP, [ChannelId(0)])
    rounds.next_mark(0.0)
    rounds.on_mark(ChannelId(0), mark(1, dirty=True), 0.0)
    rounds.on_rows()
    assert rounds.next_mark(0.0) == mark(2)


def test_pauses_grow_up_to_a_bound() -> None:
    rounds = HeadRounds(LOOP, [ChannelId(0)])
    now, pauses = 0.0, list[float]()
    for number in range(1, 10):
        assert rounds.next_mark(now) is not None
        rounds.on_mark(ChannelId(0), mark(number, dirty=True), now)
        pauses.append(round(rounds.wait(now) or 0.0, 6))
        now += 1.0
    assert pauses == [0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.05, 0.05, 0.05]


def test_a_task_passes_a_mark_on_when_it_has_come_on_all_channels_of_the_loop() -> None:
    outside = channel(9, loop=None)
    passing = PassingMarks([channel(0), channel(1), outside])
    assert passing.on_mark(ChannelId(0), mark(1)) is None
    assert passing.on_mark(ChannelId(1), mark(1)) == mark(1, dirty=True), "more may come from outside"
    outside.ended = True
    assert passing.on_mark(ChannelId(0), mark(2, dirty=True)) is None
    assert passing.on_mark(ChannelId(1), mark(2)) == mark(2, dirty=True)
    assert passing.on_mark(ChannelId(0), mark(3)) is None
    assert passing.on_mark(ChannelId(1), mark(3)) == mark(3)


class Body:
    """A task of the loop between heads and tails: may keep rows for a while, as timers and calls do."""

    def __init__(self, inputs: list[ReceiveChannel]) -> None:
        self.marks = PassingMarks(inputs)
        self.kept: list[int] = []
        self.carried = False


@dataclass
class Model:
    """`size` heads and `size` tasks in the body; tail i feeds head i, and sends its marks to all heads."""

    size: int
    spread: bool
    """Rows go to any task of the body, or to the one of the same index."""
    to_body: dict[tuple[int, int], deque[Item]] = field(default_factory=dict)
    to_head: dict[tuple[int, int], deque[Item]] = field(default_factory=dict)
    body: list[Body] = field(default_factory=list)

    def __post_init__(self) -> None:
        pairs = [(a, b) for a in range(self.size) for b in range(self.size)]
        self.to_body = {(a, b): deque() for a, b in pairs if self.spread or a == b}
        self.to_head = {pair: deque() for pair in pairs}
        self.body = [
            Body([channel(sender) for sender in range(self.size) if (sender, task) in self.to_body])
            for task in range(self.size)
        ]

    @property
    def rows(self) -> int:
        queues = [*self.to_body.values(), *self.to_head.values()]
        under_way = sum(isinstance(item, int) for queue in queues for item in queue)
        return under_way + sum(len(task.kept) for task in self.body)


@settings(deadline=None, max_examples=80)
@given(data=st.data())
def test_heads_end_together_when_the_loop_is_empty(data: st.DataObject) -> None:
    size, spread, keeps = data.draw(st.integers(1, 3)), data.draw(st.booleans()), data.draw(st.booleans())
    model = Model(size, spread)
    rounds = [HeadRounds(LOOP, [ChannelId(tail) for tail in range(size)]) for _ in range(size)]
    carried = [False] * size
    inputs = [deque(data.draw(st.lists(st.integers(0, 3), max_size=3))) for _ in range(size)]
    ended: set[int] = set()
    now = 0.0

    def emit(head: int, turns: int) -> None:
        if turns:
            choices = [task for task in range(size) if (head, task) in model.to_body]
            model.to_body[head, data.draw(st.sampled_from(choices))].append(turns - 1)
            carried[head] = True

    def feed_back(task: int, row: int) -> None:
        model.to_head[task, task].append(row)
        model.body[task].carried = True

    def pass_on(task: int, passed: LoopMark) -> None:
        body = model.body[task]
        dirty, body.carried = passed.dirty or body.carried or bool(body.kept), False
        for head in range(size):
            model.to_head[task, head].append(mark(passed.round, dirty=dirty))

    def step(kind: str, one: int, other: int) -> None:
        match kind:
            case "input":
                emit(one, inputs[one].popleft())
            case "body":
                item = model.to_body[one, other].popleft()
                if isinstance(item, LoopMark):
                    if passed := model.body[other].marks.on_mark(ChannelId(one), item):
                        pass_on(other, passed)
                elif keeps and data.draw(st.booleans()):
                    model.body[other].kept.append(item)
                else:
                    feed_back(other, item)
            case "kept":
                feed_back(one, model.body[one].kept.pop())
            case "head":
                item = model.to_head[one, other].popleft()
                if isinstance(item, int):
                    assert other not in ended, "a row came to a loop that was over"
                    rounds[other].on_rows()
                    emit(other, item)
                elif rounds[other].on_mark(ChannelId(one), item, now):
                    assert not model.rows, "the loop is not empty"
                    assert not any(inputs)
                    ended.add(other)
            case "mark":
                sent = rounds[one].next_mark(now)
                assert sent is not None
                dirty, carried[one] = carried[one], False
                for (head, _), queue in model.to_body.items():
                    if head == one:
                        queue.append(mark(sent.round, dirty=dirty))

    def possible() -> list[tuple[str, int, int]]:
        steps = [("input", head, 0) for head in range(size) if inputs[head]]
        steps += [("body", *pair) for pair, queue in model.to_body.items() if queue]
        steps += [("kept", task, 0) for task in range(size) if model.body[task].kept]
        steps += [("head", *pair) for pair, queue in model.to_head.items() if queue]
        for head in range(size):
            if not inputs[head] and head not in ended and rounds[head].wait(now) == 0.0:
                steps.append(("mark", head, 0))
        return steps

    for _ in range(3_000):
        if len(ended) == size:
            break
        now += 1.0
        steps = possible()
        step(*(data.draw(st.sampled_from(steps)) if len(steps) > 1 else steps[0]))
    assert len(ended) == size, "the loop never ended"
