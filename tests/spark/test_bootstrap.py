"""`penstock bootstrap`: history on Spark, the rest as a stream: the same result as the stream from the beginning."""

import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import penstock as ps
from penstock import batch, col, testing
from penstock.api.programs import build
from penstock.cli import bootstrapping
from penstock.local.progress import SilentProgress
from penstock.local.running import run_graph
from penstock.model.errors import UserError

EVENTS = 6_000
START_US = 1_767_225_600_000_000
UNTIL_US = START_US + 250_000
"""Of the 600 ms that the events cover."""

LAST = {"bidder": pl.Int64, "auction": pl.Int64, "bids": pl.Int64}


class Bids(ps.KeyedProcessFunction):
    """Numbers the bids of a bidder, and says how many there were some time after the first."""

    seen = ps.ValueState(int, default=0)
    times = ps.ListState(int)

    def process(self, ctx: ps.KeyedContext, auction: int) -> tuple[int, int, int]:
        if not self.seen.value:
            ctx.set_timer(ctx.timestamp + 200_000)
        self.seen.value += 1
        self.times.add(ctx.timestamp)
        return ctx.key, auction, self.seen.value

    def on_timer(self, ctx: ps.KeyedContext, time: int) -> tuple[int, int, int]:
        return ctx.key, -1, sum(each <= time for each in self.times)


def windows(flow: ps.Flow) -> None:
    bids = flow.read(ps.nexmark(events=EVENTS, splits=3), event_time="ts", uid="bids")
    counts = bids.filter(col("price") > 100).key_by("auction").window(ps.sliding("100ms", every="50ms"))
    counts.agg(bids=ps.count(), top=ps.max("price"), uid="counts").write(ps.collect(), uid="out")


def sessions(flow: ps.Flow) -> None:
    bids = flow.read(ps.nexmark(events=EVENTS, splits=3), event_time="ts", max_delay="5ms", uid="bids")
    visits = bids.key_by("bidder").window(ps.session("20ms")).agg(bids=ps.count(), uid="visits")
    visits.write(ps.collect(), uid="out")


def totals(flow: ps.Flow) -> None:
    bids = flow.read(ps.nexmark(events=EVENTS, splits=3), event_time="ts", uid="bids")
    made = bids.key_by("bidder").agg(bids=ps.count(), spent=ps.sum("price"), uid="totals")
    made.as_changelog().write(ps.collect(), uid="out")


def numbered(flow: ps.Flow) -> None:
    bids = flow.read(ps.nexmark(events=EVENTS, splits=1), event_time="ts", uid="bids")
    bids.key_by("bidder").process(Bids(), output=LAST, uid="numbered").write(ps.collect(), uid="out")


def joined(flow: ps.Flow) -> None:
    bids = flow.read(ps.nexmark(events=EVENTS, splits=2), event_time="ts", uid="bids")
    auctions = flow.read(ps.nexmark(events=EVENTS, splits=2, kind="auctions"), event_time="ts", uid="auctions")
    pairs = bids.select("auction", "price", "ts").join(
        auctions.select("id", "seller", "ts"), left_on="auction", right_on="id", within=ps.interval("-50ms", "50ms"),
        uid="pairs",
    )  # fmt: skip
    pairs.select("auction", "price", "seller").write(ps.collect(), uid="out")


@pytest.mark.parametrize("program", [windows, sessions, totals, numbered, joined], ids=lambda each: each.__name__)
def test_history_and_stream_give_what_the_stream_gives(program: Any, spark: Any, tmp_path: Path) -> None:
    graph = build(program)
    uri = str(tmp_path / "history")
    history = batch.bootstrap(graph, spark, until_us=UNTIL_US, to=uri)["out"]
    assert history.height, "history has results of its own"
    result = run_graph(graph, progress=SilentProgress(sys.stderr), state_dir=tmp_path / "state", resume=uri)
    assert result.job.state == "finished", result.job.reason
    rest = result.frames["out"]
    assert rest.height, "and so has the rest"
    expected = testing.run_stream(program)
    wanted = expected["out"]
    found = pl.concat([history.select(wanted.columns), rest])
    if program is totals:
        found = found.unique("bidder", keep="last", maintain_order=True).drop("change")
        wanted = expected.table("out", keys=["bidder"])
        found = found.select(wanted.columns)
    testing.assert_rows(found, wanted)


PROGRAM = """
import penstock as ps


def counts(flow):
    bids = flow.read(ps.nexmark(events=2000, splits=2), event_time="ts", uid="bids")
    counted = bids.key_by("bidder").window(ps.tumbling("50ms")).agg(bids=ps.count(), uid="counts")
    counted.write(ps.parquet("OUT"), uid="out")
"""


def test_the_command_writes_what_run_goes_on_from(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, uri, file = tmp_path / "out", str(tmp_path / "history"), tmp_path / "prog.py"
    file.write_text(PROGRAM.replace("OUT", str(out)))
    bootstrapping.bootstrap(f"{file}:counts", until="2026-01-01T00:00:00.120", to=uri)
    assert f"--from {uri}" in capsys.readouterr().err
    assert list(out.glob("*.parquet")), "what was complete is there already"
    graph = build(f"{file}:counts")
    run_graph(graph, progress=SilentProgress(sys.stderr), state_dir=tmp_path / "state", resume=uri)
    wanted = testing.run_stream(f"{file}:counts")["out"]
    found = pl.concat([pl.read_parquet(part).cast(wanted.schema) for part in out.glob("*.parquet")])
    testing.assert_rows(found.select(wanted.columns), wanted)


def test_a_time_is_read_as_people_write_it() -> None:
    assert bootstrapping.instant_us("2026-01-01") == START_US
    assert bootstrapping.instant_us("2026-01-01T01:00:00.000001+01:00") == START_US + 1
    with pytest.raises(UserError, match="P011"):
        bootstrapping.instant_us("yesterday")


def test_what_has_no_history_is_refused(spark: Any, tmp_path: Path) -> None:
    def punctuated(flow: ps.Flow) -> None:
        source = ps.nexmark(events=100)
        bids = flow.read(source, event_time="ts", watermark=ps.punctuated(col("price") > 10), uid="bids")
        bids.write(ps.discard(), uid="out")

    with pytest.raises(UserError, match="P082") as raised:
        batch.bootstrap(build(punctuated), spark, until_us=UNTIL_US, to=str(tmp_path / "history"))
    assert "test_bootstrap.py" in (raised.value.where or "")
