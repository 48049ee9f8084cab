"""HyperLogLog as plain columns: how many distinct values there were, to about 1.6 %, in bounded space.

A value becomes one number, its *entry*: register (12 bits of the hash) * 64 + rank (position of the first one in the
other 52 bits). A sketch is the list of the largest entry per register that was hit; so a sketch of few values is
short, and sketches merge by putting the lists together. The hash is that of key groups, which never changes: sketches
live in state.
"""

import math

import numpy as np
import polars as pl

from penstock.state.spark_hash import xxhash64

_INDEX_BITS = 12
_REGISTERS = 1 << _INDEX_BITS
_RANK_BITS = 64 - _INDEX_BITS
_RANKS = 64
"""Room for a rank in an entry."""
_ALPHA = 0.7213 / (1 + 1.079 / _REGISTERS)
_SMALL = 2.5 * _REGISTERS
"""Below this estimate, registers that were never hit say more than ranks do."""


def entries(values: pl.Series, name: str) -> pl.Series:
    """The entry of each value; null stays null."""
    hashes = xxhash64([values]).view(np.uint64)
    index = (hashes >> np.uint64(_RANK_BITS)).astype(np.uint32)
    rest = hashes & np.uint64((1 << _RANK_BITS) - 1)
    # 52 bits are exact in a double, so its exponent is the number of bits.
    rank = (_RANK_BITS + 1 - np.frexp(rest.astype(np.float64))[1]).astype(np.uint32)
    column = pl.Series(name, index * np.uint32(_RANKS) + rank)
    return column if not values.null_count() else column.set(values.is_null(), None)


def pruned(found: pl.Expr) -> pl.Expr:
    """The largest entry of each register."""
    ordered = found.unique().sort()
    register = ordered // _RANKS
    return ordered.filter(register.ne_missing(register.shift(-1)))


def estimate(sketch: pl.Expr) -> pl.Expr:
    """The number of distinct values, from a column of sketches."""
    hit = sketch.list.len().cast(pl.Float64)
    weights = sketch.list.eval((2.0 ** -((pl.element() % _RANKS).cast(pl.Float64))).sum()).list.first()
    empty = _REGISTERS - hit
    raw = _ALPHA * _REGISTERS**2 / (weights + empty)
    by_empty = _REGISTERS * (math.log(_REGISTERS) - empty.log())
    return pl.when((raw <= _SMALL) & (empty > 0)).then(by_empty).otherwise(raw).round().cast(pl.Int64)
