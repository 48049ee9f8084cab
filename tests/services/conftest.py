"""Servers that run as long as the tests of a session do."""

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "contract"))
from s3_servers import ACCESS_KEY, MINIO, SECRET_KEY, VERSITYGW, S3Server, running


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--outage",
        type=float,
        default=5.0,
        help="seconds for which a store refuses connections; 120 is what we promise",
    )


NewBucket = Callable[[S3Server], str]


@pytest.fixture(scope="session", autouse=True)
def credentials() -> Iterator[None]:
    """By the usual way; and nothing of this machine's own configuration."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION"):
            patch.delenv(name, raising=False)
        patch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield


@pytest.fixture(scope="session")
def versitygw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running(VERSITYGW, tmp_path_factory.mktemp("versitygw")) as server:
        yield server


@pytest.fixture(scope="session")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running(MINIO, tmp_path_factory.mktemp("minio")) as server:
        yield server


@pytest.fixture(scope="session")
def new_bucket() -> NewBucket:
    """An empty bucket at each call."""
    numbers = itertools.count()

    def make(server: S3Server) -> str:
        name = f"penstock-{next(numbers)}"
        server.make_bucket(name)
        return name

    return make
