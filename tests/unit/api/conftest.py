"""A source and a sink of two lines each: the program is checked without touching any input."""

from dataclasses import dataclass

import polars as pl
import pytest

from penstock.api import DataStream, Flow
from penstock.model.errors import UserError
from penstock.model.settings import SourceSettings
from penstock.model.specs import Connector

BID = pl.Schema(
    {"auction": pl.Int64, "bidder": pl.Int64, "price": pl.Int64, "channel": pl.String, "ts": pl.Datetime("us")}
)


@dataclass(frozen=True)
class Table:
    """Can be read and written; `refuses` is a column that it does not take."""

    kind: str = "table"
    schema: pl.Schema | None = None
    bounded: bool = True
    refuses: str = ""

    @property
    def connector(self) -> Connector:
        return Connector(kind=self.kind, options={"path": "somewhere"})

    def as_source(self) -> "Table":
        return self

    def as_sink(self) -> "Table":
        return self

    def resolve(self, settings: SourceSettings) -> "Table":
        assert isinstance(settings, SourceSettings)
        return self

    def check(self, schema: pl.Schema) -> None:
        if self.refuses in schema:
            raise UserError("P018", f"cannot write {self.refuses}")


@pytest.fixture
def table() -> type[Table]:
    return Table


@pytest.fixture
def flow() -> Flow:
    return Flow("test")


@pytest.fixture
def bids(flow: Flow) -> DataStream:
    return flow.read(Table(schema=BID), event_time="ts", uid="bids")
