"""One episode: a seed becomes a job, a cluster and faults; safety while they strike, liveness after they end.

Some jobs are stopped or cancelled on the way and started again from where they were: then both runs together have to
give the answer.

`run_episode(seed)` is a function of its seed. A result that is not clean names the oracle that found it.
"""

import contextlib
import logging
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.checkpoint import journal, state_objects
from penstock.model import specs
from penstock.operators.base import Operator, OperatorContext
from penstock.operators.factory import load_function, make_operator
from penstock.operators.sinks import SinkOperator
from penstock.operators.sources import SourceOperator
from penstock.taskmanager.chain import MakeOperator
from penstock.testing import savepoints
from penstock.testing.clients import Client
from penstock.testing.cluster import Cluster, ClusterShape
from penstock.testing.endpoints import KIND, SimulatedSink, SimulatedSource, Target
from penstock.testing.faults import (
    LAST_STRIKE_US,
    Fault,
    Injector,
    draw_faults,
    draw_rescale_faults,
    draw_savepoint_faults,
)
from penstock.testing.janitors import Janitor
from penstock.testing.jobs import MAX_PARALLELISM, Job, draw_job, draw_rescales
from penstock.testing.network import Conditions
from penstock.testing.starving import StarvationWatch
from penstock.testing.watching import Watcher
from penstock.testing.world import Exhausted, World

SAFETY_US = LAST_STRIKE_US + 5_000_000
LIVENESS_US = 200_000_000
"""After healing a job must end within this: half-open connections, time-outs and back-offs all fit in."""
AFTERMATH_US = 3_000_000
"""What zombies still do after the end must be harmless too."""
FENCE_CHECK_US = 1_000_000
OUTCOMES = {"stop": ("stopped",), "savepoint": ("stopped",), "cancel": ("cancelled",)}
"""How a job may have ended that somebody wanted to end."""


@dataclass(frozen=True, slots=True)
class Episode:
    """What became of a seed."""

    seed: int
    job: str
    digest: str
    violations: tuple[tuple[str, str], ...]
    faults: tuple[str, ...]
    struck: "Counter[str]"
    marks: "Counter[str]"
    steps: int
    virtual_us: int
    restarts: int
    checkpoints: int
    rows: int
    crash: str = ""
    """Traceback of the first exception that the code under test let through."""
    trace: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """No promise was broken."""
        return not self.violations


def run_episode(seed: int, *, keep_trace: bool = False) -> Episode:
    """Simulate one seed."""
    world = World(seed, keep_trace=keep_trace)
    with _quiet():
        try:
            return _run(world)
        finally:
            world.close()


def _run(world: World) -> Episode:
    watcher = Watcher(world)
    job = draw_job(world.stream("job"), world.stream("alignment"), world.stream("savepoints"))
    target = Target(world, watcher, job.answer, world.stream("target"))
    cluster = _draw_cluster(world, watcher, job, _operators(world, watcher, job, target))
    faults = _draw_faults(world, "plan", last_run=job.ending is None)
    if job.savepoints_us or (job.ending is not None and job.ending.how == "savepoint"):
        faults += draw_savepoint_faults(world.stream("savepoint plan"))
    struck: Counter[str] = Counter()
    _watch_fences(cluster)
    try:
        struck += _live(cluster, target, job, faults, last_run=job.ending is None)
        if job.ending is not None and not watcher.violations:
            again = _draw_faults(world, "second plan", last_run=True, most=3)
            faults = [*faults, *again]
            struck += _live(cluster, target, job, again, last_run=True)
        if not watcher.violations and (missing := job.answer.missing(target.visible)) is not None:
            watcher.violation("output", missing)
    except Exhausted as error:
        watcher.violation("liveness", str(error))
    except Exception as error:
        watcher.error = watcher.error or error
        watcher.violation("crash", f"{type(error).__name__}: {error}")
    return Episode(
        seed=world.seed,
        job=job.kind,
        digest=world.digest,
        violations=tuple(watcher.violations),
        faults=tuple(str(fault) for fault in faults),
        struck=struck,
        marks=world.marks,
        steps=world.steps,
        virtual_us=world.now_us,
        restarts=watcher.restarts,
        checkpoints=watcher.checkpoints,
        rows=target.visible.total(),
        crash="".join(traceback.format_exception(watcher.error)) if watcher.error else "",
        trace=world.lines or [],
    )


def _run_name(last_run: bool) -> str:
    return "last run" if last_run else "first run"


def _draw_faults(world: World, plan: str, *, last_run: bool, most: int = 8) -> list[Fault]:
    """A job that is rescaled meets some more on the way."""
    faults = draw_faults(world.stream(plan), most=most)
    if draw_rescales(world.stream(f"rescales, {_run_name(last_run)}")):
        faults += draw_rescale_faults(world.stream(f"{plan} of rescales"))
    return faults


