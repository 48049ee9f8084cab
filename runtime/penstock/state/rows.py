"""Keys and values of keyed state as bytes, for stores that hold rows of bytes.

A key is: key group (2 bytes, big endian), length and name of the state, the key itself in MessagePack. A value is the
expiry (8 bytes, only with a time to live) and the physical value of its column: fixed width for numbers, else
MessagePack. Both forms are stable: files written by one version are read by the next.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import polars as pl

from penstock.model.errors import UserError
from penstock.state import key_groups
from penstock.state.columns import to_objects
from penstock.state.keys import KeyCodec

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_EXPIRY_BYTES = 8


def group_prefix(group: int) -> bytes:
    """With what the rows of a key group begin."""
    return group.to_bytes(2, "big")


class KeyBytes:
    """Keys of one state."""

    def __init__(self, name: str, keys: KeyCodec, max_parallelism: int) -> None:
        self._keys, self._max_parallelism = keys, max_parallelism
        encoded = name.encode()
        self.state = bytes([len(encoded)]) + encoded
        self._prefixes = [group_prefix(group) + self.state for group in range(max_parallelism)]

    def encode(self, keys: Sequence[Any]) -> list[bytes]:
        """The row keys of these keys."""
        columns = self._keys.encode(keys)
        groups = key_groups.key_groups(pl.DataFrame(columns), self._keys.names, self._max_parallelism)
        prefixes = self._prefixes
        # As integers, since times and decimals have no MessagePack form that is the same for ever.
        parts = [_physical_key(column) for column in columns]
        plain: Iterable[Any] = parts[0] if len(parts) == 1 else zip(*parts, strict=True)
        return [prefixes[group] + _encode(key) for group, key in zip(groups.tolist(), plain, strict=True)]

    def decode(self, rows: Sequence[bytes]) -> list[Any]:
        """The keys of these row keys."""
        start = 2 + len(self.state)
        types = self._keys.types
        plain = [_decode(row[start:]) for row in rows]
        parts = [plain] if len(types) == 1 else list(zip(*plain, strict=True))
        columns = [
            _logical(pl.Series(name, part, dtype=_stored_type(dtype)), dtype)
            for name, part, dtype in zip(self._keys.names, parts, types, strict=True)
        ]
        return self._keys.decode(pl.DataFrame(columns))


class ValueBytes:
    """Values of one state, as columns, with or without an expiry in front."""

    def __init__(self, dtype: pl.DataType, *, where: str = "") -> None:
        if _has_inner_decimal(dtype):
            raise UserError(
                "P017",
                f"values of type {dtype} cannot be kept in RocksDB: a decimal inside of another type",
                where=where,
                fix="name a codec=, or store the number as text or as an integer of the smallest unit",
            )
        self._dtype, self._stored = dtype, _stored_type(dtype)
        numeric = dtype.is_numeric() and not dtype.is_decimal() and dtype not in (pl.Int128, pl.UInt128)
        self._numbers = pl.Series([0], dtype=dtype).to_numpy().dtype if numeric else None

    def encode(self, column: pl.Series, expiries: Sequence[int] | None) -> list[bytes]:
        """One value per row of a column without nulls."""
        if self._numbers is not None:
            data, width = column.to_numpy().tobytes(), self._numbers.itemsize
            values = [data[at : at + width] for at in range(0, len(data), width)]
        else:
            values = list(map(_encode, _physical(column).to_list()))
        if expiries is None:
            return values
        stamps = [expiry.to_bytes(_EXPIRY_BYTES, "little", signed=True) for expiry in expiries]
        return [stamp + value for stamp, value in zip(stamps, values, strict=True)]

    def decode(self, rows: Sequence[bytes], *, expiring: bool) -> tuple[pl.Series, list[int] | None]:
        """The column of these values, and their expiries."""
        expiries = None
        if expiring:
            expiries = [int.from_bytes(row[:_EXPIRY_BYTES], "little", signed=True) for row in rows]
            rows = [row[_EXPIRY_BYTES:] for row in rows]
        if self._numbers is not None:
            return pl.Series(np.frombuffer(b"".join(rows), self._numbers)).cast(self._dtype), expiries
        column = pl.Series(list(map(_decode, rows)), dtype=self._stored)
        return _logical(column, self._dtype), expiries


def _physical(column: pl.Series) -> pl.Series:
    return column.cast(pl.String()) if column.dtype.is_decimal() else column.to_physical()


def _physical_key(column: pl.Series) -> list[Any]:
    if column.dtype.is_float():
        column = column + 0.0  # one zero, as for dictionaries
    return to_objects(_physical(column))


def _stored_type(dtype: pl.DataType) -> pl.DataType:
    return pl.String() if dtype.is_decimal() else pl.Series([], dtype=dtype).to_physical().dtype


def _logical(column: pl.Series, dtype: pl.DataType) -> pl.Series:
    return column if column.dtype == dtype else column.cast(dtype)


def _has_inner_decimal(dtype: pl.DataType) -> bool:
    match dtype:
        case pl.List():
            return _contains_decimal(dtype.inner)
        case pl.Struct():
            return any(_contains_decimal(field.dtype) for field in dtype.fields)
    return False


def _contains_decimal(kind: Any) -> bool:
    dtype: pl.DataType = kind() if isinstance(kind, type) else kind
    return dtype.is_decimal() or _has_inner_decimal(dtype)
