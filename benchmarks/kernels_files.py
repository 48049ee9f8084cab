"""Reading and writing files, against one-shot Polars on the same rows: ratios of CPU time, one thread.

python benchmarks/kernels_files.py [--rows N] [--json]
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("POLARS_MAX_THREADS", "1")

import numpy as np
import polars as pl

from penstock import connectors
from penstock.connectors.base import SinkContext, SourceContext
from penstock.model import schemas
from penstock.model.clocks import SystemClock
from penstock.model.ids import Attempt, CheckpointId, JobId, SubtaskId, Uid, VertexId
from penstock.model.settings import SourceSettings

ROUNDS = 5
BATCH_ROWS = SourceSettings().batch_rows


def make_rows(count: int) -> pl.DataFrame:
    random = np.random.default_rng(0)
    numbers = random.integers(0, 1 << 40, count)
    return pl.DataFrame(
        {
            "a": random.integers(0, 1000, count),
            "b": numbers,
            "c": np.arange(count),
            "d": random.integers(0, 100, count),
            "s": pl.select(pl.lit("channel-") + pl.Series(numbers % 5000).cast(pl.String)).to_series(),
        }
    )


def read_with_source(folder: Path, columns: tuple[str, ...] | None) -> int:
    source = connectors.make_source(connectors.parquet(folder).as_source().resolve(SourceSettings()).connector)
    context = SourceContext(
        subtask_index=0,
        parallelism=1,
        columns=columns,
        settings=SourceSettings(),
        clock=SystemClock(),
        place="bench",
    )
    rows = 0
    for split in source.splits():
        reader = source.open(split, None, context)
        ended = False
        while not ended:
            result = reader.read(BATCH_ROWS)
            rows += result.frame.height if result.frame is not None else 0
            ended = result.ended
        reader.close()
    return rows


def write_with_sink(out: Path, rows: pl.DataFrame, **how: Any) -> int:
    context = SinkContext(
        job=JobId("bench"),
        attempt=Attempt(1),
        uid=Uid("out"),
        subtask=SubtaskId(VertexId("out"), 0),
        clock=SystemClock(),
    )
    connector = connectors.parquet(out, **how).as_sink().connector
    sink = connectors.make_sink(connector, schemas.fields(rows.schema), context)
    for start in range(0, rows.height, BATCH_ROWS):
        sink.write(rows.slice(start, BATCH_ROWS))
    sink.commit(sink.prepare(CheckpointId(1)))
    return rows.height


def cpu_seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def compare(ours: Callable[[], object], reference: Callable[[], object]) -> tuple[float, float]:
    """Median ratio and our median seconds, taken in turns so that both see the same machine."""
    pairs = [(cpu_seconds(ours), cpu_seconds(reference)) for _ in range(ROUNDS)]
    return statistics.median(mine / other for mine, other in pairs), statistics.median(mine for mine, _ in pairs)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, default=10_000_000)
    arguments.add_argument("--json", action="store_true")
    chosen = arguments.parse_args()
    rows = make_rows(chosen.rows)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "in"
        folder.mkdir()
        rows.write_parquet(folder / "rows.parquet")
        few = ["a", "b", "c"]

        def written(**how: Any) -> Callable[[], object]:
            return lambda: write_with_sink(Path(name) / "out", rows, **how)

        def plain(compression: Any, level: int | None = None) -> Callable[[], object]:
            target = Path(name) / "plain.parquet"
            return lambda: rows.write_parquet(target, compression=compression, compression_level=level)

        cases: dict[str, tuple[float, Callable[[], object], Callable[[], object]]] = {
            "read all columns": (
                1.1,
                lambda: read_with_source(folder, None),
                lambda: pl.read_parquet(folder / "rows.parquet"),
            ),
            "read 3 columns": (
                1.1,
                lambda: read_with_source(folder, tuple(few)),
                lambda: pl.read_parquet(folder / "rows.parquet", columns=few),
            ),
            "write zstd": (1.1, written(), plain("zstd", 1)),  # the sink's own level: like for like
            "write lz4": (1.1, written(compression="lz4"), plain("lz4")),
            "write snappy": (1.1, written(compression="snappy"), plain("snappy")),
        }
        for case, (goal, ours, reference) in cases.items():
            ratio, seconds = compare(ours, reference)
            figure = {
                "bench": "files", "case": case, "metric": "cpu ratio to polars", "value": round(ratio, 3),
                "goal": goal, "better": "lower", "holds": ratio <= goal,
            }  # fmt: skip
            speed = chosen.rows / seconds / 1e6
            line = (
                json.dumps(figure)
                if chosen.json
                else f"{case:18} {ratio:5.2f}x  (goal {goal}x)  {speed:6.1f} M rows/s"
            )
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
    # A process that used both Polars and Arrow may abort in its exit handlers.
    os._exit(0)


if __name__ == "__main__":
    main()
