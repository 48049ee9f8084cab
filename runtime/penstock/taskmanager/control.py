"""Frames between a slot process and its TaskManager: four bytes of length, then a message as JSON."""

import struct
from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec

_LENGTH = struct.Struct("<I")

T = TypeVar("T")


def encode_frame(message: msgspec.Struct) -> bytes:
    """One message, ready to be written."""
    body = msgspec.json.encode(message)
    return _LENGTH.pack(len(body)) + body


class FrameReader(Generic[T]):
    """Turns bytes, cut anywhere, back into messages."""

    def __init__(self, decoder: "msgspec.json.Decoder[T]") -> None:
        self._decoder = decoder
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[T]:
        """All messages that are complete with these bytes."""
        self._buffer += data
        position = 0
        while len(self._buffer) - position >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, position)
            end = position + _LENGTH.size + length
            if end > len(self._buffer):
                break
            yield self._decoder.decode(bytes(self._buffer[position + _LENGTH.size : end]))
            position = end
        del self._buffer[:position]
