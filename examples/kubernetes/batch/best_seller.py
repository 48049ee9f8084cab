"""Best seller: the auction with the most bids of a day that is over.

penstock run examples/kubernetes/batch/best_seller.py
"""

import penstock as ps
from penstock import col


def best_seller(flow: ps.Flow) -> None:
    bids = flow.read(ps.nexmark(events=200_000, seed=7), event_time="ts", uid="bids")
    days = bids.key_by("auction").window(ps.tumbling("1d"))
    counts = days.agg(bids=ps.count(), highest=ps.max("price"), uid="counts")
    rank = col("bids") * 2**32 + col("auction")
    counts.window(ps.tumbling("1d")).agg(bids=ps.max("bids"), auction=ps.max_by("auction", by=rank), uid="best").write(
        ps.print(), uid="out"
    )
