"""Auctions that close: the part that q4, q6 and q9 share. Times are milliseconds since 1970 here.

Bids meet their auction in an interval join, and those of one auction are one session.
"""

import narwhals as nw
import polars as pl

import penstock as ps
from penstock import col

LONGEST = "1s"
"""No auction of the generator is open for longer, at ten thousand events per second."""

_SECOND_US, _MILLISECOND_US = 1_000_000, 1_000
_TIME_BITS, _BIDDER_BITS = 10, 20
Stream = ps.DataStream


def offers(auctions: Stream, bids: Stream) -> Stream:
    """Bids that came while their auction was open, with what is known about it."""
    opened = auctions.select(
        "id", "seller", "category", "ts", opened=_milliseconds("ts"), closes=_milliseconds("expires")
    )
    return (
        bids.select("auction", "bidder", "price", "ts", bid_ts=_milliseconds("ts"))
        .join(opened, left_on="auction", right_on="id", within=ps.interval(f"-{LONGEST}", "0s"))
        .filter(col("bid_ts") <= col("closes"))
    )


def closing(auctions: Stream, bids: Stream) -> Stream:
    """Each auction once, when it is over, with its best bid: the highest, of those the earliest.

    Bids are never further apart than an auction is open, so those of one auction are one session.
    """
    earlier = (2**_TIME_BITS - 1 - (col("bid_ts") - col("opened"))) * 2**_BIDDER_BITS
    rank = col("price") * 2 ** (_TIME_BITS + _BIDDER_BITS) + earlier + (2**_BIDDER_BITS - 1 - col("bidder"))
    return (
        offers(auctions, bids)
        .with_columns(rank=rank)
        .key_by("auction")
        .window(ps.session(LONGEST))
        .agg(
            seller=ps.max("seller"),
            category=ps.max("category"),
            closes=ps.max("closes"),
            price=ps.max("price"),
            bidder=ps.max_by("bidder", by="rank"),
            bid_ts=ps.max_by("bid_ts", by="rank"),
            uid="closing",
        )
    )


def _milliseconds(column: str) -> nw.Expr:
    return col(column).dt.timestamp("ms")


class LastTen(ps.KeyedProcessFunction):
    """The closing prices of a seller, in the order in which auctions closed."""

    waiting = ps.ListState(list[int])
    prices = ps.ListState(int)

    def process(self, ctx: ps.KeyedContext, auction: int, closes: int, price: int) -> None:
        """Auctions that close at the same time come in any order: a timer puts them into theirs."""
        self.waiting.add([closes, auction, price])
        ctx.set_timer(closes * _MILLISECOND_US + 2 * _SECOND_US)

    def on_timer(self, ctx: ps.KeyedContext, time: int) -> list[tuple[int, int, float]]:
        """Everything that had closed by then."""
        closed = (time - 2 * _SECOND_US) // _MILLISECOND_US
        waiting = sorted(self.waiting.get())
        self.waiting.update([each for each in waiting if each[0] > closed])
        prices, rows = self.prices.get(), []
        for _, auction, price in (each for each in waiting if each[0] <= closed):
            prices = [*prices[-9:], price]
            rows.append((ctx.key, auction, sum(prices) / len(prices)))
        self.prices.update(prices)
        return rows


def last_ten(closed: Stream) -> Stream:
    """The average of the last ten closing prices of each seller, after each auction."""
    output = {"seller": pl.Int64, "auction": pl.Int64, "price": pl.Float64}
    return closed.key_by("seller").process(LastTen(), output=output, uid="last-ten")
