"""One running subtask: takes elements from its channels, or rows from its source, and drives its chain.

Owns: which channel is read next, alignment, event time of the subtask, its part of the checkpoint under way.
Does not own: the network, uploads, the loop. `step` does one piece of work and never waits.
Invariant: barriers, watermarks and rows are handled one at a time on one thread, in the order of their channel; but a
barrier that overtakes is handled as soon as it is there, even when outputs are full. Restored rows come before all.
"""

import enum
from collections import deque
from collections.abc import Callable, Iterable, Sequence, Set

import msgspec

from penstock.checkpoint.alignment import Aligned, Aligner, Stale
from penstock.exchange.channels import ReceiveChannel
from penstock.model.clocks import MAX_WATERMARK, MIN_WATERMARK, Clock
from penstock.model.counters import OperatorMetrics
from penstock.model.elements import Barrier, BarrierKind, Batch, EndOfInput, Idleness, LoopMark, Watermark
from penstock.model.errors import UserError
from penstock.model.ids import ChannelId, CheckpointId, SubtaskId
from penstock.model.messages import TaskMetrics
from penstock.operators.batch_sizes import BatchSize
from penstock.operators.sources import SourceOperator
from penstock.operators.valve import Valve, ValveChange
from penstock.taskmanager.chain import Chain
from penstock.taskmanager.in_flight import Cut, Snapshots, Waiting
from penstock.taskmanager.loops import HeadRounds, PassingMarks

TakeSnapshot = Callable[["RunningTask", Barrier, Snapshots, tuple[OperatorMetrics, ...]], None]


_BATCH_SECONDS = 0.1
"""What a batch may take: barriers and timers wait for it. Kernels need a fraction of it for the largest batch, so that
they keep it on a busy machine too."""

_FIRST_ROWS = 1024
"""Nothing is known of a function before its first batch; one that needs a millisecond per row is held up for one."""


class Outcome(enum.Enum):
    """What a step came to."""

    WORKED = "worked"
    STARVED = "starved"
    """Nothing to do until input or time comes."""
    BLOCKED = "blocked"
    """There may be input, but an output has no room."""


