"""Somebody else's program that reads the sink's directory all the time, and complains about what it should not see."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
from oracles import Oracle

from penstock.checkpoint import journal
from penstock.storage import open_store

PAUSE_SECONDS = 0.02


@dataclass(slots=True)
class OutsideReader:
    """Reads the sink's directory all the time, and complains about everything that no reader should see."""

    out: Path
    store: Path
    oracle: Oracle
    complaints: list[str] = field(default_factory=list)
    looks: int = 0
    rows: pl.DataFrame = field(default_factory=pl.DataFrame)
    _seen: set[str] = field(default_factory=set)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Look from a thread of its own, until the block ends."""
        done = threading.Event()
        thread = threading.Thread(target=self._watch, args=(done,), name="outside-reader")
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _watch(self, done: threading.Event) -> None:
        while not done.wait(PAUSE_SECONDS) and not self.complaints:
            try:
                self.look()
            except Exception as error:  # the thread's own failure must fail the test too
                self.complaints.append(f"the reader failed: {error!r}")

    def look(self) -> None:
        """One look at the directory. Files never change once they are there, so only new ones are read."""
        found = {str(path.relative_to(self.out)) for path in self.out.glob("**/*.parquet")}
        self.looks += 1
        if gone := self._seen - found:
            self.complaints.append(f"committed files have vanished: {sorted(gone)}")
        new = sorted(found - self._seen)
        self._seen |= found
        if not new:
            return
        # Read after the files were listed: whatever was visible must have been in the journal by now.
        newest = _newest_checkpoint(self.store)
        for name in new:
            # A checkpoint that was given up leaves its rows to the next: they are visible when that is completed.
            if _checkpoint_of(name) > newest:
                self.complaints.append(f"{name} is visible, and the newest checkpoint in the journal is {newest}")
        frames = [pl.read_parquet(self.out / name).select(self.oracle.columns) for name in new]
        self.rows = pl.concat([self.rows, *frames] if self.rows.width else frames, rechunk=True)
        self.complaints += self.oracle.complaints(self.rows)

    def look_at_the_end(self) -> None:
        """The job is over: everything must be there."""
        self.look()
        if not self.complaints:
            self.complaints += self.oracle.missing(self.rows)


def _newest_checkpoint(store: Path) -> int:
    manifest = journal.latest(each.entry for each in journal.read_journal(open_store(str(store))))
    return manifest.checkpoint if manifest is not None else 0


def restarts_and_checkpoints(store: Path) -> tuple[int, int]:
    """As the journal has them, over all JobManagers; old checkpoints are deleted, but not renumbered."""
    entries = [each.entry for each in journal.read_journal(open_store(str(store)))]
    attempts = sum(isinstance(entry, journal.AttemptStarted) for entry in entries)
    others = len(entries) - sum(isinstance(entry, journal.CheckpointCompleted) for entry in entries)
    return attempts - 1, entries[-1].sequence + 1 - others


def _checkpoint_of(name: str) -> int:
    """Part files are called part-<uid>-<subtask>-<attempt>-<checkpoint>-<number>."""
    return int(Path(name).stem.rsplit("-", 2)[1])
