from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from penstock import connectors
from penstock.connectors import Endpoint
from penstock.connectors.base import SourceContext, SplitReader
from penstock.connectors.nexmark import count_of_kind, event_number
from penstock.connectors.random_streams import RandomStream
from penstock.model.settings import SourceSettings

Read = Callable[..., tuple[pl.DataFrame, int]]
MakeContext = Callable[..., SourceContext]
COLUMNS = {
    "n": connectors.sequence(start=10, step=2),
    "dice": connectors.uniform(1, 6),
    "share": connectors.uniform(0.0, 1.0),
    "kind": connectors.choice(["often", "rarely"], weights=[9, 1]),
    "at": connectors.timestamps("2026-01-01T00:00:00", "250ms"),
}


def open_first_split(endpoint: Endpoint, context: SourceContext) -> SplitReader:
    source = connectors.make_source(endpoint.as_source().resolve(SourceSettings()).connector)
    return source.open(source.splits()[0], None, context)


def test_the_same_seed_gives_the_same_rows_for_any_splits_and_batches(read_rows: Read) -> None:
    whole, _ = read_rows(connectors.generate(COLUMNS, rows=500, seed=7, splits=1), 1000)
    for splits, batch_rows in [(1, 7), (3, 64), (8, 1)]:
        rows, _ = read_rows(connectors.generate(COLUMNS, rows=500, seed=7, splits=splits), batch_rows)
        assert_frame_equal(rows.sort("n"), whole)
    other, _ = read_rows(connectors.generate(COLUMNS, rows=500, seed=8, splits=1), 1000)
    assert not other["dice"].equals(whole["dice"])


def test_generated_values_are_as_described(read_rows: Read) -> None:
    rows, _ = read_rows(connectors.generate(COLUMNS, rows=20_000, splits=1), 20_000)
    assert rows["n"].to_list()[:3] == [10, 12, 14]
    assert sorted(rows["dice"].unique().to_list()) == [1, 2, 3, 4, 5, 6]
    assert rows["dice"].value_counts()["count"].min() > 3000
    assert 0.49 < rows["share"].mean() < 0.51  # type: ignore[operator]
    assert 0.88 < (rows["kind"] == "often").mean() < 0.92  # type: ignore[operator]
    assert (rows["at"].diff().drop_nulls().dt.total_milliseconds() == 250).all()


def test_random_numbers_do_not_change_between_versions() -> None:
    """State that was restored goes on with the rows of the version that wrote it."""
    words = RandomStream(42, "dice").words(np.arange(3))
    assert words.tolist() == [15669999339384424623, 11507133366324056997, 11855447437314000930]
    assert RandomStream(42, "dice").words(np.array([2])).tolist() == words[2:].tolist()


def test_a_rate_is_kept_by_the_clock(source_context: MakeContext, clock: object) -> None:
    endpoint = connectors.generate({"n": connectors.sequence(), "created": connectors.now()}, rate=100, splits=1)
    reader = open_first_split(endpoint, source_context(clock=clock))
    first = reader.read(1000).frame
    assert first is not None
    assert first.height == 1
    nothing = reader.read(1000)
    assert nothing.frame is None
    assert nothing.wait_us == pytest.approx(10_000, rel=0.01)
    clock.seconds += 0.5  # type: ignore[attr-defined]
    due = reader.read(1000).frame
    assert due is not None
    assert due.height == 50
    assert due["created"].cast(pl.Int64).to_list() == [1_000_000_000 + 10_000 * number for number in range(1, 51)]


def test_rows_that_were_not_taken_in_time_are_caught_up(source_context: MakeContext, clock: object) -> None:
    reader = open_first_split(
        connectors.generate({"n": connectors.sequence()}, rate=1000, rows=400, splits=1), source_context(clock=clock)
    )
    clock.seconds += 10  # type: ignore[attr-defined]
    sizes = [result.frame.height for result in (reader.read(150) for _ in range(3)) if result.frame is not None]
    assert sizes == [150, 150, 100]
    assert reader.read(150).ended