class RunningTask:
    """A subtask after it was opened."""

    def __init__(
        self,
        subtask: SubtaskId,
        chain: Chain,
        inputs: Sequence[ReceiveChannel],
        *,
        clock: Clock,
        max_rows: int,
        hurry_bytes: int = 1 << 20,
        on_snapshot: TakeSnapshot,
        on_ended: Callable[[SubtaskId], None],
        on_rescale: Callable[["RunningTask", Barrier], None] = lambda task, barrier: None,
        restored: Iterable[Waiting] = (),
    ) -> None:
        self.subtask, self.chain = subtask, chain
        self.ended = False
        self._ending = False
        """All input has ended; rows may be on their way yet."""
        self._after_rows: list[Callable[[], None]] = []
        self._inputs = tuple(inputs)
        self._clock, self._hurry_bytes = clock, hurry_bytes
        self._on_snapshot, self._on_ended, self._on_rescale = on_snapshot, on_ended, on_rescale
        self._feedback = tuple(channel for channel in inputs if channel.feedback)
        forward = [channel for channel in inputs if not channel.feedback]
        feedback = [channel.id for channel in self._feedback]
        self._aligner = Aligner((channel.id for channel in forward), feedback=feedback)
        timeless = chain.head.operator.timeless_ports
        self._valve: Valve[ChannelId] = Valve(channel.id for channel in forward if channel.port not in timeless)
        self._rounds = HeadRounds(chain.head.description.uid, feedback) if feedback else None
        self._marks = PassingMarks(self._inputs)
        self._restored = deque(restored)
        self._cut: Cut | None = None
        self._overtaking = CheckpointId(0)
        """The JobManager has said that barriers of this checkpoint overtake."""
        self._next_input = 0
        self._open_inputs = len(forward)
        self._last_barrier = CheckpointId(0)
        self._watermark = MIN_WATERMARK
        self._source = chain.head.operator if isinstance(chain.head.operator, SourceOperator) else None
        most = self._source.most_rows if self._source is not None else max_rows
        self._batch = BatchSize(most, target=_BATCH_SECONDS, first=_FIRST_ROWS)
        self._last_rows, self._last_seconds = 0, 0.0
        """The last batch, and what it has taken so far: here, and until outputs had room again."""
        self._source_due = 0.0
        self.standing = False
        """It has gone, or is not there yet: nothing is read, and no timer runs."""
        self._held_until = 0.0
        self._busy_seconds = 0.0
        self._blocked_seconds = 0.0
        self._reported_at = clock.monotonic()
        self._blocked_since: float | None = None

    # ------------------------------------------------------------ work

    def step(self, now: float) -> Outcome:
        """Handle one element or read one batch."""
        if self.standing:
            return Outcome.STARVED
        if self.chain.full or self._is_held(now):
            if self._blocked_since is None:
                self._blocked_since = now
            return Outcome.BLOCKED
        if self._blocked_since is not None:
            self._blocked_seconds += now - self._blocked_since
            self._last_seconds += now - self._blocked_since
            self._blocked_since = None
        worked = self._work(now)
        if worked:
            self._busy_seconds += self._clock.monotonic() - now
            return Outcome.WORKED
        return Outcome.STARVED

    def _batch_rows(self) -> int:
        """How many rows to take, after what the last ones took."""
        if self._last_rows:
            self._batch.measured(self._last_rows, self._last_seconds)
            self._last_rows, self._last_seconds = 0, 0.0
        return self._batch.rows

    def _took(self, rows: int, since: float) -> None:
        self._last_rows, self._last_seconds = rows, self._clock.monotonic() - since

    def _work(self, now: float) -> bool:
        if self._restored:
            rows = self._restored.popleft()
            self.chain.node(rows.operator).receive(rows.frame, rows.port)
            return True
        if self._source is not None:
            return self._read_source(now)
        return self._take_element() or self._send_mark(now)

    def wait(self, now: float) -> float | None:
        """Seconds until this task wants a step without being told that input, or room for output, came."""
        if self.standing:
            return None
        waits = []
        if self._held_until > now:
            waits.append(self._held_until - now)
        elif self._source is not None and not self._ending and self._blocked_since is None:
            waits.append(max(0.0, self._source_due - now))
        if self._looks_for_end and self._rounds is not None and (pause := self._rounds.wait(now)) is not None:
            waits.append(pause)
        due_us = self.chain.next_processing_time()
        if due_us is not None:
            waits.append(max(0.0, (due_us - self._clock.now_us()) / 1_000_000))
        return min(waits, default=None)

    def _is_held(self, now: float) -> bool:
        """Whether an operator of the chain, such as a sink with a pace of its own, takes nothing yet.

        Asked anew each time: what it waits for may have come.
        """
        wait_us = self.chain.ready_in_us
        self._held_until = now + wait_us / 1_000_000 if wait_us else 0.0
        return wait_us > 0

    def on_processing_time(self) -> None:
        """Run what is due by the wall clock."""
        if self.standing:
            return
        due_us = self.chain.next_processing_time()
        if due_us is not None and due_us <= (now_us := self._clock.now_us()):
            self.chain.on_processing_time(now_us)
        if self._after_rows and not self.chain.in_flight:
            waiting, self._after_rows = self._after_rows, []
            for action in waiting:
                action()

    def _read_source(self, now: float) -> bool:
        source = self._source
        if source is None or self._ending or now < self._source_due:
            return False
        result = source.poll(self._batch_rows())
        if result.emitted:
            self._took(result.rows, now)
        if result.watermark is not None:
            self._advance(result.watermark, through_head=False)
        if result.idle is not None:
            self._tell_idleness(result.idle)
        if result.ended:
            self._end()
        if result.wait_us:
            self._source_due = now + result.wait_us / 1_000_000
        return result.emitted or result.ended

    def _take_element(self) -> bool:
        blocked = self._aligner.blocked
        for channel in self._feedback:
            # A loop that makes many rows works them off before it takes in more.
            if channel.queued_bytes > self._hurry_bytes and channel.id not in blocked:
                self._handle(channel)
                return True
        count = len(self._inputs)
        for turn in range(count):
            channel = self._inputs[(self._next_input + turn) % count]
            if channel and channel.id not in blocked:
                self._next_input = (self._next_input + turn + 1) % count
                self._handle(channel)
                return True
        return False

    def _handle(self, channel: ReceiveChannel) -> None:
        if channel.feedback:
            self._handle_feedback(channel)
            return
        match channel.take(self._batch_rows()):
            case Batch(frame):
                since = self._clock.monotonic()
                self.chain.head.receive(frame, channel.port)
                self._took(frame.height, since)
            case Watermark(time) if channel.id in self._valve:
                self._apply(self._valve.on_watermark(channel.id, time))
            case Idleness(idle) if channel.id in self._valve:
                self._apply(self._valve.on_idleness(channel.id, idle))
            case Barrier() as barrier:
                self._on_barrier(channel, barrier)
            case LoopMark() as mark:
                passed = self._marks.on_mark(channel.id, mark)
                if passed is not None:
                    self.chain.mark(passed)
            case EndOfInput():
                self._open_inputs -= 1
                if channel.id in self._valve:
                    self._apply(self._valve.on_end(channel.id))
                if not self._open_inputs and self._rounds is None:
                    self._end()

    # ------------------------------------------------------------ the head of a loop

    @property
    def _looks_for_end(self) -> bool:
        """Only what is in the loop is left."""
        return self._rounds is not None and not self._open_inputs and not self._ending

    def _handle_feedback(self, channel: ReceiveChannel) -> None:
        """Time and the end have come round from here: they mean nothing."""
        assert self._rounds is not None
        match channel.take(self._batch_rows()):
            case Batch(frame) if not self.ended:
                self._rounds.on_rows()
                since = self._clock.monotonic()
                self.chain.head.receive(frame, channel.port)
                self._took(frame.height, since)
            case Batch(frame):
                raise UserError(
                    "P025",
                    f"{frame.height} rows were fed back to a loop that is over: an operator in it gives out rows "
                    "when its input ends",
                    where=f'operator "{self.chain.head.description.uid}"',
                    fix="take that operator out of the loop, or out of the way back",
                )
            case Barrier() as barrier:
                self._on_barrier(channel, barrier)
            case LoopMark() as mark:
                if self._rounds.on_mark(channel.id, mark, self._clock.monotonic()):
                    self._end()

    def _send_mark(self, now: float) -> bool:
        if not self._looks_for_end or self._rounds is None:
            return False
        mark = self._rounds.next_mark(now)
        if mark is not None:
            self.chain.mark(mark)
        return mark is not None

    # ------------------------------------------------------------ time and the end

    def _apply(self, change: ValveChange) -> None:
        # What has been read to its end may still come round: time ends with the loop, not with its input.
        still_looping = self._rounds is not None and not self._ending
        if change.watermark is not None and not (still_looping and change.watermark == MAX_WATERMARK):
            self._advance(change.watermark, through_head=True)
        if change.idle is not None:
            self._tell_idleness(change.idle)

    def _advance(self, watermark: int, *, through_head: bool) -> None:
        self._watermark = watermark
        if through_head:
            self.chain.head.on_watermark(watermark)
        else:
            self.chain.head.pass_watermark(watermark)

    def _tell_idleness(self, idle: bool) -> None:
        self._behind_rows(lambda: self.chain.control(Idleness(idle)))

    def _behind_rows(self, action: Callable[[], None]) -> None:
        """Now, or when the rows that operators still hold have left: nothing may be told that they contradict."""
        if self._after_rows or self.chain.in_flight:
            self._after_rows.append(action)
        else:
            action()

    def _end(self) -> None:
        self._ending = True
        if self._watermark != MAX_WATERMARK:
            self._advance(MAX_WATERMARK, through_head=self._source is None)
        self._behind_rows(self._finish)

    def _finish(self) -> None:
        self.chain.end()
        self.chain.control(EndOfInput())
        self.ended = True
        self._on_ended(self.subtask)

    # ------------------------------------------------------------ barriers

    @property
    def is_source(self) -> bool:
        """Barriers start here."""
        return self._source is not None

    @property
    def awaited_time(self) -> int:
        """Sources only: how far this one is for those that keep step with it."""
        return self._source.awaited_time if self._source is not None else MAX_WATERMARK

    def align(self, others: int) -> None:
        """Sources only: how far the slowest of those is that this one keeps step with."""
        if self._source is not None and self._source.others != others:
            self._source.others = others
            self._source_due = 0.0

    def inject(self, barrier: Barrier) -> None:
        """Sources only: the coordinator wants a barrier here and now."""
        if barrier.checkpoint <= self._last_barrier or self._source is None or self.standing:
            return
        self._last_barrier = barrier.checkpoint
        self._begin_cut(barrier)
        if barrier.kind in (BarrierKind.STOP, BarrierKind.RESTART):
            self._source.stop_emitting()

    def abort(self, checkpoint: CheckpointId) -> None:
        """The checkpoint was given up: read blocked channels again, and write nothing for it."""
        self._aligner.abort(checkpoint)
        if self._source is not None and self._last_barrier <= checkpoint:
            # If it was to be the last one, another may come, or the job goes on.
            self._source.go_on()
        if self._cut is not None and self._cut.barrier.checkpoint <= checkpoint:
            self._cut.drop()
            self._cut = None

    def let_overtake(self, checkpoint: CheckpointId) -> None:
        """From now on barriers of this checkpoint overtake, also the one that waits at our own outputs."""
        self._overtaking = checkpoint
        if self._cut is not None and self._cut.barrier.checkpoint == checkpoint:
            self._cut.overtake(self.chain.gates)

    def overtake(self) -> None:
        """Once a turn, whether or not outputs have room: a barrier that overtakes does not wait for its place.

        It may come to the head of a loop from behind, sent round by another subtask of the head.
        """
        barrier = self._overtaking_barrier()
        if barrier is None:
            return
        blocked = self._aligner.blocked if self._aligner.pending == barrier.checkpoint else ()
        if any(channel.in_order and channel.id not in blocked for channel in self._inputs):
            return
        missing = self._aligner.overtake(barrier)
        if missing is None:
            for channel in self._inputs:
                channel.announced = None
            return
        self._begin_cut(msgspec.structs.replace(barrier, overtakes=True), missing)

    def settle(self) -> None:
        """Write our part of the checkpoint once it is whole."""
        cut = self._cut
        if cut is not None and cut.complete(self.chain.gates):
            self._cut = None
            head = self.chain.head
            snapshots = cut.release(self.subtask, head.description.uid, head.context.max_parallelism)
            self._on_snapshot(self, cut.barrier, snapshots, cut.counters)

    def _overtaking_barrier(self) -> Barrier | None:
        """The newest barrier that must not wait: it came as such, or the JobManager has run out of patience."""
        pending = self._aligner.pending_barrier
        found = [channel.announced for channel in self._inputs if channel.announced is not None]
        if pending is not None and (pending.overtakes or pending.checkpoint == self._overtaking):
            found.append(pending)
        elif self._overtaking and any(channel.holds(self._overtaking) for channel in self._inputs):
            found.append(Barrier(self._overtaking))
        return max(found, key=lambda barrier: barrier.checkpoint, default=None)

    def _begin_cut(self, barrier: Barrier, missing: Set[ChannelId] = frozenset()) -> None:
        """Snapshot and pass the barrier on. It has yet to come on the channels in `missing`."""
        if self._cut is not None:
            self._cut.drop()
        recording = [channel for channel in self._inputs if channel.id in missing]
        for channel in recording:
            channel.capture(barrier.checkpoint)
        snapshots = self.chain.barrier(barrier)
        self._cut = Cut(
            barrier, snapshots, self.counters(), [(each, each.keys) for each in recording], tuple(self._restored)
        )
        if barrier.kind is BarrierKind.RESCALE:
            self._on_rescale(self, barrier)
        elif barrier.overtakes or barrier.checkpoint == self._overtaking:
            self._cut.overtake(self.chain.gates)

    def _on_barrier(self, channel: ReceiveChannel, barrier: Barrier) -> None:
        match self._aligner.on_barrier(channel.id, barrier):
            case Aligned(aligned, missing):
                self._begin_cut(aligned, missing)
            case Stale(stale, forward=True):
                self.chain.control(stale)

    # ------------------------------------------------------------ another size

    @property
    def watermark(self) -> int:
        """How far event time is in front of the chain."""
        return self._watermark

    @property
    def ending(self) -> bool:
        """All input has ended."""
        return self._ending or self.ended

    def reshape(self, inputs: Sequence[ReceiveChannel], *, restarted: Set[ChannelId], passed: CheckpointId) -> None:
        """From now on read these. What `restarted` have said of event time counts no longer."""
        assert not self._feedback, "loops are not rescaled while they run"
        timeless = self.chain.head.operator.timeless_ports
        self._inputs, self._next_input = tuple(inputs), 0
        for channel in inputs:
            channel.ended = channel.ended and channel.id not in restarted
        self._open_inputs = sum(not channel.ended for channel in inputs)
        self._aligner = Aligner((channel.id for channel in inputs), passed=passed)
        self._marks = PassingMarks(self._inputs)
        timed = [channel.id for channel in inputs if channel.port not in timeless]
        self._valve, change = self._valve.replaced(timed, restarted=restarted)
        self._apply(change)

    def read_from(self, source: SourceOperator) -> None:
        """The head is this from now on. The one before may have come to its end, with other splits."""
        self.ended = self._ending = False
        self._watermark = MIN_WATERMARK
        self.chain.head.operator.close()
        self.chain.head.operator = self._source = source
        self.chain.find_askable()
        self._source_due, self.standing = 0.0, False

    # ------------------------------------------------------------ report

    def counters(self) -> tuple[OperatorMetrics, ...]:
        """Rows that the operators have counted since they were opened."""
        return tuple(
            OperatorMetrics(
                uid=node.description.uid,
                rows_in=node.counters.rows_in,
                rows_out=node.counters.rows_out,
                late_rows=node.counters.late_rows,
                bad_rows=node.counters.bad_rows,
                state_rows=node.counters.state_rows,
                state_bytes=node.counters.state_bytes,
                cache_hits=node.counters.cache_hits,
                cache_misses=node.counters.cache_misses,
                user=node.counters.user.read(),
            )
            for node in self.chain.nodes
        )

    def metrics(self) -> TaskMetrics:
        """Counters since the start, shares since the last report. Called from the reporter's thread."""
        now = self._clock.monotonic()
        elapsed = max(1e-9, now - self._reported_at)
        blocked = self._blocked_seconds + (now - self._blocked_since if self._blocked_since is not None else 0.0)
        busy, self._busy_seconds, self._blocked_seconds, self._reported_at = self._busy_seconds, 0.0, 0.0, now
        if self._blocked_since is not None:
            self._blocked_since = now
        return TaskMetrics(
            subtask=self.subtask,
            operators=self.counters(),
            watermark=self._watermark,
            busy=min(1.0, busy / elapsed),
            backpressured=min(1.0, blocked / elapsed),
            held=self._source is not None and self._source.held,
            ended=self.ended,
        )
