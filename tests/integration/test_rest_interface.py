"""The REST interface over a real socket, with jobs that are just data."""

import asyncio
import contextlib
import re
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from urllib.parse import urljoin

import msgspec
import pytest
import uvicorn

from penstock.graph import JobGraph
from penstock.jobmanager.rest import application
from penstock.model.errors import UserError
from penstock.model.ids import JobId
from penstock.model.views import (
    CheckpointView,
    ClusterView,
    JobView,
    OperatorView,
    PlanLine,
    PlanVertex,
    PlanView,
    SavepointView,
    VertexView,
)
from penstock.rpc import RestClient, UnreachableError
from penstock.savepoints import RestoreOptions

LIMIT = 100_000


class PlainJobs:
    """Jobs that do nothing but change their state when told to."""

    def __init__(self) -> None:
        self.states = {JobId("calm-1"): "running", JobId("done-1"): "finished"}
        self.orders: list[tuple[str, str]] = []
        self.taken: list[SavepointView] = []

    def health(self):
        return {"status": "ok"}

    def cluster(self):
        return ClusterView(processes=(), slots_total=2, slots_free=1, jobs=tuple(map(self.job, self.states)))

    def job_ids(self):
        return list(self.states)

    def job(self, job):
        operator = OperatorView(uid="count", name='a "quoted" name', rows_in=12)
        return JobView(
            id=job,
            name=job,
            state=self.states[job],
            attempt=1,
            restarts=0,
            parallelism=1,
            submitted_us=0,
            vertices=(VertexView(id="count", parallelism=1, operators=(operator,), watermark_us=5_000_000),),
        )

    def checkpoints(self, job):
        return (CheckpointView(id=1, kind="checkpoint", status="completed", triggered_us=1, size=10),)

    async def graph(self, job):
        return b'{"name":"g"}'

    def plan(self, job):
        line = PlanLine(text="count <b>all</b>", uid="count")
        return PlanView(name=job, vertices=(PlanVertex(id="count", parallelism=1, column=0, lines=(line,)),), edges=())

    async def submit(self, body, *, name, origin, restore, job_id):
        try:
            msgspec.json.decode(body, type=JobGraph)
        except msgspec.DecodeError as error:
            raise UserError("H005", f"the body is not a job graph: {error}") from error
        self.orders.append((name, origin))
        self.restore = restore
        self.states[JobId(job_id or "new-1")] = "created"
        return JobId(job_id or "new-1")

    def cancel(self, job):
        self.orders.append(("cancel", job))
        self.states[job] = "cancelled"

    def stop(self, job):
        self.orders.append(("stop", job))

    def trigger_checkpoint(self, job):
        self.orders.append(("checkpoint", job))

    def savepoints(self, job):
        return tuple(self.taken)

    async def take_savepoint(self, job, *, folder, stop, name):
        self.orders.append(("stop-savepoint" if stop else "savepoint", folder))
        uri = f"s3://b/s/{name}?endpoint=http://s3:7070" if name else "file:///s/1"
        self.taken.append(SavepointView(uri=uri, kind="savepoint", status="pending", requested_us=0))
        return self.taken[-1]


@contextlib.contextmanager
def served(jobs: PlainJobs) -> Iterator[str]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        app = application(jobs, max_body_bytes=LIMIT, local_only=True)
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture
def jobs() -> PlainJobs:
    return PlainJobs()


@pytest.fixture
def client(jobs) -> Iterator[RestClient]:
    with served(jobs) as url:
        yield RestClient(url)


def status_of(url: str, *, method: str = "GET", body: bytes | None = None, **headers: str) -> tuple[int, dict]:
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    request = urllib.request.Request(url, data=body, method=method, headers=named)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, {}
    except urllib.error.HTTPError as error:
        with error:
            return error.code, msgspec.json.decode(error.read())


def test_views_come_back_as_the_structs_that_were_sent(client, jobs):
    assert client.health() == {"status": "ok"}
    assert client.cluster() == jobs.cluster()
    assert client.jobs() == [jobs.job(job) for job in jobs.states]
    assert client.job("calm-1") == jobs.job("calm-1")
    assert client.checkpoints("calm-1") == list(jobs.checkpoints("calm-1"))
    assert client.graph("calm-1") == b'{"name":"g"}'


def test_what_runs_is_told_as_it_is_drawn(client, jobs):
    with urllib.request.urlopen(f"{client.url}/jobs/calm-1/plan", timeout=60) as answer:
        assert msgspec.json.decode(answer.read(), type=PlanView) == jobs.plan("calm-1")
    assert status_of(f"{client.url}/jobs/none/plan")[0] == 404


def test_the_dashboard_is_whole_and_loads_nothing_from_elsewhere(client):
    seen, waiting = set(), [f"{client.url}/"]
    while waiting:
        address = waiting.pop()
        seen.add(address)
        with urllib.request.urlopen(address, timeout=60) as answer:
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            text = answer.read().decode()
        found = {urljoin(address, name) for name in re.findall(r"""(?:src|href|from|import)[ =]*"([^"#]+)\"""", text)}
        waiting += found - seen - set(waiting)
    names = {address.removeprefix(client.url) for address in seen}
    assert names == {
        "/",
        *(f"/pages/{name}" for name in ("page.css", "page.js", "elements.js", "figures.js", "plan.js")),
    }
    assert status_of(f"{client.url}/", origin="http://elsewhere.example")[0] == 403


