"""A job with much keyed state, for the benchmarks of state: it writes every key once, then mostly some of them.

Row n below `keys` is the first of its key. Of all later rows 95 % belong to a hot set of keys, the others to any key.
A row replaces what its key holds: 88 bytes at random, which no compression makes smaller.
"""

import os
import signal
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

import penstock as ps
from benchmarks import jobs
from benchmarks.memory import resident_bytes
from penstock.local import LocalCluster
from penstock.model.settings import JobSettings
from penstock.model.views import JobView
from penstock.rpc.rest_client import UnreachableError

KEYS = 10_000_000
HOT_KEYS = 100_000
HOT_SHARE = 0.95
VALUE_BYTES = 88
UID = "profiles"
LIMIT_SECONDS = 3600.0
"""For anything."""
_SAME_ROWS = 1 << 17
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_POLL_SECONDS = 0.02


class LastSeen(ps.KeyedProcessFunction):
    """Keeps what came last, called per record."""

    last = ps.ValueState(bytes)

    def process(self, ctx: ps.KeyedContext, payload: bytes) -> Any:
        """A row for a row."""
        before = self.last.value
        self.last.value = payload
        return ctx.key, 0 if before is None else len(before)


class LastSeenInBatches(ps.KeyedProcessFunction):
    """The same, called per batch."""

    last = ps.ValueState(bytes)

    def process_batch(self, ctx: ps.KeyedContext, rows: pl.DataFrame) -> pl.DataFrame:
        """A row for a row; all of a batch see what was held before it."""
        before = self.last.get_many(rows)
        self.last.set_many(rows, rows["payload"])
        return rows.select("user", before=before.bin.size().fill_null(0).cast(pl.Int64()))


FORMS = {"per record": LastSeen, "per batch": LastSeenInBatches}


class Rows:
    """From row numbers to rows; pickled with the program, and fills its pool of random bytes where it runs."""

    def __init__(self, keys: int) -> None:
        self.keys, self.hot_keys = keys, min(HOT_KEYS, max(1, keys // 10))
        self._pool: np.ndarray[Any, np.dtype[np.uint8]] | None = None

    def __call__(self, numbers: pl.DataFrame) -> pl.DataFrame:
        """Key and payload of each row."""
        if self._pool is None:
            self._pool = np.frombuffer(os.urandom(2 * _SAME_ROWS * VALUE_BYTES), np.uint8)
        n = numbers["n"].to_numpy()
        random = np.random.default_rng(int(n[0]))
        some_key = random.integers(0, self.keys, len(n))
        hot_key = random.integers(0, self.hot_keys, len(n)) * (self.keys // self.hot_keys)
        later = np.where(random.random(len(n)) < HOT_SHARE, hot_key, some_key)
        # Spread, so that neither keys nor their bytes come in any order.
        user = (np.where(n < self.keys, n, later).astype(np.uint64) * _SPREAD >> np.uint64(1)).astype(np.int64)
        start = int(random.integers(0, _SAME_ROWS)) * VALUE_BYTES
        part = self._pool[start : start + len(n) * VALUE_BYTES]
        payload = pa.FixedSizeBinaryArray.from_buffers(pa.binary(VALUE_BYTES), len(n), [None, pa.py_buffer(part)])
        return pl.DataFrame({"user": user, "payload": pl.Series(payload.cast(pa.large_binary()))})


def program(flow: ps.Flow, *, keys: int, form: str) -> None:
    """Makes rows, exchanges them by key, calls, forgets."""
    numbers = flow.read(ps.generate({"n": ps.sequence()}), uid="numbers")
    rows = numbers.map_batches(Rows(keys), output={"user": int, "payload": bytes}, uid="rows")
    seen = rows.key_by("user").process(FORMS[form](), output={"user": int, "before": int}, uid=UID)
    seen.write(ps.discard(), uid="nowhere")


@dataclass(frozen=True, slots=True)
class Moment:
    """How far a job has come, as its slot has just reported."""

    at: float
    rows: int
    cpu_seconds: float


class RunningJob:
    """One job in one slot, which can be stopped in its tracks so that another one has the machine."""

    def __init__(self, cluster: LocalCluster, name: str, settings: JobSettings, *, keys: int, form: str) -> None:
        self._cluster, self.name, self.keys = cluster, name, keys
        self._checkpoints = 0
        self.id = jobs.submit(cluster, partial(program, keys=keys, form=form), parallelism=1, settings=settings).id
        jobs.wait_until(lambda: self.view().state == "running", "a running job")
        (self.pid,) = [each.pid for each in cluster.client.cluster().processes if each.job == self.id]

    def view(self) -> JobView:
        """As the JobManager sees it. On a machine that others use too it may take its time to answer."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while True:
            try:
                return self._cluster.client.job(self.id)
            except UnreachableError:
                self._cluster.check()
                if time.monotonic() > deadline:
                    raise

    @property
    def rows(self) -> int:
        """Rows that the function has taken."""
        return sum(each.rows_in for vertex in self.view().vertices for each in vertex.operators if each.uid == UID)

    @property
    def is_filled(self) -> bool:
        """Whether every key has been written, and the hot ones a few times."""
        return self.rows > self.keys * 1.1

    def checkpoint(self) -> None:
        """Begin one."""
        self._checkpoints += 1
        self._cluster.client.checkpoint(self.id)

    @property
    def is_in_checkpoint(self) -> bool:
        """Whether one is under way."""
        return self.view().checkpoints_completed < self._checkpoints

    def pause(self) -> None:
        """Stop the process, with all its threads."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it run again."""
        os.kill(self.pid, signal.SIGCONT)

    def moment(self) -> Moment:
        """When the next report has come."""
        before = self.rows
        while (rows := self.rows) == before:
            self._cluster.check()
            time.sleep(_POLL_SECONDS)
        if restarts := self.view().restarts:
            raise RuntimeError(f"{self.name} has failed {restarts} times: its figures say nothing")
        return Moment(time.monotonic(), rows, cpu_seconds(self.pid))

    def cancel(self) -> None:
        """And wait until its slot is free again."""
        self.go_on()
        self._cluster.client.cancel(self.id)
        jobs.wait_until(lambda: self.view().state == "cancelled", "a cancelled job")


def fill(running: list[RunningJob]) -> None:
    """Let all jobs write all keys, and stop each when it has."""
    deadline = time.monotonic() + LIMIT_SECONDS
    waiting = list(running)
    while waiting:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{[job.name for job in waiting]} did not fill their state in {LIMIT_SECONDS:.0f} s")
        for job in [job for job in waiting if job.is_filled]:
            job.pause()
            waiting.remove(job)
        time.sleep(_POLL_SECONDS * 10)


def cpu_seconds(pid: int) -> float:
    """Of all threads of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def most_resident_bytes(pid: int) -> int:
    """The most memory that a process ever had resident, as the kernel has kept it."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resident_bytes(pid)
