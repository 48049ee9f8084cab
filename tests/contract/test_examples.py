"""The programs in `examples/`: on their own rows, and on rows that show what they are for; with crashes."""

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from penstock import testing

EXAMPLES = Path(__file__).parents[2] / "examples"
DATA = EXAMPLES / "data"
HOUR = 3600


def run(name: str, inputs: dict[str, Any] | None = None, **options: Any) -> testing.StreamResult:
    return testing.run_stream(f"{EXAMPLES / name}.py:{name}", inputs, **options)


def lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("faults", [{}, {"parallelism": 2, "crash_after": 2, "restore_parallelism": 3}])
class TestOnRowsOfTheirOwn:
    """What `penstock run examples/<name>.py` prints, against plain Python over the same rows."""

    def test_sessionisation(self, faults: dict[str, int]) -> None:
        result = run("sessionisation", **faults)
        expected = []
        for user in ("ann", "bob", "cleo"):
            clicks = sorted((row["ts"], row["page"]) for row in lines("clicks") if row["user"] == user)
            visits = [[clicks[0]]]
            for before, click in itertools.pairwise(clicks):
                if click[0] - before[0] < HOUR / 2:
                    visits[-1].append(click)
                else:
                    visits.append([click])
            expected += [
                (
                    user,
                    visit[0][0],
                    visit[-1][0] + HOUR // 2,
                    len(visit),
                    len({page for _, page in visit}),
                    visit[0][1],
                    visit[-1][1],
                )
                for visit in visits
            ]
        testing.assert_rows(result, expected, name="out")
        testing.assert_rows(result, [], name="late")

    def test_price_as_of(self, faults: dict[str, int]) -> None:
        trades, rates = pl.read_csv(DATA / "trades.csv").sort("ts"), pl.read_csv(DATA / "rates.csv").sort("ts")
        joined = trades.join_asof(rates, on="ts", by="currency", check_sortedness=False)
        expected = joined.select("trade", "currency", euros=pl.col("amount") * pl.col("rate"))
        testing.assert_rows(run("price_as_of", **faults), expected)

    def test_fraud_rules(self, faults: dict[str, int]) -> None:
        found = [
            (row["card"], row["payment"], row["euros"], rule["rule"])
            for row in lines("payments")
            for rule in lines("rules")
            if row["euros"] > rule["above"] and rule["country"] in (None, row["country"])
        ]
        assert len(found) == 4
        testing.assert_rows(run("fraud_rules", checkpoint_every=1, **faults), found)

    def test_deduplication(self, faults: dict[str, int]) -> None:
        first = {row["order"]: tuple(row.values()) for row in reversed(lines("orders"))}
        testing.assert_rows(run("deduplication", **faults), list(first.values()))

    def test_running_totals(self, faults: dict[str, int]) -> None:
        totals = run("running_totals", **faults).table(keys=["customer"])
        testing.assert_rows(totals, [("ann", 3, 29.5, 20.0), ("bob", 2, 40.5, 31.0), ("cleo", 1, 130.0, 130.0)])

    def test_trending(self, faults: dict[str, int]) -> None:
        plays = [(row["ts"], row["song"]) for row in lines("plays")]
        first = min(ts for ts, _ in plays) // (HOUR // 2) * (HOUR // 2)
        expected = []
        for until in range(first + HOUR // 2, max(ts for ts, _ in plays) + HOUR + 1, HOUR // 2):
            counts = Counter(song for ts, song in plays if until - HOUR <= ts < until)
            ranked = sorted(counts.items(), key=lambda each: (-each[1], each[0]))[:3]
            expected += [(until, rank, *each) for rank, each in enumerate(ranked, start=1)]
        testing.assert_rows(run("trending", **faults), expected)

    def test_enrichment(self, faults: dict[str, int]) -> None:
        known = {"ann": ("Delft", 0.9), "bob": ("Ghent", 1.0)}
        expected = [
            (row["order"], row["customer"], city, row["euros"] * share)
            for row in lines("orders")
            for city, share in [known.get(row["customer"], (None, 1.0))]
        ]
        testing.assert_rows(run("enrichment", **faults), expected)

    def test_page_rank(self, faults: dict[str, int]) -> None:
        pages = {row["page"]: row["links"] for row in lines("pages")}
        assert {row["page"]: row["linked_from"] for row in lines("pages")} == {
            page: sum(page in links for links in pages.values()) for page in pages
        }
        ranks = dict.fromkeys(pages, 1.0)
        for _ in range(50):
            given = dict.fromkeys(pages, 0.0)
            for page, links in pages.items():
                for link in links:
                    given[link] += ranks[page] / len(links)
            ranks = {page: 0.15 + 0.85 * share for page, share in given.items()}
        expected = [(page, round(rank, 3)) for page, rank in ranks.items()]
        testing.assert_rows(run("page_rank", **faults), expected)


@pytest.mark.parametrize("faults", [{}, {"parallelism": 2, "crash_after": 2, "restore_parallelism": 3}])
class TestOnRowsThatShowWhatTheyAreFor:
    def test_sessionisation_puts_late_clicks_aside(self, faults: dict[str, int]) -> None:
        script = [
            {"user": "ann", "page": "/", "ts": 0},
            {"user": "ann", "page": "/a", "ts": 60},
            {"user": "ann", "page": "/a", "ts": 90},
            {"user": "ann", "page": "/b", "ts": 9000},
            {"user": "bob", "page": "/c", "ts": 100},
        ]
        result = run("sessionisation", {"clicks": testing.source(script, batch_rows=1)}, **faults)
        visits = [
            {"user": "ann", "window_start": 0, "clicks": 3, "pages": 2, "landing": "/", "exit": "/a"},
            {"user": "ann", "window_start": 9000, "clicks": 1, "pages": 1, "landing": "/b", "exit": "/b"},
        ]
        testing.assert_rows(result, visits, name="out")
        testing.assert_rows(result, [("bob", "/c", 100)], name="late")

    def test_a_late_trade_gets_the_price_of_its_time(self, faults: dict[str, int]) -> None:
        rates = [{"currency": "usd", "rate": 0.5, "ts": 0}, {"currency": "usd", "rate": 0.25, "ts": 100}]
        trades = [
            {"trade": 2, "currency": "usd", "amount": 10.0, "ts": 100},
            {"trade": 1, "currency": "usd", "amount": 10.0, "ts": 99},
            {"trade": 3, "currency": "chf", "amount": 10.0, "ts": 100},
        ]
        given = {"rates": testing.source(rates, batch_rows=1), "trades": testing.source(trades, batch_rows=1)}
        expected = [(1, "usd", 5.0), (2, "usd", 2.5), (3, "chf", None)]
        testing.assert_rows(run("price_as_of", given, **faults), expected)

    @pytest.mark.parametrize("first", ["rules", "payments"])
    def test_it_does_not_matter_whether_rules_or_payments_are_first(self, first: str, faults: dict[str, int]) -> None:
        given = {
            "rules": [
                {"rule": "large", "country": "nl", "above": 100.0},
                {"rule": "any", "country": None, "above": 0.0},
            ],
            "payments": [
                {"payment": 1, "card": "a", "country": "nl", "euros": 500.0, "ts": 1},
                {"payment": 2, "card": "b", "country": "nl", "euros": 50.0, "ts": 2},
                {"payment": 3, "card": "a", "country": "de", "euros": 500.0, "ts": 3},
            ],
        }
        inputs = {
            name: testing.source([*([] if name == first else [testing.pause("1s")]), *rows], batch_rows=1)
            for name, rows in given.items()
        }
        result = run("fraud_rules", inputs, checkpoint_every=1, **faults)
        anything = [("a", 1, 500.0, "any"), ("b", 2, 50.0, "any"), ("a", 3, 500.0, "any")]
        testing.assert_rows(result, [("a", 1, 500.0, "large"), *anything])

    def test_an_order_is_forgotten_after_a_day(self, faults: dict[str, int]) -> None:
        day = 24 * HOUR
        times = (("x", 0), ("x", 5), ("x", day - HOUR), ("y", day + HOUR), ("x", day + HOUR), ("y", day + HOUR))
        orders = [{"order": name, "customer": "ann", "euros": n * 1.0, "ts": ts} for n, (name, ts) in enumerate(times)]
        result = run("deduplication", {"orders": testing.source(orders, batch_rows=1)}, **faults)
        testing.assert_rows(
            result, [("x", "ann", 0.0, 0), ("y", "ann", 3.0, day + HOUR), ("x", "ann", 4.0, day + HOUR)]
        )

    def test_changes_of_totals_are_inserts_and_updates(self, faults: dict[str, int]) -> None:
        orders = [{"customer": name, "euros": n * 1.0} for n, name in enumerate(("ann", "bob", "ann"))]
        result = run("running_totals", {"orders": testing.source(orders, batch_rows=1)}, **faults)
        assert sorted(result.frame["change"].to_list()) == ["insert", "insert", "update"]
        testing.assert_rows(result.table(keys=["customer"]), [("ann", 2, 2.0, 2.0), ("bob", 1, 1.0, 1.0)])

    def test_of_songs_played_equally_often_the_first_by_name_is_ahead(self, faults: dict[str, int]) -> None:
        plays = [{"song": song, "ts": HOUR + n} for n, song in enumerate("bbbaaaccd")]
        result = run("trending", {"plays": testing.source(plays, batch_rows=3)}, **faults)
        first = result.frame.filter(pl.col("until") == HOUR + HOUR // 2)
        testing.assert_rows(first, [(HOUR + HOUR // 2, rank, *each) for rank, each in enumerate(RANKED, start=1)])


RANKED = [("a", 3), ("b", 3), ("c", 2)]


def test_every_example_is_tested() -> None:
    programs = {path.stem for path in EXAMPLES.glob("*.py")} - {"demo", "hot_items", "word_count"}
    tested = {name.removeprefix("test_") for name in vars(TestOnRowsOfTheirOwn) if name.startswith("test_")}
    assert programs == tested, "demo and hot_items are `make demo`; word_count needs a socket and has its own test"
