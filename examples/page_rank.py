"""The rank of each page in a web of links, by a loop: pages tell each other what they are worth, 50 times.

    penstock run examples/page_rank.py

In every turn a page gives its rank to the pages that it links to, in equal parts; its next rank is 0.15 plus 85 % of
what it is given. A page takes a turn as soon as all that link to it have given their part: nobody waits for the
slowest page of the web, and the result is the same whatever comes first.
"""

from collections.abc import Iterator
from pathlib import Path

import polars as pl

import penstock as ps

PAGES = Path(__file__).parent / "data" / "pages.jsonl"
PAGE = {"page": pl.String, "links": pl.List(pl.String), "linked_from": pl.Int64}
TURNS, DAMPING = 50, 0.85

Message = tuple[str, None, None, int, float]
"""A part of a rank, for another page. In the columns of pages, since both go round in one stream."""


class Page(ps.KeyedProcessFunction):
    links = ps.ListState(str)
    linked_from = ps.ValueState(int)
    turn = ps.ValueState(int, default=0)
    given = ps.MapState(int, float)
    """By turn, and how many have given: others may be ahead of this page."""
    givers = ps.MapState(int, int)

    def process(
        self, ctx: ps.KeyedContext, links: list[str] | None, linked_from: int | None, turn: int, part: float
    ) -> Iterator[Message]:
        if links is not None:
            self.links.update(links)
            self.linked_from.value = linked_from
            yield from self.give(turn, 1.0)
        else:
            self.given[turn] = self.given.get(turn, 0.0) + part
            self.givers[turn] = self.givers.get(turn, 0) + 1
        while self.turn.value < TURNS and self.givers.get(self.turn.value, 0) == self.linked_from.value:
            rank = 1 - DAMPING + DAMPING * self.given.get(self.turn.value, 0.0)
            self.turn.value += 1
            if self.turn.value == TURNS:
                ctx.output("ranks", (ctx.key, round(rank, 3)))
            else:
                yield from self.give(self.turn.value, rank)

    def give(self, turn: int, rank: float) -> Iterator[Message]:
        for page in self.links:
            yield page, None, None, turn, rank / len(self.links)


def turns(messages: ps.DataStream) -> tuple[ps.DataStream, ps.DataStream]:
    """What goes round again, and what leaves the loop."""
    given = messages.key_by("page").process(
        Page(),
        output=messages.schema,
        side_outputs={"ranks": {"page": pl.String, "rank": pl.Float64}},
        uid="pages",
    )
    return given, given.side_output("ranks")


def page_rank(flow: ps.Flow) -> None:
    pages = flow.read(ps.json_lines(PAGES, schema=PAGE), uid="crawl")
    messages = pages.with_columns(turn=pl.lit(0, pl.Int64), part=pl.lit(0.0))
    messages.iterate(turns, uid="loop").write(ps.print(), uid="out")