def test_an_unknown_job_is_404_with_the_jobs_that_there_are(client):
    with pytest.raises(UserError, match="H003") as caught:
        client.job("nobody")
    assert "calm-1, done-1" in caught.value.fix
    assert status_of(f"{client.url}/jobs/..%2f..%2fetc")[0] == 404


def test_a_wrong_body_names_the_place_inside_it(client):
    with pytest.raises(UserError, match="H005") as caught:
        client.submit(b'{"name": 7}')
    assert "$.name" in caught.value.what


def test_a_job_is_submitted_with_its_name_and_origin(client, jobs):
    graph = msgspec.json.encode(JobGraph(name="g", vertices=(), edges=(), bounded=True))
    assert client.submit(graph, name="other", origin="latest").id == "new-1"
    assert jobs.orders == [("other", "latest")]


def test_what_is_allowed_on_the_way_from_a_savepoint_arrives(client, jobs):
    graph = msgspec.json.encode(JobGraph(name="g", vertices=(), edges=(), bounded=True))
    options = RestoreOptions(evolve=True, map_uid=(("a", "b"), ("c.d", "")))
    client.submit(graph, origin="file:///s/1", restore=options.query)
    assert jobs.restore == options


def test_one_savepoint_is_taken_at_a_time_and_only_of_a_job_that_runs(client, jobs):
    view = client.take_savepoint("calm-1", folder="s3://b/s", stop=True)
    assert (view.status, jobs.orders) == ("pending", [("stop-savepoint", "s3://b/s")])
    status, problem = status_of(f"{client.url}/jobs/calm-1/savepoints", method="POST", body=b"")
    assert (status, problem["code"]) == (409, "S028")
    assert "file:///s/1" in problem["what"]
    status, problem = status_of(f"{client.url}/jobs/done-1/savepoints", method="POST", body=b"")
    assert (status, problem["code"]) == (409, "S008")
    assert client.savepoints("calm-1") == [view]


def test_a_savepoint_with_a_name_is_taken_once_whatever_became_of_the_job(client, jobs):
    view = client.take_savepoint("calm-1", folder="s3://b/s", name="before-7", stop=True)
    assert client.take_savepoint("calm-1", folder="s3://b/s", name="before-7", stop=True) == view
    jobs.states[JobId("calm-1")] = "stopped"
    assert client.take_savepoint("calm-1", folder="s3://b/s", name="before-7", stop=True) == view
    assert jobs.orders == [("stop-savepoint", "s3://b/s")]


def test_a_job_gets_the_id_that_its_client_chose(client):
    graph = msgspec.json.encode(JobGraph(name="g", vertices=(), edges=(), bounded=True))
    assert client.submit(graph, job_id="orders-1").id == "orders-1"


def test_a_body_over_the_limit_is_413(client):
    status, problem = status_of(
        f"{client.url}/jobs", method="POST", body=b" " * (LIMIT + 1), content_type="application/json"
    )
    assert (status, problem["code"]) == (413, "H004")


def test_cancel_is_taken_once_and_then_does_nothing(client, jobs):
    assert status_of(f"{client.url}/jobs/calm-1/cancel", method="POST", body=b"")[0] == 202
    assert status_of(f"{client.url}/jobs/calm-1/cancel", method="POST", body=b"")[0] == 200
    assert client.stop("done-1").state == "finished"
    assert jobs.orders == [("cancel", "calm-1")]


def test_a_checkpoint_of_a_job_that_does_not_run_is_409(client, jobs):
    client.checkpoint("calm-1")
    status, problem = status_of(f"{client.url}/jobs/done-1/checkpoint", method="POST", body=b"")
    assert (status, problem["code"]) == (409, "S008")
    assert jobs.orders == [("checkpoint", "calm-1")]


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"origin": "http://evil.example"}, 403),
        ({"host": "evil.example"}, 403),
        ({"content_type": "text/plain"}, 415),
    ],
)
def test_what_a_foreign_web_page_can_send_is_refused(client, jobs, headers, expected):
    assert status_of(f"{client.url}/jobs", method="POST", body=b"{}", **headers)[0] == expected
    assert jobs.orders == []


def test_wrong_methods_and_paths_have_the_same_form_of_error(client):
    status, problem = status_of(f"{client.url}/jobs/calm-1", method="DELETE")
    assert status == 405
    assert set(problem) == {"code", "what", "where", "fix"}
    assert status_of(f"{client.url}/nothing")[0] == 404


def test_metrics_are_prometheus_text(client):
    with urllib.request.urlopen(f"{client.url}/metrics", timeout=60) as response:
        text = response.read().decode()
    assert "# TYPE penstock_operator_rows_in_total counter" in text
    assert 'penstock_operator_rows_in_total{job="calm-1",vertex="count",operator="count"} 12' in text
    assert 'penstock_vertex_watermark_seconds{job="calm-1",vertex="count"} 5' in text
    assert "penstock_slots_free 1" in text


def test_nobody_at_the_url_is_an_error_with_a_fix():
    with pytest.raises(UnreachableError, match="penstock jobmanager"):
        RestClient("127.0.0.1:9").health()
