"""One cluster, its images and an S3 server for a session; a namespace for each test; evidence when one fails."""

import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "services"))

from s3_servers import VERSITYGW

from harness import evidence
from harness.clusters import TREE, Cluster, Own, administrator, open_cluster
from harness.flowjobs import FlowJobs
from harness.images import Images, load_images
from harness.kubectl import Kubectl
from harness.namespaces import restricted_namespace
from harness.operators import install_definitions, operator
from harness.s3 import S3Server, deploy_s3

failed = pytest.StashKey[bool]()
began = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--keep", action="store_true", help="leave the cluster running, and namespaces of failed tests")
    parser.addoption("--minutes", type=float, help="begin no test later than this; those left out are told")


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[began] = time.monotonic()


def pytest_runtest_setup(item: pytest.Item) -> None:
    minutes = item.config.getoption("--minutes")
    if minutes is not None and time.monotonic() - item.config.stash[began] > 60 * minutes:
        pytest.skip(f"more than {minutes:g} minutes have passed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.e2e)
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(900, func_only=True))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.when != "teardown" and report.failed:
        item.stash[failed] = True
        kubectl = getattr(item, "funcargs", {}).get("kubectl")
        if kubectl is not None:
            folder = TREE / "build" / "e2e" / re.sub(r"\W+", "-", item.name)
            report.sections.append(("cluster", evidence.collect(kubectl, folder)))
    return report


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Any."""
    opened = open_cluster(keep=request.config.getoption("--keep"))
    yield opened
    opened.close()


@pytest.fixture
def own_cluster(cluster: Cluster) -> Own:
    """One whose nodes and control plane may be broken."""
    if not isinstance(cluster, Own):
        pytest.skip("this breaks nodes or the control plane, which only a cluster of e2e/cluster is for")
    return cluster


@pytest.fixture(scope="session")
def images(cluster: Cluster) -> Images:
    """On all nodes."""
    VERSITYGW.install()
    return load_images(cluster, VERSITYGW.binary)


@pytest.fixture(scope="session")
def admin(cluster: Cluster) -> Kubectl:
    """Of the whole cluster."""
    return administrator(cluster)


@pytest.fixture(scope="session")
def s3(admin: Kubectl, images: Images) -> S3Server:
    """Runs in the cluster."""
    return deploy_s3(admin, images.s3)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Of this test's namespace and bucket; another one at each run."""
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower().removeprefix("test_")).strip("-")
    return f"{words[:40].strip('-')}-{os.urandom(2).hex()}"


@pytest.fixture
def kubectl(request: pytest.FixtureRequest, admin: Kubectl, images: Images, name: str) -> Iterator[Kubectl]:
    """In a namespace of this test's own, where Pod Security `restricted` is enforced."""
    with restricted_namespace(
        admin, name, keep=lambda: request.config.getoption("--keep") and request.node.stash.get(failed, False)
    ) as ours:
        yield ours


@pytest.fixture
def bucket(s3: S3Server, name: str) -> Iterator[str]:
    """An empty one."""
    yield s3.make_bucket(name)
    s3.remove_bucket(name)


@pytest.fixture(scope="session")
def definitions(admin: Kubectl) -> None:
    """The kinds of this tree."""
    install_definitions(admin)


@pytest.fixture
def jobs(definitions: None, kubectl: Kubectl, images: Images, tmp_path: Path) -> Iterator[FlowJobs]:
    """With a controller for this namespace, and the program `totals`."""
    with operator(kubectl, images, tmp_path / "operator.log"):
        found = FlowJobs(kubectl, images.penstock)
        found.add_program("totals")
        yield found
