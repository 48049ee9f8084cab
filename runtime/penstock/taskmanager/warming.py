"""What a slot does while it waits for its deployment: it uses its kernels once, on next to nothing.

A slot is a fresh process. Code that has not run yet is not mapped, and Polars sets up its engine at the first query:
measured 20-40 ms of the first job, which are spent here instead, before there is one.
"""

import io

import numpy as np
import polars as pl

from penstock.model.frames import write_arrow
from penstock.state.key_groups import key_groups

_ROWS = 1_000


def warm_up() -> None:
    """Filter, group, join rows together, hash keys, and write and read the formats that state and files have."""
    numbers = np.arange(_ROWS)
    frame = pl.DataFrame({"key": numbers % 7, "value": numbers})
    joined = pl.concat([frame, frame], rechunk=True)
    joined.filter(pl.col("key") > 2).select(pl.col("value").max())
    joined.group_by(["key"]).agg(pl.len().cast(pl.Int64).alias("rows"), pl.col("value").sum())
    joined[np.argsort(key_groups(joined, ["key"], 128), kind="stable")]
    write_arrow(frame, io.BytesIO())
    written = io.BytesIO()
    frame.write_parquet(written)
    written.seek(0)
    rows = pl.scan_parquet(written).select(pl.col("key").cast(pl.Int64), pl.col("value")).slice(0, _ROWS // 2)
    rows.filter(pl.col("key") % 3 == 0).collect()
