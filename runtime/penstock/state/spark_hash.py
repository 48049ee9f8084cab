"""Spark's `xxhash64` over columns, bit for bit, vectorised.

Spark folds the columns of a row: the hash of one is the seed of the next, and a null leaves it as it is.
Types of up to 32 bits are hashed as one 4-byte word, types of 64 bits as one 8-byte word, text, bytes and wide
decimals as bytes. `-0.0` is `0.0` and every NaN is the same NaN. Types that Spark lacks are hashed as Spark would
read them from Parquet: UInt32 as bigint, UInt64 as decimal(20, 0).

Work goes in blocks, since 64-bit temporaries of a whole batch would fall out of the cache (measured: 4x slower).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl
import polars_hash  # registers the `nchash` namespace

from penstock.model.errors import UserError

Words = npt.NDArray[np.uint64]

SEED = 42

_BLOCK_ROWS = 16_384
_MASK = 0xFFFF_FFFF_FFFF_FFFF
_PRIME1 = np.uint64(0x9E3779B185EBCA87)
_PRIME2 = np.uint64(0xC2B2AE3D27D4EB4F)
_PRIME3 = np.uint64(0x165667B19E3779F9)
_PRIME4 = np.uint64(0x85EBCA77C2B2AE63)
_PRIME5 = np.uint64(0x27D4EB2F165667C5)
_NAN32, _NAN64 = np.uint32(0x7FC00000), np.uint64(0x7FF8000000000000)

_SPARK_LONG_DIGITS = 18
"""Decimals with more digits do not fit Spark's long; it hashes their bytes."""


def xxhash64(columns: Sequence[pl.Series], seed: int = SEED) -> npt.NDArray[np.int64]:
    """`xxhash64(*columns)` of Spark for every row."""
    if not columns:
        raise ValueError("a hash needs at least one column")
    hashes: Words = np.full(len(columns[0]), seed & _MASK, dtype=np.uint64)
    for position, column in enumerate(columns):
        _fold_column(hashes, column, seed if position == 0 else None)
    return hashes.view(np.int64)


def _fold_column(hashes: Words, column: pl.Series, uniform_seed: int | None) -> None:
    """Replace each hash by that of (hash, value); nulls leave it. `uniform_seed`: all hashes are still this."""
    column = _as_spark_type(column)
    if column.dtype == pl.Null or not len(column):
        return
    nulls = column.is_null().to_numpy() if column.null_count() else None
    before = None if nulls is None else hashes[nulls]
    match column.dtype:
        case pl.String() | pl.Binary() if uniform_seed is not None:
            named = column.alias("key").to_frame()
            hashed = named.select(polars_hash.col("key").nchash.xxhash64(seed=uniform_seed)).to_series()
            hashes[:] = hashed.fill_null(0).to_numpy()
        case pl.String() | pl.Binary():
            _fold_bytes(hashes, *_binary_buffers(column))
        case pl.Decimal():
            _fold_bytes(hashes, *_decimal_buffers(column))
        case _:
            _fold_words(hashes, _words(column))
    if before is not None:
        hashes[nulls] = before


def _as_spark_type(column: pl.Series) -> pl.Series:
    """The same values in the type that Spark would hash them in; what Spark cannot hash is refused."""
    match column.dtype:
        case pl.Boolean() | pl.Int8() | pl.Int16() | pl.UInt8() | pl.UInt16():
            return column.cast(pl.Int32)
        case pl.UInt32():
            return column.cast(pl.Int64)
        case pl.UInt64():
            return column.cast(pl.Decimal(20, 0))
        case pl.Datetime() | pl.Duration():
            return (column if column.dtype.time_unit == "us" else column.dt.cast_time_unit("us")).to_physical()
        case pl.Date() | pl.Time():
            return column.to_physical()
        case pl.Categorical() | pl.Enum():
            return column.cast(pl.String)
        case pl.Decimal(precision=digits) if digits <= _SPARK_LONG_DIGITS:
            return column.to_physical().cast(pl.Int64)
        case pl.Int32() | pl.Int64() | pl.Float32() | pl.Float64() | pl.String() | pl.Binary():
            return column
        case pl.Decimal() | pl.Null():
            return column
    raise UserError(
        "P005",
        f'column "{column.name}" of type {column.dtype} cannot be a key',
        fix="key by columns of numbers, text, bytes, booleans, dates or times",
    )


def _words(column: pl.Series) -> npt.NDArray[np.uint32] | Words:
    """Fixed-width values as unsigned words; whatever stands where a null is does not matter."""
    values = (column.fill_null(0) if column.null_count() else column).to_numpy()
    match column.dtype:
        case pl.Float32():
            singles = (values + np.float32(0)).view(np.uint32)  # -0.0 + 0.0 is 0.0
            singles[np.isnan(values)] = _NAN32
            return singles
        case pl.Float64():
            doubles = (values + 0.0).view(np.uint64)
            doubles[np.isnan(values)] = _NAN64
            return doubles
        case pl.Int32():
            return values.view(np.uint32)
    return values.view(np.uint64)


def _fold_words(hashes: Words, words: npt.NDArray[np.uint32] | Words) -> None:
    mixed, scratch = (np.empty(min(len(words), _BLOCK_ROWS), np.uint64) for _ in range(2))
    for start in range(0, len(words), _BLOCK_ROWS):
        block = hashes[start : start + _BLOCK_ROWS]
        word, spare = mixed[: len(block)], scratch[: len(block)]
        if words.dtype == np.uint32:
            np.multiply(words[start : start + _BLOCK_ROWS], _PRIME1, out=word)
            block += _PRIME5 + np.uint64(4)
            block ^= word
            _rotate(block, 23, spare)
            block *= _PRIME2
            block += _PRIME3
        else:
            np.multiply(words[start : start + _BLOCK_ROWS], _PRIME2, out=word)
            _rotate(word, 31, spare)
            word *= _PRIME1
            block += _PRIME5 + np.uint64(8)
            block ^= word
            _rotate(block, 27, spare)
            block *= _PRIME1
            block += _PRIME4
        _avalanche(block, spare)


