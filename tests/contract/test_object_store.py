"""Stores that need no service keep what every object store promises; `tests/services` asks the same of S3."""

import sys
from pathlib import Path

import pytest

from penstock.storage import LocalStore, ObjectStore, Prefixed, UploadStore, open_store, open_uploads

sys.path.insert(0, str(Path(__file__).parent))
from object_store_promises import MakeStore, Promises, UploadPromises


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


class TestUploadsToThisMachine(UploadPromises):
    @pytest.fixture(params=["whole", "folder"])
    def store(self, request: pytest.FixtureRequest, tmp_path: Path) -> UploadStore:
        name = tmp_path.as_posix().replace("/", "-")
        return open_uploads(f"memory://{name}{'/folder' if request.param == 'folder' else ''}")
