"""Whether a store keeps the one promise that the journal stands on: of all who create a path, exactly one wins.

There are stores that take a conditional write and ignore the condition, and stores that look first and write then, so
that two writers may both find nothing. Neither says so. Only trying it tells, before the first job and not after the
second JobManager.
"""

import contextlib
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from penstock.model.errors import PenstockError, UserError
from penstock.storage._port import ObjectStore

FOLDER: Final = "probe"
_WRITERS: Final = 16
_ROUNDS: Final = 4
"""A store that ignores conditions fails the first round; one that races fails one in several."""


def check_conditional_writes(store: ObjectStore, rng: random.Random) -> None:
    """S080 when the store lets more than one writer create a path, or none. What it wrote is removed."""
    run = f"{FOLDER}/{rng.getrandbits(64):016x}"
    paths = [f"{run}-{number}" for number in range(_ROUNDS)]
    try:
        with ThreadPoolExecutor(_WRITERS, thread_name_prefix="probe") as pool:
            for path in paths:
                _check_race(store, path, pool)
                _check_late_writer(store, path)
    finally:
        with contextlib.suppress(PenstockError):
            for path in paths:
                store.delete(path)


def _check_race(store: ObjectStore, path: str, pool: ThreadPoolExecutor) -> None:
    start = threading.Barrier(_WRITERS)

    def create(me: int) -> bool:
        start.wait()
        return store.create(path, _body(me))

    winners = [me for me, won in enumerate(pool.map(create, range(_WRITERS))) if won]
    if len(winners) != 1:
        raise _refusal(store, f"{_WRITERS} writers created the same object at once, and {len(winners)} were told yes")
    if store.get(path) != _body(winners[0]):
        raise _refusal(store, "of several writers one was told that it had created the object, but another one had")


def _check_late_writer(store: ObjectStore, path: str) -> None:
    before = store.get(path)
    if store.create(path, b"late") or store.get(path) != before:
        raise _refusal(store, "an object that was there could be created again")


def _body(writer: int) -> bytes:
    return f"writer {writer}".encode()


def _refusal(store: ObjectStore, what: str) -> UserError:
    return UserError(
        "S080",
        f"the store does not honour conditional writes (If-None-Match: *): {what}",
        where=store.uri,
        fix="use a store that does, or jobs may be run twice at once; docs/object-stores.md names some",
    )