def test_nexmark_has_the_usual_proportions_and_skew(read_rows: Read) -> None:
    sizes = {
        kind: read_rows(connectors.nexmark(events=5000, kind=kind), 1000)[0].height  # type: ignore[arg-type]
        for kind in ("persons", "auctions", "bids", "all")
    }
    assert sizes == {"persons": 100, "auctions": 300, "bids": 4600, "all": 5000}
    bids, _ = read_rows(connectors.nexmark(events=50_000), 10_000)
    hot = bids.filter((pl.col("auction") - 1000) % 100 == 0).height / bids.height
    assert 0.45 < hot < 0.55
    assert bids["price"].min() >= 100  # type: ignore[operator]


def test_nexmark_rows_do_not_depend_on_splits_or_batches(read_rows: Read) -> None:
    def bids(splits: int, batch_rows: int) -> pl.DataFrame:
        rows, _ = read_rows(connectors.nexmark(events=2000, splits=splits, seed=5), batch_rows)
        return rows.sort(rows.columns)

    assert_frame_equal(bids(1, 1000), bids(4, 33))


def test_event_time_never_goes_back_within_a_nexmark_split(source_context: MakeContext) -> None:
    for kind in ("bids", "all"):
        endpoint = connectors.nexmark(events=3000, kind=kind, splits=2)  # type: ignore[arg-type]
        frame = open_first_split(endpoint, source_context()).read(3000).frame
        assert frame is not None
        assert frame["ts"].is_sorted()


def test_all_nexmark_splits_advance_together(source_context: MakeContext) -> None:
    source = connectors.make_source(connectors.nexmark(splits=4).as_source().connector)
    frames = [source.open(split, None, source_context()).read(1000).frame for split in source.splits()]
    ends = [frame["ts"].dt.epoch("ms")[-1] for frame in frames if frame is not None]
    assert len(ends) == 4
    assert max(ends) - min(ends) <= 1


def test_the_mixed_nexmark_stream_holds_the_rows_of_the_single_ones(read_rows: Read) -> None:
    mixed, _ = read_rows(connectors.nexmark(events=1000, kind="all", splits=1), 1000)
    bids, _ = read_rows(connectors.nexmark(events=1000, kind="bids", splits=1), 1000)
    assert_frame_equal(mixed.filter(pl.col("kind") == "bid")["bid"].struct.unnest(), bids)
    assert mixed.filter(pl.col("kind") != "bid")["bid"].is_null().all()


def test_numbers_of_events_count_all_kinds() -> None:
    for events in (0, 1, 4, 5, 49, 50, 51, 1234):
        counts = [count_of_kind(kind, events) for kind in ("persons", "auctions", "bids")]
        assert sum(count for count in counts if count is not None) == events
    numbers = [event_number(kind, np.arange(count)) for kind, count in PER_EPOCH.items()]
    assert sorted(np.concatenate(numbers).tolist()) == list(range(100))


PER_EPOCH = {"persons": 2, "auctions": 6, "bids": 92}


def test_rows_that_are_due_shortly_after_one_another_leave_together(source_context: MakeContext, clock: Any) -> None:
    endpoint = connectors.generate({"n": connectors.sequence()}, rate=10_000, splits=1)
    reader = open_first_split(endpoint, source_context(clock=clock))
    assert heights(reader, 1) == [1]
    clock.seconds += 0.0005
    result = reader.read(1000)
    assert (result.frame, result.wait_us) == (None, 1500)
    clock.seconds += 0.00155
    assert heights(reader, 2) == [20, 0]
    clock.seconds += 0.001
    assert heights(reader, 2, max_rows=8) == [8, 0], "a full batch waits for nothing"


def heights(reader: SplitReader, reads: int, *, max_rows: int = 1000) -> list[int]:
    frames = [reader.read(max_rows).frame for _ in range(reads)]
    return [0 if frame is None else frame.height for frame in frames]
