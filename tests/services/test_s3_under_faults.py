"""A store behind a bad network: what is asked for happens, once, and what is told is true."""

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from fault_proxy import FaultProxy, Request, conditional, running_proxy
from s3_servers import S3Server, s3_client

from penstock.checkpoint import journal
from penstock.model.errors import RetryableError
from penstock.model.ids import Attempt
from penstock.storage import ObjectStore, UnknownResultError, open_store

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def proxy(versitygw: S3Server) -> Iterator[FaultProxy]:
    with running_proxy(versitygw.port) as proxy:
        yield proxy


@pytest.fixture
def bucket(versitygw: S3Server, new_bucket) -> str:
    return new_bucket(versitygw)


def test_of_a_thousand_creates_whose_answers_get_lost_each_is_told_the_truth(
    proxy: FaultProxy, versitygw: S3Server, bucket: str
) -> None:
    """Two writers race for each of 500 paths, with the same bytes: only whose write it was can tell them apart."""
    told: dict[tuple[int, int], bool] = {}
    stores = [open_store(proxy.uri(bucket)) for _ in range(2)]

    def create(asked: tuple[int, int]) -> None:
        path, writer = asked
        told[path, writer] = stores[writer].create(f"race/{path:03d}", b"same")

    asked = [(path, writer) for path in range(500) for writer in range(2)]
    with proxy.under(which=conditional, lost_after=0.3, lost_before=0.05, late=0.1), ThreadPoolExecutor(8) as pool:
        list(pool.map(create, asked))
    assert [told[path, 0] + told[path, 1] for path in range(500)] == [1] * 500
    assert len(list(open_store(versitygw.uri(bucket)).list("race/"))) == 500
    assert proxy.met["lost after"] > 300
    assert proxy.met["late"] > 50


@pytest.mark.parametrize("options", [{}, {"retry_for": "0s"}], ids=["patient", "hasty"])
def test_a_journal_whose_answers_get_lost_has_every_entry_once(
    proxy: FaultProxy, versitygw: S3Server, bucket: str, options: dict[str, str]
) -> None:
    store = open_store(proxy.uri(bucket, "job", **options))
    parent = ""
    with proxy.under(lost_after=0.25, lost_before=0.05, busy=0.1):
        for sequence in range(60):
            parent = append(store, sequence, parent)
    recorded = journal.read_journal(open_store(versitygw.uri(bucket, "job")))
    assert [each.entry.sequence for each in recorded] == list(range(60))
    assert recorded[-1].sha256 == parent


def append(store: ObjectStore, sequence: int, parent: str) -> str:
    """As the JobManager does: the same entry again, until it is answered."""
    kind = journal.AttemptStarted if sequence else journal.Submitted
    fields = {"attempt": Attempt(sequence), "region": 0, "restored": None} if sequence else {}
    fields = fields or {"name": "n", "graph_sha256": ""}
    entry = kind(sequence=sequence, parent=parent, writer="me", time_us=0, **fields)
    while True:
        try:
            result = journal.append(store, entry)
        except RetryableError:
            continue
        assert isinstance(result, journal.Appended)
        return result.sha256


def test_a_third_of_all_requests_refused_is_no_reason_to_fail(proxy: FaultProxy, bucket: str) -> None:
    store = open_store(proxy.uri(bucket))
    with proxy.under(busy=0.3):
        for number in range(50):
            store.put(f"a/{number:03d}", str(number).encode())
            assert store.get(f"a/{number:03d}") == str(number).encode()
        assert [info.path for info in store.list("a/")] == [f"a/{number:03d}" for number in range(50)]
        for number in range(50):
            store.delete(f"a/{number:03d}")
        assert list(store.list("")) == []
    assert proxy.met["busy"] > 30


def test_a_store_that_denies_access_for_a_moment_is_asked_again(proxy: FaultProxy, bucket: str) -> None:
    """As MinIO does, to who writes into a folder whose last object somebody else is removing."""
    store = open_store(proxy.uri(bucket))
    store.put("a/0", b"0")
    assert store.get("a/0") == b"0"
    assert [info.path for info in store.list("a/")] == ["a/0"]
    store.delete("a/0")
    with proxy.under(denied=0.4):
        for number in range(10):
            assert store.create(f"a/{number}", b"x")
            assert store.get(f"a/{number}") == b"x"
            assert [info.path for info in store.list("a/")] == [f"a/{number}"]
            store.delete(f"a/{number}")
    assert proxy.met["denied"] > 10


def test_a_store_that_goes_on_denying_access_says_so(proxy: FaultProxy, bucket: str) -> None:
    """Rights that were taken away, credentials that have expired."""
    store = open_store(proxy.uri(bucket, retry_for="1s"))
    store.put("a", b"1")
    with proxy.under(denied=1.0), pytest.raises(RetryableError, match=r"S082.*403 AccessDenied.*\n.*permissions"):
        store.put("b", b"1")
    assert proxy.met["denied"] > 1


