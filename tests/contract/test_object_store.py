"""Stores that need no service keep what every object store promises; `tests/services` asks the same of S3."""

import sys
from pathlib import Path

import pytest

from penstock.storage import LocalStore, ObjectStore, Prefixed, open_store

sys.path.insert(0, str(Path(__file__).parent))
from object_store_promises import MakeStore, Promises


def memory(folder: Path) -> ObjectStore:
    return open_store(f"memory://{folder.as_posix().replace('/', '-')}")


STORES: dict[str, MakeStore] = {
    "local": LocalStore,
    "memory": memory,
    "folder of local": lambda folder: Prefixed(LocalStore(folder), "jobs/a"),
    "folder of memory": lambda folder: Prefixed(memory(folder), "jobs/a"),
}


class TestStoresOfThisMachine(Promises):
    @pytest.fixture(params=STORES, ids=str)
    def make_store(self, request: pytest.FixtureRequest) -> MakeStore:
        return STORES[request.param]
