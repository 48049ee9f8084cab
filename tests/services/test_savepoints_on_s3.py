"""Savepoints in buckets: anybody reads them, jobs go on from them, and what is damaged is refused by its name."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import duckdb
import msgspec
import polars as pl
import pyarrow.dataset
import pyarrow.fs
import pytest
from s3_servers import ACCESS_KEY, SECRET_KEY, S3Server

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "savepoints"))
sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))
from made import OUTPUT, ROWS, Account, accounts, calm, plain, take
from savepoint_programs import KEYS, totals

import penstock as ps
from penstock import savepoints, testing
from penstock.api.programs import build
from penstock.local import LocalCluster
from penstock.model.errors import UserError
from penstock.savepoints import RestoreOptions, catalogue
from penstock.savepoints.checks import restore_report
from penstock.savepoints.manifest import MANIFEST, read_manifest
from penstock.savepoints.restoring import adopt
from penstock.storage import MemoryStore, open_store

pytestmark = pytest.mark.timeout(600)

SERVERS = ["versitygw", "minio"]
PATIENCE_SECONDS = 120.0
JOB_ROWS = 30_000


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> S3Server:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def taken():
    return take()


def test_a_job_saves_to_a_bucket_anybody_reads_it_and_it_goes_on_from_there(
    server: S3Server, new_bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket, target = new_bucket(server), tmp_path / "out"
    for name, value in {"ROWS": JOB_ROWS, "RATE": 300, "OUT": target}.items():
        monkeypatch.setenv(f"SAVEPOINT_{name}", str(value))
    with LocalCluster(server.uri(bucket, "jobs"), folder=tmp_path, slots_per_task_manager=3) as cluster:
        job = cluster.client.submit(msgspec.json.encode(build(totals, parallelism=3))).id
        wait_until(lambda: cluster.client.job(job).state == "running")
        wait_until(lambda: any(each.rows_in for each in cluster.client.job(job).vertices[-1].operators))
        stopped = penstock(
            "stop", job, "--savepoint", "--to", server.uri(bucket, "saved"), "--jobmanager", cluster.client.url
        )
        assert stopped.returncode == 0, stopped.stderr
        wait_until(lambda: cluster.client.job(job).state == "stopped")
    uri = stopped.stdout.partition("savepoint ")[2].partition(": ")[0]
    path = uri.removeprefix("s3://").partition("?")[0] + "/states/totals.total"

    # One line each. DuckDB's own extension for S3 is one that it downloads: here Arrow's file system stands for it.
    files = duckdb.from_arrow(pyarrow.dataset.dataset(path, filesystem=arrow_files(server)))
    by_duckdb = files.aggregate("sum(total)::bigint, count(*)").fetchall()
    by_polars = pl.read_parquet(f"s3://{path}/*.parquet", storage_options=storage_options(server))

    assert by_duckdb == [(by_polars["total"].sum(), by_polars.height)]
    assert by_polars.columns == ["key_group", "user", "total"]
    assert savepoints.open(uri).frame("totals.total").sort("user").equals(by_polars.sort("user"))
    monkeypatch.setenv("SAVEPOINT_RATE", "100000")
    program = f"{Path(totals.__code__.co_filename)}:totals"
    went_on = penstock("run", program, "--from", uri, "-p", "2", "--state-dir", server.uri(bucket, "second"))
    assert went_on.returncode == 0, went_on.stderr
    found = pl.read_parquet(target / "*.parquet")
    rows = pl.DataFrame({"n": range(JOB_ROWS)}).select(user=pl.col("n") % KEYS, amount=pl.col("n") % 7)
    assert found.height == JOB_ROWS
    last = found.group_by("user").agg(pl.col("total").max()).sort("user")
    assert last.equals(rows.group_by("user").agg(total=pl.col("amount").sum()).sort("user"))


def test_a_frame_starts_a_stream(server: S3Server, new_bucket) -> None:
    frame = pl.DataFrame({"user": [f"u{number}" for number in range(7)], "total": [1000] * 7})
    uri = savepoints.build(server.uri(new_bucket(server), "made"), {"account.total": frame}, keys="user")
    inputs = {"rows": testing.source(ROWS, event_time="ts", unit="s", batch_rows=2)}
    result = testing.run_stream(only_accounts, inputs, start_from=uri, parallelism=3)
    expected = calm(only_accounts)
    rows = result.frame.filter(pl.col("total") >= 0)
    assert rows["total"].sum() == expected.frame.filter(pl.col("total") >= 0)["total"].sum() + 1000 * len(ROWS)


def test_what_was_taken_at_three_goes_on_at_any_size(server: S3Server, new_bucket, taken) -> None:
    uri = catalogue.copy(taken.savepoint, server.uri(new_bucket(server), "saved"))
    inputs = {"rows": testing.source(ROWS, event_time="ts", unit="s", batch_rows=2)}
    results = [testing.run_stream(accounts, inputs, start_from=uri, parallelism=number) for number in (1, 2, 5)]
    for name in ("accounts", "counts"):
        first, *others = (plain(result[name]) for result in results)
        assert first
        assert others == [first, first]


def test_what_was_taken_at_three_goes_on_at_one_subtask_per_key_group(versitygw: S3Server, new_bucket) -> None:
    saved = take(only_accounts, after=34).savepoint
    uri = catalogue.copy(saved, versitygw.uri(new_bucket(versitygw), "saved"))
    inputs = {"rows": testing.source(ROWS, event_time="ts", unit="s", batch_rows=20)}
    one, many = (
        testing.run_stream(
            only_accounts, inputs, start_from=uri, parallelism=number, checkpoint_every=0, max_steps=20_000_000
        )
        for number in (1, 128)
    )
    assert plain(many["accounts"]) == plain(one["accounts"]) != []


def test_every_object_that_is_damaged_is_refused_by_its_name(server: S3Server, new_bucket, taken) -> None:
    uri, rng = catalogue.copy(taken.savepoint, server.uri(new_bucket(server), "saved")), random.Random(3)
    store = open_store(uri)
    paths = [info.path for info in store.list("") if info.path != MANIFEST]
    assert len(paths) >= 8

    def start() -> None:
        manifest = read_manifest(store)
        report = restore_report(manifest, taken.graph, RestoreOptions())
        adopt(store, manifest, report, MemoryStore("new"), max_parallelism=taken.graph.max_parallelism)

    start()
    for path in paths:
        whole = store.get(path)
        flipped = bytearray(whole)
        flipped[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        for damaged in (bytes(flipped), whole[: rng.randrange(len(whole))], None):
            if damaged is None:
                store.delete(path)
            else:
                store.put(path, damaged)
            with pytest.raises(UserError, match="S002") as refused:
                start()
            assert path in str(refused.value)
            assert [each.path for each in catalogue.verify(store, read_manifest(store), deep=True)] == [path]
        store.put(path, whole)
    manifest = store.get(MANIFEST)
    store.put(MANIFEST, manifest[:-10])
    with pytest.raises(UserError, match=r"S002 .*manifest.json cannot be used"):
        start()
    store.delete(MANIFEST)
    with pytest.raises(UserError, match="S001"):
        start()


def only_accounts(rows: ps.DataStream) -> dict[str, ps.DataStream]:
    return {"accounts": rows.key_by("user").process(Account(), output=OUTPUT, uid="account")}


def arrow_files(server: S3Server) -> pyarrow.fs.S3FileSystem:
    return pyarrow.fs.S3FileSystem(
        access_key=ACCESS_KEY,
        secret_key=SECRET_KEY,
        endpoint_override=urlsplit(server.endpoint).netloc,
        scheme="http",
        region="us-east-1",
    )


def storage_options(server: S3Server) -> dict[str, str]:
    return {
        "aws_access_key_id": ACCESS_KEY,
        "aws_secret_access_key": SECRET_KEY,
        "aws_endpoint_url": server.endpoint,
        "aws_region": "us-east-1",
        "aws_allow_http": "true",
    }


def wait_until(condition) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def penstock(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "penstock.cli", *words],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
