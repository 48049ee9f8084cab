"""Reading a source to its end, as a task with one subtask would."""

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

from penstock import connectors
from penstock.connectors import Endpoint
from penstock.connectors.base import SourceContext
from penstock.model.clocks import SystemClock
from penstock.model.settings import SourceSettings


class ManualClock:
    """Time that moves when a test says so."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now_us(self) -> int:
        return round(self.seconds * 1_000_000)

    def monotonic(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def source_context() -> Callable[..., SourceContext]:
    def make(**changes: Any) -> SourceContext:
        given: dict[str, Any] = {
            "subtask_index": 0,
            "parallelism": 1,
            "columns": None,
            "settings": SourceSettings(),
            "clock": SystemClock(),
            "place": "job/orders[0]",
        }
        return SourceContext(**{**given, **changes})

    return make


@pytest.fixture
def read_rows(source_context: Callable[..., SourceContext]) -> Callable[..., tuple[pl.DataFrame, int]]:
    """All rows of an endpoint and the number of bad ones."""

    def read(endpoint: Endpoint, batch_rows: int = 100, **settings: Any) -> tuple[pl.DataFrame, int]:
        chosen = SourceSettings(**settings)
        definition = endpoint.as_source().resolve(chosen)
        source = connectors.make_source(definition.connector)
        frames, bad_rows = [pl.DataFrame(schema=definition.schema)], 0
        for split in source.splits():
            reader = source.open(split, None, source_context(settings=chosen))
            try:
                ended = False
                while not ended:
                    result = reader.read(batch_rows)
                    frames += [result.frame] if result.frame is not None else []
                    bad_rows += result.bad_rows
                    ended = result.ended
            finally:
                reader.close()
        return pl.concat(frames), bad_rows

    return read
