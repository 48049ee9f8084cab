"""The two ends of a channel, with batching, order and credits; the network is somebody else's.

Sender: rows wait as *pending* until there are enough of them, until their time-out, or until input pauses; then
they are *queued* as one batch, and leave as soon as the receiver has room. A watermark waits behind the rows that
were before it and is replaced by a newer one: a late watermark is always right, an early one never.

Credits are bytes. The receiver grants `channel_bytes` at the start and grants again what its task has consumed,
so a sender has at most that much on the way, plus one batch: any credit above zero lets one batch leave, or a
batch larger than the whole budget could never be sent.

An unaligned barrier overtakes: it goes to the front of either queue, and the rows that it passes by are captured as
part of its checkpoint, without leaving their place. A receiver that works ahead of a barrier records the rows that
still come in front of it. The rows of a channel are captured once, by its receiver up to what has arrived when the
barrier is there, by its sender from there on.

Invariants: sequence numbers have no gap; rows, watermarks and barriers keep their order, but for barriers that
overtake; credit in flight plus bytes in the receiver's queue never exceeds the budget by more than one batch.
"""

from collections import deque
from collections.abc import Callable

import msgspec
import polars as pl

from penstock.model.elements import Barrier, Batch, Element, EndOfInput, Watermark
from penstock.model.errors import PenstockError, UserError
from penstock.model.frames import contiguous, stacked
from penstock.model.ids import ChannelId, CheckpointId, Uid
from penstock.model.settings import ExchangeSettings

Deliver = Callable[[int, Element, int], int]
"""Takes sequence number, element and its size in memory: onto a link, or straight into a receiver of the same slot.
Returns the bytes to charge: both ends must count the same, and on a link that is the size of the frame's body."""

_NO_BOUND = 1 << 60

SMALL_BATCH_ROWS = 4096
"""Queued batches below this are joined before a task handles them: a kernel costs as much for 10 rows as for 1,000.
"""


class ChannelBroken(PenstockError):
    """Frames were lost, repeated or of another attempt: nothing that follows can be trusted."""


