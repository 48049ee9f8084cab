"""The Nexmark queries as Penstock programs. `reference` has the same ones in Polars."""

from collections.abc import Callable
from functools import partial

import penstock as ps
from penstock import col

CONVERSION = 0.908
"""q1: dollars to euros."""

CATEGORY = 123
"""q2: every so many auctions."""

TIE = 2**32
"""q5: of auctions with the same number of bids the newest is the hottest. Ids stay below this."""

Program = Callable[[ps.Flow], None]


def q0(bids: ps.DataStream) -> ps.DataStream:
    """All of it."""
    return bids


def q1(bids: ps.DataStream) -> ps.DataStream:
    """Currency conversion."""
    return bids.select("auction", "bidder", "ts", price=col("price") * CONVERSION)


def q2(bids: ps.DataStream) -> ps.DataStream:
    """A few auctions."""
    return bids.filter(col("auction") % CATEGORY == 0).select("auction", "price")


def q5(bids: ps.DataStream) -> ps.DataStream:
    """The auction with the most bids of each 10 s, every 2 s."""
    counts = bids.key_by("auction").window(ps.sliding("10s", every="2s")).agg(bids=ps.count())
    hottest = ps.max_by("auction", by=col("bids") * TIE + col("auction"))
    return counts.window(ps.tumbling("2s")).agg(bids=ps.max("bids"), auction=hottest)


def q7(bids: ps.DataStream) -> ps.DataStream:
    """The highest bid of each 10 s."""
    return bids.window(ps.tumbling("10s")).agg(
        price=ps.max("price"), auction=ps.max_by("auction", by="price"), bidder=ps.max_by("bidder", by="price")
    )


def q12(bids: ps.DataStream) -> ps.DataStream:
    """Bids per bidder of each 10 s."""
    return bids.key_by("bidder").window(ps.tumbling("10s")).agg(bids=ps.count())


QUERIES = {query.__name__: query for query in (q0, q1, q2, q5, q7, q12)}
STATEFUL = ("q5", "q7", "q12")


def program(query: str, files: str, out: str) -> Program:
    """A whole program: read the bids, run the query, write the result."""
    return partial(_build, query=query, files=files, out=out)


def _build(flow: ps.Flow, *, query: str, files: str, out: str) -> None:
    # Event time only where it is asked for: its column would have to be read for nothing.
    bids = flow.read(ps.parquet(files), event_time="ts" if query in STATEFUL else None, uid="bids")
    QUERIES[query](bids).write(ps.parquet(out), uid="result")
