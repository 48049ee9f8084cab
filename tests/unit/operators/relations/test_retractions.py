"""Updates as deletes and inserts: what was there is taken back with the values it had."""

from collections.abc import Callable
from typing import Any

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model import specs
from penstock.operators.changes import Retract

SCHEMA = {"__change": pl.Int8(), "key": pl.Int64(), "value": pl.String()}
CHANGES = st.lists(
    st.lists(st.tuples(st.integers(0, 4), st.none() | st.sampled_from("xyz")), min_size=1, max_size=6), max_size=6
)
"""A key with its new value; None deletes it."""


def updates(batches: list[list[tuple[int, str | None]]], table: dict[int, str]) -> list[pl.DataFrame]:
    """A stream that is right: it inserts what is new, updates what is there and deletes only that."""
    frames = []
    for batch in batches:
        rows = []
        for key, value in batch:
            if value is not None:
                rows.append((2 if key in table else 1, key, value))
                table[key] = value
            elif key in table:
                rows.append((-1, key, table.pop(key)))
        if rows:
            frames.append(pl.DataFrame(rows, schema=SCHEMA, orient="row"))
    return frames


@settings(deadline=None)
@given(st.lists(st.tuples(CHANGES, st.integers(1, 3)), min_size=1, max_size=3))
def test_inserts_and_deletes_come_to_the_same_table(
    run_phases: Callable[..., list[pl.DataFrame]], phases: list[tuple[Any, int]]
) -> None:
    expected: dict[int, str] = {}
    steps = [([(0, each) for each in updates(batches, expected)], parallelism) for batches, parallelism in phases]
    table: dict[int, str] = {}
    for change, key, value in (
        row
        for emitted in run_phases(lambda: Retract(specs.Retract(keys=("key",))), steps, {0: ("key",)})
        for row in emitted.rows()
    ):
        if change == -1:
            assert table.pop(key) == value
        else:
            assert change == 1
            assert key not in table
            table[key] = value
    assert table == expected