class SendChannel:
    """The sender's end."""

    def __init__(
        self,
        channel: ChannelId,
        settings: ExchangeSettings,
        *,
        deliver: Deliver,
        writable: Callable[[], bool],
    ) -> None:
        self.id = channel
        self.credit = 0
        self._deliver, self._writable = deliver, writable
        self._granted = False
        self._settings = settings
        self._timeout = settings.batch_timeout_us / 1_000_000
        self._pending: list[pl.DataFrame] = []
        self._pending_rows = 0
        self._pending_since = 0.0
        self._pending_watermark: int | None = None
        self._queue: deque[tuple[Element, int]] = deque()
        self._queued_bytes = 0
        self._sequence = 0
        self.bytes_sent = 0

    @property
    def full(self) -> bool:
        """The task must not produce more: a whole batch already waits for the receiver."""
        return self._queued_bytes > 0 and (self.credit <= 0 or self._queued_bytes >= self._settings.channel_bytes // 2)

    @property
    def drained(self) -> bool:
        """Nothing waits here."""
        return not self._queue and not self._pending and self._pending_watermark is None

    def add(self, frame: pl.DataFrame, now: float) -> None:
        """Rows for this receiver."""
        if not self._pending:
            self._pending_since = now
        self._pending.append(frame)
        self._pending_rows += frame.height
        if self._pending_rows >= self._settings.batch_rows:
            self._seal()

    def add_watermark(self, time: int) -> None:
        """Event time, behind all rows so far."""
        self._pending_watermark = time

    def add_control(self, element: Element) -> None:
        """A barrier, idleness or the end: behind everything so far, and not to be delayed."""
        self._seal()
        self._queue.append((element, 0))

    def flush(self, now: float, *, input_paused: bool) -> float | None:
        """Seal what is due. Returns the seconds until something will be, or None.

        Under back-pressure pending rows stay and grow into a larger batch.
        """
        if not self._pending:
            if self._pending_watermark is not None and self._last_is_watermark is not False:
                self._seal()
            return None
        if self._queue:
            return None
        left = self._pending_since + self._timeout - now
        if input_paused or left <= 0:
            self._seal()
            return None
        return left

    def add_credit(self, amount: int) -> None:
        """The receiver has room for this many bytes more. The first grant says that it is there at all."""
        self._granted = True
        self.credit += amount

    def pump(self) -> bool:
        """Deliver what credit and network allow. True when anything left."""
        moved = False
        while self._queue and self._granted and self._writable():
            element, size = self._queue[0]
            if size and self.credit <= 0:
                break
            self._queue.popleft()
            self._queued_bytes -= size
            charged = self._deliver(self._sequence, element, size)
            self.credit -= charged
            self.bytes_sent += charged
            self._sequence += 1
            moved = True
        return moved

    def holds(self, checkpoint: CheckpointId) -> bool:
        """Whether the barrier still waits here."""
        return any(isinstance(element, Barrier) and element.checkpoint == checkpoint for element, _ in self._queue)

    def overtake(self, checkpoint: CheckpointId) -> list[pl.DataFrame]:
        """Move the barrier in front of everything; returns the rows that it passes by.

        Older barriers are dropped: nobody waits for them any more.
        """
        if not self.holds(checkpoint):
            return []
        waiting, self._queue = self._queue, deque()
        passed_by: list[pl.DataFrame] = []
        found: Barrier | None = None
        for element, size in waiting:
            if found is None and isinstance(element, Barrier):
                found = element if element.checkpoint == checkpoint else None
                continue
            if found is None and isinstance(element, Batch):
                passed_by.append(element.frame)
            self._queue.append((element, size))
        assert found is not None
        self._queue.appendleft((msgspec.structs.replace(found, overtakes=True), 0))
        return passed_by

    def _seal(self) -> None:
        if self._pending:
            frame = stacked(self._pending)
            batch = Batch(frame)
            size = max(1, int(frame.estimated_size()))
            self._queue.append((batch, size))
            self._queued_bytes += size
            self._pending, self._pending_rows = [], 0
        if self._pending_watermark is not None:
            watermark = Watermark(self._pending_watermark)
            if self._last_is_watermark:
                self._queue.pop()
            self._queue.append((watermark, 0))
            self._pending_watermark = None

    @property
    def _last_is_watermark(self) -> bool | None:
        """None when nothing is queued."""
        return isinstance(self._queue[-1][0], Watermark) if self._queue else None


class ReceiveChannel:
    """The receiver's end: a queue in front of a task."""

    def __init__(
        self,
        channel: ChannelId,
        port: int,
        settings: ExchangeSettings,
        *,
        keys: tuple[str, ...] = (),
        in_order: bool = False,
        loop: Uid | None = None,
        feedback: bool = False,
    ) -> None:
        self.id = channel
        self.port, self.keys, self.in_order = port, keys, in_order
        self.loop, self.feedback = loop, feedback
        self.queued_bytes = 0
        """What waits here, as the sender was charged for it."""
        self.grant: Callable[[int], None] | None = None
        """Gives credit to the sender; set when the link is there."""
        self.ended = False
        self.announced: Barrier | None = None
        """The newest barrier that overtakes and waits here, wherever in the queue."""
        self._recording: CheckpointId | None = None
        self._recorded: list[pl.DataFrame] = []
        self._budget = _NO_BOUND if feedback else settings.channel_bytes
        self._bound = settings.loop_bytes if feedback else _NO_BOUND
        self._queue: deque[tuple[Element, int]] = deque()
        self._expected = 0
        self._ungranted = 0

    def __bool__(self) -> bool:
        return bool(self._queue)

    def open(self) -> None:
        """The sender is connected: let it send."""
        if self.grant is not None:
            self.grant(self._budget)

    def put(self, sequence: int, element: Element, size: int) -> None:
        """An element arrived; `size` is what the sender was charged. Only rows cost credit: the rest is small."""
        if sequence != self._expected:
            raise ChannelBroken(
                "C010",
                f"channel {self.id} got element {sequence} where {self._expected} was due",
                fix="nothing to do: the region restarts from its last checkpoint",
            )
        self._expected += 1
        self.queued_bytes += size
        if self.queued_bytes > self._bound:
            raise UserError(
                "P025",
                f'{self.queued_bytes} bytes wait at the head of loop "{self.loop}"; allowed are {self._bound}',
                fix="let fewer rows go round (a condition that ends them), or raise exchange.loop_bytes",
            )
        if isinstance(element, Barrier):
            if self._ends_recording(element):
                return
            if element.overtakes:
                self.announced = element
        elif self._recording is not None and isinstance(element, Batch):
            self._recorded.append(element.frame)
        if isinstance(element, Watermark) and self._queue and isinstance(self._queue[-1][0], Watermark):
            self._queue.pop()
        self._queue.append((element, size))

    def take(self, max_rows: int) -> Element:
        """The next element for the task; small batches that stand in a row come as one, of a large one comes a part.

        What is left of it stays in front, and may be overtaken.
        """
        element, size = self._queue.popleft()
        if isinstance(element, Batch) and element.frame.height > max_rows:
            element, size = self._cut(element.frame, size, max_rows)
        elif isinstance(element, Batch) and element.frame.height < SMALL_BATCH_ROWS:
            frames, rows = [element.frame], element.frame.height
            while self._queue:
                following, following_size = self._queue[0]
                if not isinstance(following, Batch) or rows + following.frame.height > max_rows:
                    break
                self._queue.popleft()
                frames.append(following.frame)
                rows += following.frame.height
                size += following_size
            if len(frames) > 1:
                element = Batch(contiguous(stacked(frames)))
        elif isinstance(element, EndOfInput):
            self.ended = True
        elif element == self.announced:
            self.announced = None
        self.queued_bytes -= size
        self._ungranted += size
        # A quarter of the budget at a time: few credit frames under load, none withheld when the queue is empty.
        if self._ungranted and (self._ungranted * 4 >= self._budget or not self._queue):
            if self.grant is not None:
                self.grant(self._ungranted)
            self._ungranted = 0
        return element

    def _cut(self, frame: pl.DataFrame, size: int, rows: int) -> tuple[Batch, int]:
        share = size * rows // frame.height
        self._queue.appendleft((Batch(frame.slice(rows)), size - share))
        return Batch(frame.head(rows)), share

    # ------------------------------------------------------------ barriers that overtake

    def holds(self, checkpoint: CheckpointId) -> bool:
        """Whether the barrier waits here, behind rows."""
        return any(isinstance(element, Barrier) and element.checkpoint == checkpoint for element, _ in self._queue)

    def capture(self, checkpoint: CheckpointId) -> None:
        """The task goes on as if the barrier had been read: remember the rows in front of it, here or yet to come."""
        waiting, self._queue = self._queue, deque()
        self._recorded, self._recording, self.announced = [], checkpoint, None
        for element, size in waiting:
            if isinstance(element, Barrier) and element.checkpoint <= checkpoint:
                if element.checkpoint == checkpoint:
                    self._recording = None
                continue  # older ones: nobody waits for them any more
            if self._recording is not None and isinstance(element, Batch):
                self._recorded.append(element.frame)
            self._queue.append((element, size))

    @property
    def recording(self) -> bool:
        """The barrier that the task has passed already is still to come."""
        return self._recording is not None

    def release(self) -> list[pl.DataFrame]:
        """The rows that were captured, in their order; nothing more is recorded."""
        captured, self._recorded, self._recording = self._recorded, [], None
        return captured

    def _ends_recording(self, barrier: Barrier) -> bool:
        """Whether the recording waits for this barrier; a newer one ends it too, since it is in vain then."""
        if self._recording is None or barrier.checkpoint < self._recording:
            return False
        expected = barrier.checkpoint == self._recording
        self._recording = None
        if not expected:
            self._recorded = []
        return expected
