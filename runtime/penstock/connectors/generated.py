"""A generator as a source: columns of sequences, random values and times, each by row number.

Row n of the whole input is row n // splits of split n % splits: all splits advance together, and the rows do
not depend on how many splits there are.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
import polars as pl

from penstock.connectors import base
from penstock.connectors.files import selected
from penstock.connectors.pacing import PacedReader, share, split_numbers
from penstock.connectors.random_streams import Integers, RandomStream
from penstock.model.specs import Connector


class Column(Protocol):
    """How the values of a generated column are made."""

    @property
    def dtype(self) -> pl.DataType:
        """The column's type."""
        ...

    def values(self, row: Integers, created: Integers, stream: RandomStream) -> pl.Series:
        """The values of these rows, which were created at these times (microseconds)."""
        ...


class Counting(msgspec.Struct, frozen=True, kw_only=True, tag="sequence"):
    """start, start + step, ..."""

    start: int
    step: int

    @property
    def dtype(self) -> pl.DataType:
        """Whole numbers."""
        return pl.Int64()

    def values(self, row: Integers, created: Integers, stream: RandomStream) -> pl.Series:
        """By row number."""
        return pl.Series(row * self.step + self.start)


class UniformIntegers(msgspec.Struct, frozen=True, kw_only=True, tag="uniform-integers"):
    """Whole numbers from low to high, both included."""

    low: int
    high: int

    @property
    def dtype(self) -> pl.DataType:
        """Whole numbers."""
        return pl.Int64()

    def values(self, row: Integers, created: Integers, stream: RandomStream) -> pl.Series:
        """At random."""
        return pl.Series(stream.below(self.high - self.low + 1, row) + self.low)


class UniformFloats(msgspec.Struct, frozen=True, kw_only=True, tag="uniform-floats"):
    """Numbers from low up to, not including, high."""

    low: float
    high: float

    @property
    def dtype(self) -> pl.DataType:
        """Numbers."""
        return pl.Float64()

    def values(self, row: Integers, created: Integers, stream: RandomStream) -> pl.Series:
        """At random."""
        return pl.Series(stream.floats(row) * (self.high - self.low) + self.low)


class Choice(msgspec.Struct, frozen=True, kw_only=True, tag="choice"):
    """One of these, each with its weight."""

    options: list[str | int | float | bool]
    weights: list[float]

    @property
    def dtype(self) -> pl.DataType:
        """That of the options."""
        return pl.Series(self.options).dtype

    def values(self, row: Integers, created: Integers, stream: RandomStream) -> pl.Series:
        """At random."""
        borders = np.cumsum(self.weights) / sum(self.weights)
        chosen = np.searchsorted(borders[:-1], stream.floats(row), side="right")
        return pl.Series(self.options).gather(chosen)


class Times(msgspec.Struct, frozen=True, kw_only=True, tag="timestamps"):
    """A time that advances by the same step with each row."""

    start_us: int
    step_us: float

    @property
    def dtype(self) -> pl.DataType:
        """Microseconds."""
        return pl.Datetime("us")

    def values(self, row: Integers, created: Integers, stream: RandomStream) -> pl.Series:
        """By row number."""
        return pl.Series((row * self.step_us).astype(np.int64) + self.start_us).cast(self.dtype)


class CreationTime(msgspec.Struct, frozen=True, kw_only=True, tag="now"):
    """When the row was made; with a rate: when it was due."""

    @property
    def dtype(self) -> pl.DataType:
        """Microseconds."""
        return pl.Datetime("us")

    def values(self, row: Integers, created: Integers, stream: RandomStream) -> pl.Series:
        """As the reader says."""
        return pl.Series(created).cast(self.dtype)


AnyColumn = Counting | UniformIntegers | UniformFloats | Choice | Times | CreationTime


class GeneratedSource:
    """Task side of `generate`."""

    sequential = False
    discovers = False

    def __init__(self, connector: Connector) -> None:
        options = connector.options
        self._columns = msgspec.convert(options["columns"], dict[str, AnyColumn])
        self._rows: int | None = options["rows"]
        self._rate: float | None = options["rate"]
        self._seed: int = options["seed"]
        self._splits: int = options["splits"]

    def splits(self) -> Sequence[base.Split]:
        """As many as were asked for."""
        return split_numbers(self._splits)

    def discover(self, seen: frozenset[str], context: base.SourceContext) -> Sequence[base.Split]:
        """Never any."""
        return ()

    def open(
        self, split: base.Split, position: dict[str, Any] | None, context: base.SourceContext
    ) -> base.SplitReader:
        """Position: rows made."""
        number: int = split.options["split"]
        wanted = selected(pl.Schema({name: kind.dtype for name, kind in self._columns.items()}), context.columns)
        streams = {name: RandomStream(self._seed, name) for name in wanted}

        def make(first: int, count: int, created: Integers) -> pl.DataFrame:
            row = np.arange(first, first + count) * self._splits + number
            return pl.DataFrame({name: self._columns[name].values(row, created, streams[name]) for name in wanted})

        rate = None if self._rate is None else self._rate / self._splits
        return PacedReader(make, share(self._rows, number, self._splits), rate, context.clock, position)
