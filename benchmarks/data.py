"""The input: bids of our own Nexmark generator, written once to `.cache/bench` and always the same."""

import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl

from penstock.connectors.nexmark import SCHEMAS, Nexmark, event_number

CACHE = Path(__file__).parent.parent / ".cache" / "bench"
FILES = 8
SEED = 1
START_MS = 1_700_000_000_000
EVENTS_PER_SECOND = 10_000
"""Of event time: 10 million bids are 109 windows of 10 s."""

_CHUNK_ROWS = 250_000
_FORMAT = "v1"
"""Part of the path: a change of what is written makes new files."""


def bids(rows: int) -> str:
    """A glob of Parquet files with so many bids, all columns, in the order of their event time."""
    folder = CACHE / f"bids-{rows}-{_FORMAT}"
    if not folder.exists():
        draft = folder.with_name(folder.name + ".draft")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        borders = [rows * part // FILES for part in range(FILES + 1)]
        for part, (first, end) in enumerate(pairwise(borders)):
            _frame(first, end).write_parquet(draft / f"bids-{part}.parquet")
        draft.rename(folder)
    return str(folder / "*.parquet")


def scratch(name: str) -> Path:
    """An empty folder."""
    folder = CACHE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _frame(first: int, end: int) -> pl.DataFrame:
    site = Nexmark(SEED, START_MS, EVENTS_PER_SECOND)
    starts = range(first, end, _CHUNK_ROWS)
    chunks = (np.arange(start, min(start + _CHUNK_ROWS, end)) for start in starts)
    return pl.concat([site.frame("bids", list(SCHEMAS["bids"]), event_number("bids", chunk)) for chunk in chunks])
