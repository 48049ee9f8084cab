"""Frames between slots: a fixed header, then a body.

Header: kind, attempt, channel, sequence, body length. A batch's body is an Arrow IPC record batch without its
schema: both ends know it from the job graph. Every element of a channel has the next sequence number; a gap or
a frame of another attempt is found at the receiver, never guessed around.
"""

import enum
import struct
from dataclasses import dataclass

import msgspec
import polars as pl
import pyarrow as pa

from penstock.exchange.ports import Buffer
from penstock.model import schemas
from penstock.model.elements import Barrier, Batch, Element, EndOfInput, Idleness, LoopMark, Watermark
from penstock.model.frames import contiguous
from penstock.model.ids import Attempt, ChannelId, JobId, SlotId
from penstock.model.specs import Schema

_HEADER = struct.Struct("<B3xIIQI")
HEADER_BYTES = _HEADER.size
_INT64 = struct.Struct("<q")


class FrameKind(enum.IntEnum):
    """What the body is."""

    HELLO = 1
    BATCH = 2
    WATERMARK = 3
    IDLENESS = 4
    BARRIER = 5
    END = 6
    CREDIT = 7
    """Receiver -> sender: this many bytes more may be sent."""
    LOOP_MARK = 8
    STATE = 9
    """Key groups for their new owner; belongs to no channel."""


class Hello(msgspec.Struct, frozen=True):
    """The first frame of a link: who calls."""

    job: JobId
    attempt: Attempt
    sender: SlotId


@dataclass(frozen=True, slots=True)
class Header:
    """A decoded header."""

    kind: FrameKind
    attempt: Attempt
    channel: ChannelId
    sequence: int
    length: int


def pack_header(kind: FrameKind, attempt: Attempt, channel: ChannelId, sequence: int, length: int) -> bytes:
    """The bytes of a header."""
    return _HEADER.pack(kind, attempt, channel, sequence, length)


def unpack_header(data: Buffer) -> Header:
    """The header of these bytes; ValueError for a kind that does not exist."""
    kind, attempt, channel, sequence, length = _HEADER.unpack(data)
    return Header(FrameKind(kind), Attempt(attempt), ChannelId(channel), sequence, length)


def credit_frame(attempt: Attempt, channel: ChannelId, amount: int) -> bytes:
    """A grant of `amount` bytes."""
    body = _INT64.pack(amount)
    return pack_header(FrameKind.CREDIT, attempt, channel, 0, len(body)) + body


def unpack_credit(body: Buffer) -> int:
    """The amount of a grant."""
    amount: int = _INT64.unpack(body)[0]
    return amount


class ElementCodec:
    """Elements of channels with one schema."""

    def __init__(self, schema: Schema) -> None:
        self._arrow: pa.Schema = schemas.empty_frame(schema).to_arrow().schema

    def encode(self, element: Element) -> tuple[FrameKind, Buffer]:
        """The kind and body of a frame."""
        match element:
            case Batch(frame):
                return FrameKind.BATCH, memoryview(_record_batch(frame).serialize())
            case Watermark(time):
                return FrameKind.WATERMARK, _INT64.pack(time)
            case Idleness(idle):
                return FrameKind.IDLENESS, bytes([idle])
            case Barrier():
                return FrameKind.BARRIER, msgspec.json.encode(element)
            case LoopMark():
                return FrameKind.LOOP_MARK, msgspec.json.encode(element)
            case EndOfInput():
                return FrameKind.END, b""

    def decode(self, kind: FrameKind, body: memoryview) -> Element:
        """What `encode` was given. A batch points into `body`, which lives as long as the batch does."""
        match kind:
            case FrameKind.BATCH:
                batch = pa.ipc.read_record_batch(pa.py_buffer(body), self._arrow)
                frame = pl.from_arrow(batch)
                assert isinstance(frame, pl.DataFrame)
                return Batch(frame)
            case FrameKind.WATERMARK:
                return Watermark(_INT64.unpack(body)[0])
            case FrameKind.IDLENESS:
                return Idleness(bool(body[0]))
            case FrameKind.BARRIER:
                return msgspec.json.decode(body, type=Barrier)
            case FrameKind.LOOP_MARK:
                return msgspec.json.decode(body, type=LoopMark)
            case FrameKind.END:
                return EndOfInput()
        raise ValueError(f"{kind.name} is not an element of a channel")


def _record_batch(frame: pl.DataFrame) -> pa.RecordBatch:
    # The default compatibility level gives large_string: a string view would drag all of its buffers along.
    batches = contiguous(frame).to_arrow().to_batches()
    return batches[0]
