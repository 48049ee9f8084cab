"""A sink that is slow on purpose says so, instead of waiting."""

from typing import Any

import polars as pl
import pytest

from penstock import connectors
from penstock.connectors.base import PacedSink, SinkContext
from penstock.model.errors import UserError
from penstock.model.ids import Attempt, JobId, SubtaskId, Uid, VertexId

ROWS = pl.DataFrame({"n": range(500)})


def open_sink(clock: Any, rate: float | None) -> Any:
    context = SinkContext(
        job=JobId("job"), attempt=Attempt(1), uid=Uid("out"), subtask=SubtaskId(VertexId("out"), 0), clock=clock
    )
    return connectors.make_sink(connectors.discard(rate=rate).as_sink().connector, (), context)


def test_rows_take_as_long_as_the_rate_says(clock: Any) -> None:
    sink = open_sink(clock, rate=1000)
    assert isinstance(sink, PacedSink)
    assert sink.ready_in_us() == 0
    sink.write(ROWS)
    assert sink.ready_in_us() == 500_000
    clock.seconds += 0.2
    assert sink.ready_in_us() == 300_000
    clock.seconds += 10
    assert sink.ready_in_us() == 0
    sink.write(ROWS)
    assert sink.ready_in_us() == 500_000, "time without rows is not saved up"


def test_without_a_rate_rows_may_always_come(clock: Any) -> None:
    sink = open_sink(clock, rate=None)
    sink.write(ROWS)
    assert sink.ready_in_us() == 0


def test_a_rate_of_nothing_is_refused() -> None:
    with pytest.raises(UserError, match="discard: rate is 0"):
        connectors.discard(rate=0)
