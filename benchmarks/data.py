"""The input: events of our own Nexmark generator, written once to `.cache/bench` and always the same."""

import shutil
from dataclasses import dataclass
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


def _files(kind: str, rows: int) -> str:
    folder = CACHE / f"{kind}-{rows}-{_FORMAT}"
    if not folder.exists():
        draft = folder.with_name(folder.name + ".draft")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        borders = [rows * part // FILES for part in range(FILES + 1)]
        for part, (first, end) in enumerate(pairwise(borders)):
            _frame(kind, first, end).write_parquet(draft / f"{kind}-{part}.parquet")
        draft.rename(folder)
    return str(folder / "*.parquet")


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
