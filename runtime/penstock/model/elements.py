"""What flows on a channel, in order: batches, watermarks, idleness, barriers, marks of a loop, the end of input."""

import enum
from dataclasses import dataclass

import msgspec
import polars as pl

from penstock.model.ids import CheckpointId, Uid


class BarrierKind(enum.Enum):
    """What happens when the barrier has passed everything. One mechanism, several uses."""

    CHECKPOINT = "checkpoint"
    """Go on afterwards."""

    SAVEPOINT = "savepoint"
    """Go on afterwards; subtasks also write their state as tables that anybody can read."""

    STOP = "stop"
    """Sources emit nothing after it; the job ends with this checkpoint and can go on from it."""

    RESTART = "restart"
    """Sources emit nothing after it; the job starts again from this checkpoint at once, with another parallelism."""

    RESCALE = "rescale"
    """Behind it, rows go to the subtasks of another parallelism, and key groups that get another owner are handed
    over. It is a checkpoint of the size before."""

    FINAL = "final"
    """All input has ended; the job is finished when this checkpoint is committed."""


class Barrier(msgspec.Struct, frozen=True):
    """Cuts the stream: rows before it belong to the checkpoint, rows after it do not."""

    checkpoint: CheckpointId
    kind: BarrierKind = BarrierKind.CHECKPOINT
    overtakes: bool = False
    """Unaligned: it passes by the rows that wait in queues, and those become part of the checkpoint."""
    savepoint: str = ""
    """URI of the savepoint that subtasks write tables into; empty: a checkpoint alone."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows. Never empty."""

    frame: pl.DataFrame


@dataclass(frozen=True, slots=True)
class Watermark:
    """No row with an event time at or before this is expected any more (microseconds)."""

    time: int


@dataclass(frozen=True, slots=True)
class Idleness:
    """An idle channel does not hold the watermark back; it is active again when it says so."""

    idle: bool


@dataclass(frozen=True, slots=True)
class EndOfInput:
    """No more rows will come. Barriers still do: a finished input takes part in checkpoints."""


class LoopMark(msgspec.Struct, frozen=True):
    """Goes once round a loop behind everything that was in front of it, to find out whether the loop is empty."""

    loop: Uid
    """The uid of its head."""
    round: int
    dirty: bool
    """Somebody on its way has sent a row on since the mark of the round before, or may yet do so unasked."""


Element = Batch | Watermark | Idleness | Barrier | LoopMark | EndOfInput
