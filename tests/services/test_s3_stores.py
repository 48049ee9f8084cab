"""S3 keeps what every object store promises, on each server that we say works."""

import itertools
from pathlib import Path

import pytest
from object_store_promises import MakeStore, Promises, UploadPromises

from penstock.storage import ObjectStore, UploadStore, open_store, open_uploads

pytestmark = pytest.mark.timeout(300)


class TestS3(Promises):
    @pytest.fixture(params=["versitygw", "minio"])
    def make_store(self, request: pytest.FixtureRequest, new_bucket) -> MakeStore:
        server = request.getfixturevalue(request.param)
        bucket, numbers = new_bucket(server), itertools.count()

        def make(_: Path) -> ObjectStore:
            return open_store(server.uri(bucket, f"stores/{next(numbers)}"))

        return make


class TestUploadsToS3(UploadPromises):
    @pytest.fixture(params=["versitygw", "minio"])
    def store(self, request: pytest.FixtureRequest, new_bucket) -> UploadStore:
        server = request.getfixturevalue(request.param)
        return open_uploads(server.uri(new_bucket(server), "stores/1"))


@pytest.mark.parametrize("name", ["versitygw", "minio"])
def test_a_whole_bucket_is_a_store_too(name: str, request: pytest.FixtureRequest, new_bucket) -> None:
    server = request.getfixturevalue(name)
    store = open_store(server.uri(new_bucket(server)))
    assert store.create("a/b", b"1")
    assert [info.path for info in open_store(store.uri).list("")] == ["a/b"]
