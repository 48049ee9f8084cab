import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.model.errors import RetryableError
from penstock.storage import LocalStore

WRITER = """
import sys
from penstock.storage import LocalStore
store, number = LocalStore(sys.argv[1]), 0
print("ready", flush=True)
while True:
    body = bytes([number % 256]) * 300_000
    store.create(f"create/{number}", body)
    store.put(f"put/{number % 3}", body)
    number += 1
"""


class ClockAt:
    def __init__(self, now_us: int) -> None:
        self._now_us = now_us

    def now_us(self) -> int:
        return self._now_us

    def monotonic(self) -> float:
        return self._now_us / 1_000_000


def test_a_writer_that_is_killed_never_leaves_a_torn_object(tmp_path: Path) -> None:
    for episode in range(6):
        root = tmp_path / str(episode)
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(root)], stdout=subprocess.PIPE)
        with writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
            # Not a wait: at least one object, then die wherever the writer happens to be.
            while not any(root.glob("put/*")):
                assert writer.poll() is None
            writer.send_signal(signal.SIGKILL)
        store = LocalStore(root)
        for info in store.list(""):
            body = store.get(info.path)
            assert body is not None
            assert len(body) == 300_000
            assert len(set(body)) == 1


def test_drafts_of_dead_writers_are_swept_when_they_are_stale(tmp_path: Path) -> None:
    LocalStore(tmp_path)
    drafts = next(path for path in tmp_path.iterdir() if path.name.startswith("."))
    (drafts / "old").write_bytes(b"x")
    (drafts / "new").write_bytes(b"x")
    os.utime(drafts / "old", (1_000_000, 1_000_000))
    os.utime(drafts / "new", (1_003_000, 1_003_000))
    LocalStore(tmp_path, clock=ClockAt(1_004_000 * 1_000_000))
    assert [path.name for path in drafts.iterdir()] == ["new"]


def test_no_draft_stays_behind_after_writing(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.create("a", b"1")
    store.create("a", b"2")
    store.put("b", b"3")
    drafts = next(path for path in tmp_path.iterdir() if path.name.startswith("."))
    assert list(drafts.iterdir()) == []


def test_a_name_that_cannot_be_written_is_a_retryable_error(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("file", b"1")
    with pytest.raises(RetryableError, match="S011"):
        store.put("file/below", b"2")
