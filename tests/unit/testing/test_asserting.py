"""Assertion helpers say what differs."""

import polars as pl
import pytest

import penstock as ps
from penstock import testing

FRAME = pl.DataFrame({"a": [1, 2, 2], "b": ["x", "y", "y"]})


def test_rows_are_compared_as_a_multiset() -> None:
    testing.assert_rows(FRAME, [(2, "y"), (1, "x"), (2, "y")])
    testing.assert_rows(FRAME, [{"b": "y"}, {"b": "y"}, {"b": "x"}])
    testing.assert_rows(FRAME, FRAME.reverse())
    testing.assert_rows(pl.DataFrame({"l": [[1, None], [2]]}), [([2],), ([1, None],)])
    testing.assert_rows(pl.DataFrame({"f": [float("nan")]}), [(float("nan"),)])
    testing.assert_rows(FRAME.clear(), [])


def test_a_difference_names_the_rows() -> None:
    with pytest.raises(AssertionError, match=r"3 rows, 2 expected\n  missing: \(3, 'z'\)\n  unexpected: \(2, 'y'\)"):
        testing.assert_rows(FRAME, [(1, "x"), (3, "z")])
    with pytest.raises(AssertionError, match="there is no column 'c'; there are a, b"):
        testing.assert_rows(FRAME, [{"c": 1}])


def test_order_is_compared_when_it_is_asked_for() -> None:
    testing.assert_rows(FRAME, [(1, "x"), (2, "y"), (2, "y")], ignore_order=False)
    with pytest.raises(AssertionError, match="not their order: row 0 is"):
        testing.assert_rows(FRAME, [(2, "y"), (1, "x"), (2, "y")], ignore_order=False)


class Forgetful(ps.KeyedProcessFunction):
    """Counts in an attribute, which no checkpoint holds."""

    def open(self, ctx: ps.Context) -> None:
        self.seen = 0

    def process(self, ctx: ps.KeyedContext, x: int) -> tuple[int, int]:
        self.seen += 1
        return x, self.seen


class Careful(ps.KeyedProcessFunction):
    seen = ps.ValueState(int, default=0)

    def process(self, ctx: ps.KeyedContext, x: int) -> tuple[int, int]:
        self.seen.value += 1
        return x, self.seen.value


OUTPUT = {"x": pl.Int64, "seen": pl.Int64}


def test_state_that_is_not_in_a_checkpoint_is_found_out() -> None:
    rows = testing.source([{"x": number, "key": 1} for number in range(9)], batch_rows=1)
    testing.assert_survives(lambda rows: rows.key_by("key").process(Careful(), output=OUTPUT), {"rows": rows})
    with pytest.raises(AssertionError, match="a crash after"):
        testing.assert_survives(lambda rows: rows.key_by("key").process(Forgetful(), output=OUTPUT), {"rows": rows})
