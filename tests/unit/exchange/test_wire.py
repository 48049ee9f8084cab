"""What is encoded comes back, for every element and every type of column."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.exchange import wire
from penstock.model import schemas
from penstock.model.elements import Barrier, BarrierKind, Batch, Element, EndOfInput, Idleness, Watermark
from penstock.model.ids import Attempt, ChannelId, CheckpointId

EVERYTHING = pl.DataFrame(
    {
        "i": [1, None, 3],
        "f": [0.5, float("nan"), None],
        "s": ["a", None, "a longer string than fits a view"],
        "b": [b"x", b"", None],
        "t": [datetime(2026, 1, 1, tzinfo=UTC), None, datetime(1969, 1, 1, tzinfo=UTC)],
        "d": [date(2026, 1, 1), None, date(1969, 1, 1)],
        "u": [timedelta(seconds=1), None, timedelta(days=-1)],
        "m": [Decimal("1.25"), None, Decimal("-3.50")],
        "l": [[1, 2], [], None],
        "r": [{"x": 1, "y": ["a"]}, {"x": None, "y": []}, None],
        "o": [True, None, False],
    },
    schema_overrides={"t": pl.Datetime("ms", "UTC"), "m": pl.Decimal(10, 2)},
)


@pytest.mark.parametrize(
    "element",
    [
        Watermark(-(2**63)),
        Watermark(2**63 - 1),
        Idleness(True),
        Idleness(False),
        Barrier(CheckpointId(9), BarrierKind.STOP),
        EndOfInput(),
    ],
)
def test_every_control_element_comes_back(element: Element) -> None:
    codec = wire.ElementCodec(schemas.fields({"x": pl.Int64()}))
    kind, body = codec.encode(element)
    assert codec.decode(kind, memoryview(bytes(body))) == element


@pytest.mark.parametrize("frame", [EVERYTHING, EVERYTHING[1:], pl.concat([EVERYTHING, EVERYTHING])])
def test_a_batch_of_every_type_comes_back_even_sliced_and_in_pieces(frame: pl.DataFrame) -> None:
    codec = wire.ElementCodec(schemas.fields(frame.schema))
    kind, body = codec.encode(Batch(frame))
    back = codec.decode(kind, memoryview(bytes(body)))
    assert isinstance(back, Batch)
    assert back.frame.schema == frame.schema
    assert back.frame.equals(frame)


def test_a_slice_carries_only_its_own_strings() -> None:
    frame = pl.DataFrame({"s": [f"a string that is too long to be inlined {i}" for i in range(10_000)]})
    codec = wire.ElementCodec(schemas.fields(frame.schema))
    _, body = codec.encode(Batch(frame.slice(5_000, 10)))
    assert len(body) < 2_000


@given(st.sampled_from(wire.FrameKind), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**63))
def test_a_header_comes_back(kind: wire.FrameKind, attempt: int, channel: int, sequence: int) -> None:
    data = wire.pack_header(kind, Attempt(attempt), ChannelId(channel), sequence, 123)
    assert wire.unpack_header(data) == wire.Header(kind, Attempt(attempt), ChannelId(channel), sequence, 123)


def test_a_frame_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="99"):
        wire.unpack_header(bytes([99]) + bytes(wire.HEADER_BYTES - 1))