def _binary_buffers(column: pl.Series) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Offsets (one more than rows) and bytes, as one contiguous Arrow array lays them out."""
    array = column.cast(pl.Binary).rechunk().to_arrow(compat_level=pl.CompatLevel.oldest())
    _, offsets, data = array.buffers()
    first = array.offset
    starts = np.frombuffer(offsets, np.int64)[first : first + len(array) + 1]
    return starts, np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8)


def _decimal_buffers(column: pl.Series) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Java's `BigInteger.toByteArray`: big endian two's complement in as few bytes as hold the sign."""
    unscaled = column.fill_null(0) if column.null_count() else column
    array = unscaled.rechunk().to_arrow(compat_level=pl.CompatLevel.oldest())
    first = array.offset
    little = np.frombuffer(array.buffers()[1], np.uint8).reshape(-1, 16)[first : first + len(array)]
    big = np.ascontiguousarray(little[:, ::-1])
    negative = big[:, :1] >> 7
    is_fill = big == negative * np.uint8(255)
    # A leading fill byte may go only if the next byte still shows the sign.
    droppable = is_fill[:, :15] & ((big[:, 1:] >> 7) == negative)
    dropped = np.cumprod(droppable, axis=1, dtype=np.int64).sum(axis=1)
    offsets = np.zeros(len(big) + 1, np.int64)
    np.cumsum(16 - dropped, out=offsets[1:])
    return offsets, big[np.arange(16) >= dropped[:, None]]


def _fold_bytes(hashes: Words, offsets: npt.NDArray[np.int64], data: npt.NDArray[np.uint8]) -> None:
    padded = np.concatenate([data, np.zeros(8, np.uint8)])  # so that views of 8 bytes reach the last byte
    for start in range(0, len(hashes), _BLOCK_ROWS):
        block = hashes[start : start + _BLOCK_ROWS]
        _fold_bytes_block(block, offsets[start : start + len(block) + 1], padded)


def _fold_bytes_block(hashes: Words, offsets: npt.NDArray[np.int64], data: npt.NDArray[np.uint8]) -> None:
    """All rows at once, one step of the algorithm after the other, each for the rows that are long enough."""
    longs = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))
    ints = np.ndarray((len(data) - 3,), "<u4", data, strides=(1,))
    at, lengths = offsets[:-1].copy(), np.diff(offsets)
    remaining = lengths.copy()

    stripes = np.flatnonzero(lengths >= 32)
    short = np.flatnonzero(lengths < 32)
    hashes[short] += _PRIME5
    if len(stripes):
        hashes[stripes] = _fold_stripes(hashes[stripes], at[stripes], lengths[stripes], longs)
        at[stripes] += lengths[stripes] & ~31
        remaining[stripes] &= 31
    hashes += lengths.view(np.uint64)

    for _ in range(3):
        rows = np.flatnonzero(remaining >= 8)
        hashes[rows] = _rotated(hashes[rows] ^ _round(np.uint64(0), longs[at[rows]]), 27) * _PRIME1 + _PRIME4
        at[rows] += 8
        remaining[rows] -= 8
    rows = np.flatnonzero(remaining >= 4)
    hashes[rows] = _rotated(hashes[rows] ^ (ints[at[rows]].astype(np.uint64) * _PRIME1), 23) * _PRIME2 + _PRIME3
    at[rows] += 4
    remaining[rows] -= 4
    for _ in range(3):
        rows = np.flatnonzero(remaining > 0)
        hashes[rows] = _rotated(hashes[rows] ^ (data[at[rows]].astype(np.uint64) * _PRIME5), 11) * _PRIME1
        at[rows] += 1
        remaining[rows] -= 1
    _avalanche(hashes, np.empty_like(hashes))


def _fold_stripes(seeds: Words, at: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], longs: Words) -> Words:
    """Values of 32 bytes and more go through four accumulators, 32 bytes at a step."""
    lanes = [seeds + _PRIME1 + _PRIME2, seeds + _PRIME2, seeds.copy(), seeds - _PRIME1]
    for step in range(int(lengths.max()) // 32):
        rows = np.flatnonzero(lengths >= 32 * (step + 1))
        for position, accumulator in enumerate(lanes):
            accumulator[rows] = _round(accumulator[rows], longs[at[rows] + (32 * step + 8 * position)])
    merged: Words = np.zeros_like(seeds)
    for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True):
        merged += _rotated(lane, bits)
    for lane in lanes:
        merged = (merged ^ _round(np.uint64(0), lane)) * _PRIME1 + _PRIME4
    return merged


def _round(accumulator: Words | np.uint64, words: Words) -> Words:
    mixed: Words = accumulator + words * _PRIME2
    return _rotated(mixed, 31) * _PRIME1


def _rotated(words: Words, bits: int) -> Words:
    return (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))


def _rotate(words: Words, bits: int, spare: Words) -> None:
    np.right_shift(words, np.uint64(64 - bits), out=spare)
    np.left_shift(words, np.uint64(bits), out=words)
    np.bitwise_or(words, spare, out=words)


def _avalanche(words: Words, spare: Words) -> None:
    for bits, prime in ((33, _PRIME2), (29, _PRIME3)):
        np.right_shift(words, np.uint64(bits), out=spare)
        np.bitwise_xor(words, spare, out=words)
        np.multiply(words, prime, out=words)
    np.right_shift(words, np.uint64(32), out=spare)
    np.bitwise_xor(words, spare, out=words)
