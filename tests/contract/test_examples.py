"""The programs in `examples/`, run as they are, on rows that show what they are for."""

from pathlib import Path
from typing import Any

import pytest

from penstock import testing

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, inputs: dict[str, Any], **options: Any) -> testing.StreamResult:
    return testing.run_stream(f"{EXAMPLES / name}.py:{name}", inputs, **options)


@pytest.mark.parametrize("faults", [{}, {"parallelism": 2, "crash_after": 2, "restore_parallelism": 3}])
class TestExamples:
    def test_sessionisation(self, faults: dict[str, int]) -> None:
        script = [
            {"user": "ann", "page": "/", "ts": 0},
            {"user": "ann", "page": "/a", "ts": 60},
            {"user": "ann", "page": "/a", "ts": 90},
            {"user": "ann", "page": "/b", "ts": 9000},
        ]
        result = run("sessionisation", {"clicks": testing.source(script, batch_rows=2)}, **faults)
        visits = [
            {"user": "ann", "window_start": 0, "clicks": 3, "pages": 2, "landing": "/", "exit": "/a"},
            {"user": "ann", "window_start": 9000, "clicks": 1, "pages": 1, "landing": "/b", "exit": "/b"},
        ]
        testing.assert_rows(result, visits, name="out")
        testing.assert_rows(result, [], name="late")

    def test_price_as_of(self, faults: dict[str, int]) -> None:
        rates = [{"currency": "usd", "rate": 0.5, "ts": 0}, {"currency": "usd", "rate": 0.25, "ts": 100}]
        trades = [
            {"trade": 1, "currency": "usd", "amount": 10.0, "ts": 99},
            {"trade": 2, "currency": "usd", "amount": 10.0, "ts": 100},
            {"trade": 3, "currency": "chf", "amount": 10.0, "ts": 100},
        ]
        given = {"rates": testing.source(rates, batch_rows=1), "trades": testing.source(trades, batch_rows=1)}
        expected = [(1, "usd", 5.0), (2, "usd", 2.5), (3, "chf", None)]
        testing.assert_rows(run("price_as_of", given, **faults), expected)

    def test_fraud_rules(self, faults: dict[str, int]) -> None:
        rules = [{"rule": "large", "country": "nl", "above": 100.0}]
        payments = [
            testing.pause("1s"),
            {"card": "a", "country": "nl", "euros": 500.0, "ts": 1},
            {"card": "b", "country": "nl", "euros": 50.0, "ts": 2},
            {"card": "c", "country": "de", "euros": 500.0, "ts": 3},
        ]
        given = {"rules": rules, "payments": testing.source(payments, batch_rows=1)}
        result = run("fraud_rules", given, checkpoint_every=1, **faults)
        testing.assert_rows(result, [("a", "nl", 500.0, "large", 1)])

    def test_deduplication(self, faults: dict[str, int]) -> None:
        day = 86_400
        orders = [{"order": "x", "euros": float(n), "ts": ts} for n, ts in enumerate((0, 5, day - 1, day + 10))]
        result = run("deduplication", {"orders": testing.source(orders, batch_rows=1)}, **faults)
        testing.assert_rows(result, [("x", 0.0, 0), ("x", 3.0, day + 10)])

    def test_running_totals(self, faults: dict[str, int]) -> None:
        orders = [
            {"customer": "ann", "euros": 2.0},
            {"customer": "bob", "euros": 1.0},
            {"customer": "ann", "euros": 5.0},
        ]
        result = run("running_totals", {"orders": testing.source(orders, batch_rows=1)}, **faults)
        testing.assert_rows(result.table(keys=["customer"]), [("ann", 2, 7.0, 5.0), ("bob", 1, 1.0, 1.0)])

    def test_trending(self, faults: dict[str, int]) -> None:
        plays = [{"song": song, "ts": 3000 + n} for n, song in enumerate("aaabbbccd")]
        result = run("trending", {"plays": testing.source(plays, batch_rows=3)}, **faults)
        first = result["top"].filter(result["top"]["window_end"] == 3600)
        assert first.rows() == [(3600, "a", 3), (3600, "b", 3), (3600, "c", 2)]
