"""The oracle of `programs/totals.py`: a savepoint says how many numbers were read; everything follows from that."""

import json
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from harness.s3 import ACCESS_KEY, PORT, SECRET_KEY, S3Server
from penstock import savepoints

PROGRAM = (Path(__file__).parents[1] / "programs" / "totals.py").read_text()
USERS = 500


def assert_exact(s3: S3Server, bucket: str, folder: str, name: str = "") -> int:
    """The one savepoint in this folder, or the one named, holds what its numbers come to; returns how many."""
    if not name:
        [name] = {key.partition("/")[0] for key in s3.keys(bucket, folder)}
    with s3.kubectl.forwarded("service/s3", PORT) as port, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        savepoint = savepoints.open(f"s3://{bucket}/{folder}/{name}?endpoint=http://127.0.0.1:{port}")
        totals, counts = savepoint.frame("totals.total"), savepoint.frame("totals.count")
        splits = savepoint.frame("numbers.splits")
    expected = _expected(splits)
    found = totals.join(counts, on=["key_group", "user"]).select(expected.columns).sort("user")
    assert_frame_equal(found, expected)
    return int(expected["count"].sum())


def _expected(splits: pl.DataFrame) -> pl.DataFrame:
    """Number n is row n // splits of split n % splits."""
    positions = splits.select("options", "position").iter_rows()
    read = {json.loads(options)["split"]: json.loads(position)["rows"] for options, position in positions}
    parts = [pl.int_range(rows, eager=True) * len(read) + split for split, rows in read.items()]
    numbers = pl.DataFrame({"n": pl.concat(parts)})
    amounts = numbers.group_by(user=pl.col("n") % USERS).agg(
        total=(pl.col("n") % 7).sum(), count=pl.len().cast(pl.Int64)
    )
    return amounts.sort("user")
