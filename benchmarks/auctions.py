"""Auctions that close: the part that q4, q6 and q9 share.

Bids meet their auction in an interval join; the best of each second is found by a window, so that the function that
waits for the end of an auction sees a few rows of each and not every bid. Times are milliseconds since 1970 here.
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
CLOSED = dict.fromkeys(("auction", "seller", "category", "closes", "price", "bidder", "bid_ts"), pl.Int64)


def closing(auctions: Stream, bids: Stream) -> Stream:
    """Each auction once, when it is over, with its best bid: the highest, of those the earliest."""
    opened = auctions.select(
        "id", "seller", "category", "ts", opened=_milliseconds("ts"), closes=_milliseconds("expires")
    )
    offers = (
        bids.select("auction", "bidder", "price", "ts", bid_ts=_milliseconds("ts"))
        .join(opened, left_on="auction", right_on="id", within=ps.interval(f"-{LONGEST}", "0s"))
        .filter(col("bid_ts") <= col("closes"))
    )
    earlier = (2**_TIME_BITS - 1 - (col("bid_ts") - col("opened"))) * 2**_BIDDER_BITS
    rank = col("price") * 2 ** (_TIME_BITS + _BIDDER_BITS) + earlier + (2**_BIDDER_BITS - 1 - col("bidder"))
    best = (
        offers.with_columns(rank=rank)
        .key_by("auction", "seller", "category", "closes")
        .window(ps.tumbling("1s"))
        .agg(
            rank=ps.max("rank"),
            price=ps.max("price"),
            bidder=ps.max_by("bidder", by="rank"),
            bid_ts=ps.max_by("bid_ts", by="rank"),
            uid="best-of-second",
        )
    )
    return best.key_by("auction").process(Closing(), output=CLOSED, uid="closing")


def _milliseconds(column: str) -> nw.Expr:
    return col(column).dt.timestamp("ms")


class Closing(ps.KeyedProcessFunction):
    """Keeps the best bid of an auction until all seconds in which it was open are over."""

    best = ps.ValueState(list[int])

    def process(
        self,
        ctx: ps.KeyedContext,
        rank: int,
        seller: int,
        category: int,
        closes: int,
        price: int,
        bidder: int,
        bid_ts: int,
    ) -> None:
        """The best bid of one second."""
        if self.best.value is None:
            ctx.set_timer(closes * _MILLISECOND_US + _SECOND_US)
        if self.best.value is None or rank > self.best.value[0]:
            self.best.value = [rank, seller, category, closes, price, bidder, bid_ts]

    def on_timer(self, ctx: ps.KeyedContext, time: int) -> tuple[int, ...]:
        """The auction is over."""
        _, *won = self.best.value
        self.best.clear()
        return ctx.key, *won


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
