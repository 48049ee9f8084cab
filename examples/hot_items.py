"""Hot items: how many bids each auction got in the last 10 seconds, every 2 seconds, and which one got the most.

penstock run examples/hot_items.py --parallelism 2
"""

import penstock as ps
from penstock import col

EVENTS, SEED = 4_000_000, 7


def hot_items(flow: ps.Flow, out: str = "hot-items", rate: float | None = 200_000) -> None:
    bids = flow.read(ps.nexmark(events=EVENTS, seed=SEED, rate=rate), event_time="ts", uid="bids")
    counts = (
        bids.key_by("auction")
        .window(ps.sliding("10s", every="2s"))
        .agg(bids=ps.count(), highest=ps.max("price"), uid="per-auction")
    )
    # Of auctions with equally many bids the newest wins, so that there is one answer whatever arrives first.
    newest_of_the_most = col("bids") * 2**32 + col("auction")
    hottest = counts.window(ps.tumbling("2s")).agg(
        bids=ps.max("bids"), auction=ps.max_by("auction", by=newest_of_the_most), uid="hottest"
    )
    counts.write(ps.parquet(f"{out}/counts"), uid="counts")
    hottest.write(ps.parquet(f"{out}/hottest"), uid="hottest-items")
