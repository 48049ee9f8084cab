"""The input: events of our own Nexmark generator, written once to `.cache/bench` and always the same."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl

from penstock.connectors.nexmark import SCHEMAS, Nexmark, count_of_kind, event_number

CACHE = Path(__file__).parent.parent / ".cache" / "bench"
FILES = 8
SEED = 1
START_MS = 1_700_000_000_000
EVENTS_PER_SECOND = 10_000
"""Of event time: 10 million bids are 109 windows of 10 s."""

_CHUNK_ROWS = 250_000
_STEP = 7_368_787
"""A prime: between a key and the next there is no order."""
_FORMAT = "v1"
"""Part of the path: a change of what is written makes new files."""


@dataclass(frozen=True, slots=True)
class Files:
    """A glob of Parquet files for each kind of event."""

    persons: str
    auctions: str
    bids: str


def events(bid_rows: int) -> Files:
    """So many bids, and the persons and auctions of the same stretch of event time."""
    last = int(event_number("bids", np.array([bid_rows - 1]))[0])
    return Files(*(_files(kind, int(count_of_kind(kind, last + 1) or 0)) for kind in ("persons", "auctions", "bids")))


def bids(rows: int) -> str:
    """A glob of Parquet files with so many bids, all columns, in the order of their event time."""
    return _files("bids", rows)


def many_keys(keys: int, rounds: int) -> str:
    """A glob of Parquet files in which each of so many keys comes once in each round."""
    return _written(f"keys-{keys}", keys * rounds, partial(_keyed_frame, keys))


def _files(kind: str, rows: int) -> str:
    return _written(kind, rows, partial(_frame, kind))


def _written(kind: str, rows: int, frame: Callable[[int, int], pl.DataFrame]) -> str:
    folder = CACHE / f"{kind}-{rows}-{_FORMAT}"
    if not folder.exists():
        draft = folder.with_name(folder.name + ".draft")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        borders = [rows * part // FILES for part in range(FILES + 1)]
        for part, (first, end) in enumerate(pairwise(borders)):
            frame(first, end).write_parquet(draft / f"{kind}-{part}.parquet")
        draft.rename(folder)
    return str(folder / "*.parquet")


def _keyed_frame(keys: int, first: int, end: int) -> pl.DataFrame:
    numbers = np.arange(first, end)
    # Multiples of a number that shares no factor with `keys` meet each key once before they meet one again.
    key = numbers % keys * _STEP % keys
    times = START_MS + numbers * 1_000 // EVENTS_PER_SECOND
    return pl.DataFrame({"key": key, "value": numbers % 1_000, "ts": pl.Series(times).cast(pl.Datetime("ms"))})


def scratch(name: str) -> Path:
    """An empty folder."""
    folder = CACHE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _frame(kind: str, first: int, end: int) -> pl.DataFrame:
    site = Nexmark(SEED, START_MS, EVENTS_PER_SECOND)
    starts = range(first, end, _CHUNK_ROWS)
    chunks = (np.arange(start, min(start + _CHUNK_ROWS, end)) for start in starts)
    return pl.concat([site.frame(kind, list(SCHEMAS[kind]), event_number(kind, chunk)) for chunk in chunks])