def test_a_store_that_never_let_us_in_says_so_soon(proxy: FaultProxy, bucket: str) -> None:
    """Whoever may write and not delete is told so, whatever else works."""
    store = open_store(proxy.uri(bucket))
    store.put("a", b"1")
    with proxy.under(denied=1.0):
        with pytest.raises(RetryableError, match=r"S082"):
            store.get("a")
        assert proxy.met["denied"] == 1
        with pytest.raises(RetryableError, match=r"S082"):
            store.delete("a")
    assert proxy.met["denied"] < 10


def test_a_store_that_takes_ten_seconds_is_waited_for(proxy: FaultProxy, bucket: str) -> None:
    store = open_store(proxy.uri(bucket))
    with proxy.under(latency=lambda: 10.0):
        assert store.create("slow", b"1")
    assert proxy.met.total() == 1


def test_a_store_that_is_slower_than_the_time_out_is_asked_again(proxy: FaultProxy, bucket: str) -> None:
    store = open_store(proxy.uri(bucket, read_timeout="300ms"))
    pauses = iter([2.0, 2.0, 0.0])
    with proxy.under(latency=lambda: next(pauses)):
        assert store.create("slow", b"1")
    assert next(pauses, None) is None


def test_a_store_that_is_away_for_a_while_is_waited_for(proxy: FaultProxy, bucket: str) -> None:
    store = open_store(proxy.uri(bucket))
    proxy.refuse()
    timer = threading.Timer(3.0, proxy.accept)
    timer.start()
    assert store.create("patience", b"1")
    timer.join()


def test_a_store_that_stays_away_is_told_by_its_name_and_nothing_is_in_doubt(proxy: FaultProxy, bucket: str) -> None:
    proxy.refuse()
    for operation in (lambda store: store.create("a", b""), lambda store: store.get("a")):
        with pytest.raises(RetryableError, match=f"S083.*{proxy.endpoint} does not answer") as caught:
            operation(open_store(proxy.uri(bucket, retry_for="300ms")))
        assert not isinstance(caught.value, UnknownResultError)


def test_a_create_that_was_never_answered_is_in_doubt(proxy: FaultProxy, versitygw: S3Server, bucket: str) -> None:
    """Once it has happened and once it has not: nobody can tell while nothing is answered."""
    store = open_store(proxy.uri(bucket, retry_for="300ms"))
    for fault in ("lost_before", "lost_after"):
        with proxy.under(**{fault: 1.0}), pytest.raises(UnknownResultError, match="S012"):
            store.create(fault, b"1")
    there = open_store(versitygw.uri(bucket))
    assert (there.get("lost_before"), there.get("lost_after")) == (None, b"1")


def test_a_create_that_was_never_answered_is_known_again_when_it_can_be_read(proxy: FaultProxy, bucket: str) -> None:
    store = open_store(proxy.uri(bucket, retry_for="300ms"))
    with proxy.under(which=conditional, lost_after=1.0):
        assert store.create("mine", b"1")
        assert not store.create("mine", b"1")


def test_large_objects_go_through_in_parts_and_leave_none_behind(
    proxy: FaultProxy, versitygw: S3Server, bucket: str
) -> None:
    store, data = open_store(proxy.uri(bucket)), random.Random(2).randbytes(60_000_000)

    def part_or_completion(request: Request) -> bool:
        return "uploadId=" in request.target

    with proxy.under(which=part_or_completion, busy=0.2, lost_after=0.2):
        assert store.create("large", data)
        assert not store.create("large", data)
        store.put("large", data[1:])
    assert store.get("large") == data[1:]
    assert uploads(versitygw, bucket) == []


def test_an_upload_that_fails_half_way_is_aborted(proxy: FaultProxy, versitygw: S3Server, bucket: str) -> None:
    store = open_store(proxy.uri(bucket, retry_for="200ms"))
    with (
        proxy.under(which=lambda request: "partNumber=2" in request.target, busy=1.0),
        pytest.raises(RetryableError, match="large, part 2"),
    ):
        store.put("large", bytes(50_000_000))
    assert store.get("large") is None
    assert uploads(versitygw, bucket) == []


def uploads(server: S3Server, bucket: str) -> list[object]:
    client = s3_client(server.endpoint)
    try:
        return list(client.list_multipart_uploads(Bucket=bucket).get("Uploads", []))
    finally:
        client.close()


def test_a_body_that_breaks_off_is_read_again(proxy: FaultProxy, bucket: str) -> None:
    store, data = open_store(proxy.uri(bucket)), random.Random(3).randbytes(1_000_000)
    store.put("x", data)
    with proxy.under(torn=0.4):
        for _ in range(10):
            assert store.get("x") == data
            assert store.get_range("x", 500, 500_000) == data[500:500_500]
    assert proxy.met["torn"] > 5
