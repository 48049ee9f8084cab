"""Hot items: every two seconds, which auction got the most bids in the last ten; for ever.

penstock run examples/kubernetes/base/hot_items.py
"""

import sys

import penstock as ps
from penstock import col


def hot_items(flow: ps.Flow) -> None:
    rate = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000
    bids = flow.read(ps.nexmark(rate=rate, events_per_second=rate * 50 / 46), event_time="ts", uid="bids")
    windows = bids.key_by("auction").window(ps.sliding("10s", every="2s"))
    counts = windows.agg(bids=ps.count(), highest=ps.max("price"), uid="per-auction")
    # Of auctions with equally many bids the newest wins, so that there is one answer whatever arrives first.
    rank = col("bids") * 2**32 + col("auction")
    hottest = counts.window(ps.tumbling("2s")).agg(
        bids=ps.max("bids"), auction=ps.max_by("auction", by=rank), uid="hottest"
    )
    hottest.write(ps.print(), uid="out")
