"""How the controller does with many FlowJobs: `make bench-controller [FLOWJOBS=200]`. Prints figures, judges nothing.

API server, scheduler, StatefulSets and the controller are real. Kubelet and engine are pretended here: pods are said
to run once they are scheduled, and one web server answers for all JobManagers. Needs a cluster of `e2e/cluster`.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

sys.path.insert(0, str(Path(__file__).parent))

from harness.clusters import administrator, open_cluster
from harness.kubectl import Kubectl, Object, condition
from harness.operators import install_definitions
from penstock_operator import names
from penstock_operator.kube import Connection, connection
from penstock_operator.moments import text_of, utc_now

NODE = "pretended"
NAMESPACE = "many-jobs"
METRICS = 18080
READY_SECONDS = 900.0
IDLE_SECONDS = 120.0


@dataclass
class Pretence:
    """A node and the engines on it."""

    where: Connection
    session: aiohttp.ClientSession
    known: dict[str, str] = field(default_factory=dict)
    """Pod -> its address."""
    engines: dict[str, str] = field(default_factory=dict)
    """Address of a JobManager -> its FlowJob."""
    submitted: dict[str, dict[str, Any]] = field(default_factory=dict)
    """FlowJob -> the job in its engine."""
    _numbers: "count[int]" = field(default_factory=lambda: count(1))

    async def call(self, method: str, path: str, body: Object | None = None, content: str = "application/json") -> Any:
        """Of the API server."""
        headers = {**self.where.headers(), "Content-Type": content}
        async with self.session.request(
            method, f"{self.where.server}/{path}", data=body and json.dumps(body), headers=headers
        ) as answer:
            return json.loads(await answer.text())

    async def make_node(self) -> None:
        """Has room for all of it."""
        labels = {"kubernetes.io/hostname": NODE}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": labels}}
        await self.call("POST", "api/v1/nodes", node)

    async def be(self) -> None:
        """Beats, and says of pods that they run."""
        for turn in count():
            if turn % 20 == 0:
                await self._beat()
            pods = await self.call("GET", f"api/v1/namespaces/{NAMESPACE}/pods?fieldSelector=spec.nodeName={NODE}")
            for pod in pods["items"]:
                await self._attend(pod)
            await asyncio.sleep(0.5)

    async def _beat(self) -> None:
        room = {"cpu": "10000", "memory": "100Ti", "pods": "10000", "ephemeral-storage": "100Ti"}
        now = text_of(utc_now())
        ready = {"type": "Ready", "status": "True", "reason": "Pretended", "message": "", "lastHeartbeatTime": now}
        status = {"status": {"capacity": room, "allocatable": room, "conditions": [ready]}}
        await self.call("PATCH", f"api/v1/nodes/{NODE}/status", status, "application/strategic-merge-patch+json")

    async def _attend(self, pod: Object) -> None:
        name = pod["metadata"]["name"]
        path = f"api/v1/namespaces/{NAMESPACE}/pods/{name}"
        if pod["metadata"].get("deletionTimestamp"):
            await self.call("DELETE", path, {"gracePeriodSeconds": 0})
            return
        uid = pod["metadata"]["uid"]
        if uid in self.known:
            return
        number = next(self._numbers)
        address = self.known[uid] = f"127.{1 + number // 62500}.{number // 250 % 250}.{1 + number % 250}"
        labels = pod["metadata"]["labels"]
        job, component = labels[names.JOB_LABEL], labels[names.COMPONENT_LABEL]
        status = _ended() if component == names.RUN else _running(address)
        if component == names.RUN:
            self._submit(job, pod)
        elif component == names.JOBMANAGER:
            self.engines[address] = job
        await self.call("PATCH", f"{path}/status", {"status": status}, "application/merge-patch+json")

    def _submit(self, job: str, pod: Object) -> None:
        container = pod["spec"]["containers"][0]
        words = " ".join([*container.get("command", []), *container.get("args", [])])
        if found := re.search(r"--id=(\S+)", words):
            self.submitted[job] = {"id": found[1], "submitted_us": _now_us(), "running_us": _now_us()}

    # ------------------------------------------------------------ the engines

    async def answer(self, request: web.Request) -> web.Response:
        """As the JobManager of this address."""
        transport = request.transport
        assert transport is not None
        job = self.engines.get(transport.get_extra_info("sockname")[0], "")
        if request.path != "/cluster":
            return web.json_response([])
        jobs = [_engine_job(self.submitted[job])] if job in self.submitted else []
        slot = {"id": f"{job}-taskmanager-0#0", "role": "slot", "subtasks": ["all"]}
        return web.json_response({"jobs": jobs, "processes": [slot], "slots_total": 1})


def _now_us() -> int:
    return int(utc_now().timestamp() * 1_000_000)


def _engine_job(submitted: dict[str, Any]) -> dict[str, Any]:
    taken = _now_us() // 5_000_000
    last = {"id": taken, "triggered_us": taken * 5_000_000, "size": 1 << 20, "duration_us": 50_000}
    counts = {"parallelism": 1, "attempt": 1, "restarts": 0, "checkpoints_completed": taken}
    return {**submitted, **counts, "state": "running", "reason": "", "last_checkpoint": last}


def _running(address: str) -> Object:
    now = text_of(utc_now())
    kinds = ("Initialized", "Ready", "ContainersReady", "PodScheduled")
    conditions = [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in kinds]
    running = {"name": "main", "ready": True, "started": True, "restartCount": 0, "image": "x", "imageID": "x"}
    return {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": now,
        "conditions": conditions,
        "containerStatuses": [{**running, "state": {"running": {"startedAt": now}}}],
    }


def _ended() -> Object:
    now = text_of(utc_now())
    ended = {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}
    container = {"name": "main", "ready": False, "restartCount": 0, "image": "x", "imageID": "x"}
    return {
        "phase": "Succeeded",
        "startTime": now,
        "containerStatuses": [{**container, "state": {"terminated": ended}}],
    }


# ---------------------------------------------------------------- the measurement


async def measure(admin: Kubectl, jobs: int, log: Path) -> None:
    """All of it."""
    where = connection()
    connector = aiohttp.TCPConnector(limit=16, ssl=where.tls) if where.tls else None
    async with contextlib.AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        pretence = Pretence(where, session)
        await pretence.make_node()
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", pretence.answer)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "0.0.0.0", names.REST_PORT).start()
        being = asyncio.create_task(pretence.be())
        stack.callback(being.cancel)
        process = stack.enter_context(controller(admin, log))

        began = time.monotonic()
        await asyncio.to_thread(admin.apply, *[manifest(number) for number in range(jobs)])
        ready = 0
        while ready < jobs:
            if time.monotonic() - began > READY_SECONDS or process.poll() is not None or being.done():
                raise TimeoutError(f"{ready} of {jobs} FlowJobs are Ready; see {log}")
            await asyncio.sleep(2)
            found = await asyncio.to_thread(admin.items, "flowjobs")
            ready = sum((condition(each, "Ready") or {}).get("status") == "True" for each in found)
            show(f"{ready}/{jobs} Ready after {time.monotonic() - began:.0f} s")
        show("")
        report("FlowJobs, all Ready", f"{jobs} in {time.monotonic() - began:.0f} s")
        starting = await scrape(session)
        report("look while they start, p50 / p99", f"{quantile(starting, {}, 0.5)} / {quantile(starting, {}, 0.99)}")
        await asyncio.sleep(IDLE_SECONDS / 4)
        before, cpu = await scrape(session), cpu_seconds(process.pid)
        await asyncio.sleep(IDLE_SECONDS)
        after, used = await scrape(session), cpu_seconds(process.pid) - cpu
        calls = after["penstock_operator_api_calls"] - before["penstock_operator_api_calls"]
        looks = after[LOOKS.format("count")] - before[LOOKS.format("count")]
        per_minute = jobs * IDLE_SECONDS / 60
        report("look at an idle one, p50 / p99", f"{quantile(after, before, 0.5)} / {quantile(after, before, 0.99)}")
        report("looks per idle FlowJob and minute", f"{looks / per_minute:.1f}")
        report("API calls per idle FlowJob and minute", f"{calls / per_minute:.2f}")
        report("processor while idle", f"{100 * used / IDLE_SECONDS:.0f} % of one core")
        report("memory of the controller", f"{resident_mb(process.pid):.0f} MB")


@contextlib.contextmanager
def controller(admin: Kubectl, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A process of this tree."""
    words = ["run", f"--namespace={NAMESPACE}", f"--port={METRICS}", "--no-leader-election"]
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock_operator", *words], env=admin.environment, stdout=file, stderr=file
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def manifest(number: int) -> Object:
    """One of many."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.FLOWJOB,
        "metadata": {"name": f"job-{number}"},
        "spec": {
            "image": "pretended",
            "entrypoint": "totals.py:totals",
            "program": {"configMap": {"name": "totals"}},
            "parallelism": 1,
            "checkpoints": {"storage": f"s3://pretended/{number}", "interval": "5s"},
        },
    }


LOOKS = 'penstock_operator_look_seconds_{}{{kind="FlowJob"}}'


async def scrape(session: aiohttp.ClientSession) -> dict[str, float]:
    """The controller's own metrics."""
    async with session.get(f"http://127.0.0.1:{METRICS}/metrics") as answer:
        lines = (line for line in (await answer.text()).splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def quantile(after: dict[str, float], before: dict[str, float], part: float) -> str:
    """The bound of the bucket in which it is."""
    buckets = {}
    for name, value in after.items():
        if found := re.fullmatch(r'penstock_operator_look_seconds_bucket\{kind="FlowJob",le="([^"]+)"\}', name):
            buckets[float(found[1])] = value - before.get(name, 0.0)
    wanted = part * max(buckets.values())
    bound = min(bound for bound, value in buckets.items() if value >= wanted)
    return f"at most {1000 * bound:.0f} ms"


def cpu_seconds(pid: int) -> float:
    """Used so far."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    """Now."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


def report(what: str, figure: str) -> None:
    """A line."""
    print(f"{what:42}{figure}", flush=True)


def show(text: str) -> None:
    """Progress."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def main() -> None:
    """One cluster, left as it was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--keep", action="store_true", help="leave the cluster running")
    given = parser.parse_args()
    cluster = open_cluster(keep=given.keep)
    if not cluster.can_break:
        sys.exit("its nodes are cordoned meanwhile: needs a cluster of e2e/cluster (unset KUBECONFIG)")
    admin = administrator(cluster)
    os.environ["KUBECONFIG"] = cluster.environment["KUBECONFIG"]
    install_definitions(admin)
    real = [node["metadata"]["name"] for node in admin.items("nodes")]
    ours = admin.within(NAMESPACE)
    log = Path("build") / "many-jobs.log"
    log.parent.mkdir(exist_ok=True)
    admin("cordon", *real)
    try:
        ours.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        asyncio.run(measure(ours, given.jobs, log))
    finally:
        admin("uncordon", *real)
        no_finalizers = '{"metadata": {"finalizers": null}}'
        for name in ours.attempt("get", "flowjobs", "--output=name").stdout.split():
            ours.attempt("patch", name, "--type=merge", f"--patch={no_finalizers}")
        admin.attempt("delete", "namespace", NAMESPACE, "--wait=false")
        admin.attempt(
            "delete", "pods", f"--namespace={NAMESPACE}", "--all", "--force", "--grace-period=0", seconds=300
        )
        admin.attempt("delete", "node", NODE)
        cluster.close()


if __name__ == "__main__":
    main()
