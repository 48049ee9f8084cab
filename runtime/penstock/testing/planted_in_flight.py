"""Planted bugs of rows in flight: of barriers that overtake, of loops, and of checkpoints that come no more."""

from collections.abc import Sequence

import polars as pl

from penstock.checkpoint.coordinator import Coordinator
from penstock.exchange.channels import ReceiveChannel
from penstock.exchange.gates import Gate
from penstock.model.elements import Barrier, Batch, Element
from penstock.model.ids import CheckpointId
from penstock.taskmanager.in_flight import Cut
from penstock.testing.patching import Patch, Plant, patched


def captured_by_nobody() -> Patch:
    """A barrier passes by rows in the sender's queue, and they are not kept."""
    overtake = Cut.overtake

    def careless(self: Cut, gates: Sequence[Gate]) -> None:
        kept = list(self._sent)
        overtake(self, gates)
        self._sent = kept

    return patched(Cut, "overtake", careless)


def captured_twice() -> Patch:
    """The receiver keeps also the rows behind the barrier, which the sender has kept."""
    capture = ReceiveChannel.capture

    def greedy(self: ReceiveChannel, checkpoint: CheckpointId) -> None:
        capture(self, checkpoint)
        self._recorded = [element.frame for element, _ in self._queue if isinstance(element, Batch)]

    return patched(ReceiveChannel, "capture", greedy)


def loop_rows_left_out() -> Patch:
    """What is on its way round a loop is not part of a checkpoint."""
    release = ReceiveChannel.release

    def forgetful(self: ReceiveChannel) -> list[pl.DataFrame]:
        captured = release(self)
        return [] if self.feedback else captured

    return patched(ReceiveChannel, "release", forgetful)


def loop_ends_early() -> Patch:
    """Rows that went by do not make the mark of a loop dirty."""
    return patched(Gate, "carried_rows", False)


def barrier_stays_in_loop() -> Patch:
    """The tail of a loop does not send barriers back to its head."""
    control = Gate.control

    def swallow(self: Gate, element: Element) -> None:
        leads_back = self.destination.loop == self.destination.operator
        if not (leads_back and isinstance(element, Barrier)):
            control(self, element)

    return patched(Gate, "control", swallow)


def armed_once() -> Patch:
    """After a restart the interval does not ask for checkpoints any more."""
    arm = Coordinator.arm

    def once(self: Coordinator, monotonic: float) -> None:
        if not self._last_id:
            arm(self, monotonic)

    return patched(Coordinator, "arm", once)


PLANTED_IN_FLIGHT: dict[str, Plant] = {
    "captured-by-nobody": captured_by_nobody,
    "captured-twice": captured_twice,
    "loop-rows-left-out": loop_rows_left_out,
    "loop-ends-early": loop_ends_early,
    "barrier-stays-in-loop": barrier_stays_in_loop,
    "armed-once": armed_once,
}