def _live(cluster: Cluster, target: Target, job: Job, faults: list[Fault], *, last_run: bool) -> "Counter[str]":
    """One run of the job, from its submission to its end and a little longer; returns the faults that struck."""
    world, watcher = cluster.world, cluster.watcher
    started_us = world.now_us
    client = Client(cluster, target, job)
    client.submit()
    if not world.run(until=lambda: client.accepted or bool(watcher.violations), limit_us=started_us + LIVENESS_US):
        watcher.violation("liveness", "the job was not accepted")
    rescales = draw_rescales(world.stream(f"rescales, {_run_name(last_run)}"))
    injector = Injector(cluster, target, faults)
    if client.accepted:
        StarvationWatch(client, injector, job.graph.settings.checkpoint)
        client.want_savepoints()
        Janitor(cluster, _run_name(last_run), job.savepoints_us)
    if not last_run and job.ending is not None:
        client.end_later(job.ending)
    if client.accepted:
        client.rescale_later(rescales)
    if not _until_end(client, started_us + SAFETY_US):
        injector.heal()
        if not _until_end(client, world.now_us + LIVENESS_US):
            watcher.violation("liveness", f"not ended {LIVENESS_US / 1e6:g} s after healing: {_state(cluster)}")
    if not watcher.violations:
        # Either zombies go on, or they are gone and whoever is left finds a job that has ended without it.
        injector.random.choice((injector.stop, injector.heal))()
        world.run(until=lambda: bool(watcher.violations), limit_us=world.now_us + AFTERMATH_US)
        injector.heal()
        _judge(cluster, client, job, last_run=last_run)
    return injector.struck


def _until_end(client: Client, limit_us: int) -> bool:
    """Run until the job has ended or something is wrong."""
    watcher = client.cluster.watcher
    return watcher.world.run(until=lambda: client.outcome is not None or bool(watcher.violations), limit_us=limit_us)


def _state(cluster: Cluster) -> str:
    view = cluster.view()
    if view is None:
        return "no JobManager knows the job"
    last = f"; last checkpoint: {view.last_checkpoint}" if view.last_checkpoint else ""
    return f"{view.state} {view.reason}, attempt {view.attempt}{last}"


def _watch_fences(cluster: Cluster) -> None:
    cluster.replace_if_fenced()
    cluster.world.after(FENCE_CHECK_US, "", lambda: _watch_fences(cluster))


def _operators(world: World, watcher: Watcher, job: Job, target: Target) -> MakeOperator:
    def make(description: specs.Operator, context: OperatorContext) -> Operator:
        match description.spec:
            case specs.Source(connector=specs.Connector(kind=kind, options=options)) as spec if kind == KIND:
                first_run = next(iter(watcher.journals)) == context.job
                given = job.sources[options["name"]]
                last_run = job.ending is None or not first_run
                return SourceOperator(spec, SimulatedSource(given, world, last_run=last_run), load_function)
            case specs.Sink(connector=specs.Connector(kind=kind)) if kind == KIND:
                return SinkOperator(lambda sink_context: SimulatedSink(target, sink_context))
        return make_operator(description, context)

    return make


def _draw_cluster(world: World, watcher: Watcher, job: Job, make: MakeOperator) -> Cluster:
    rng = world.stream("shape")
    wanted = max(vertex.parallelism for graph in (job.graph, job.again) for vertex in graph.vertices)
    managers = rng.randint(1, 3)
    spare = rng.choice((0, 0, 1, 2))
    wishes = [
        wish.parallelism
        for name in (True, False)
        for wish in draw_rescales(world.stream(f"rescales, {_run_name(name)}"))
    ]
    if wishes and world.stream("slots for rescales").random() < 0.8:
        wanted = max(wanted, *wishes)
    shape = ClusterShape(
        task_managers=managers,
        slots_each=-(-(wanted + spare) // managers),
        turn_us=tuple(rng.choice((300, 2_000, 2_000, 20_000)) for _ in range(managers)),
    )
    conditions = Conditions(
        latency_us=rng.choice((50, 1_000)),
        jitter_us=rng.choice((100, 5_000)),
        bytes_per_ms=rng.choice((500, 100_000)),
        room_bytes=rng.choice((200, 2_000, 64_000)),
    )
    return Cluster(world, watcher, shape, conditions, make_operator=make)


def _judge(cluster: Cluster, client: Client, job: Job, *, last_run: bool) -> None:
    """What must hold when a run is over."""
    watcher, store = cluster.watcher, cluster.state_dir.look(client.job)
    recorded = journal.read_journal(store)
    last = recorded[-1].entry
    allowed = ("finished",) if last_run or job.ending is None else ("finished", *OUTCOMES[job.ending.how])
    if not isinstance(last, journal.Ended) or last.outcome not in allowed:
        watcher.violation("journal", f"the last entry is {last}")
    uids = {link.operator.uid for vertex in job.graph.vertices for link in vertex.chain}
    # A create that arrives very late may bring back an entry that was deleted; it is none of the newest.
    manifests = [each.entry.manifest for each in recorded if isinstance(each.entry, journal.CheckpointCompleted)]
    for manifest in manifests[-job.graph.settings.checkpoint.retained :]:
        everything = range(MAX_PARALLELISM)
        state_objects.read(store, manifest.handles, groups=everything, index=0, parallelism=1, uids=uids)
    savepoints.judge(cluster, client.job)
    if client.outcome != "finished" and manifests:
        cluster.world.sometimes(f"{client.outcome}, to go on from a checkpoint")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Faults make the code under test log warnings, thousands in a campaign."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
