"""One episode: a seed becomes a job, a cluster and faults; safety while they strike, liveness after they end.

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
from penstock.operators.factory import make_operator
from penstock.operators.sinks import SinkOperator
from penstock.operators.sources import SourceOperator
from penstock.taskmanager.chain import MakeOperator
from penstock.testing.cluster import Cluster, ClusterShape
from penstock.testing.endpoints import KIND, SimulatedSink, SimulatedSource, Target
from penstock.testing.faults import LAST_STRIKE_US, Injector, draw_faults
from penstock.testing.jobs import MAX_PARALLELISM, Job, draw_job
from penstock.testing.network import Conditions
from penstock.testing.watching import Watcher
from penstock.testing.world import Exhausted, World

SAFETY_US = LAST_STRIKE_US + 5_000_000
LIVENESS_US = 200_000_000
"""After healing a job must end within this: half-open connections, time-outs and back-offs all fit in."""
AFTERMATH_US = 3_000_000
"""What zombies still do after the end must be harmless too."""
FENCE_CHECK_US = 1_000_000


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
    job = draw_job(world.stream("job"))
    target = Target(world, watcher, watcher.is_journaled, job.expected, world.stream("target"))
    cluster = _draw_cluster(world, watcher, job, _operators(job, target))
    faults = draw_faults(world.stream("plan"))
    injector = Injector(cluster, target, faults)
    _watch_fences(cluster)
    try:
        if not _until_end(cluster, SAFETY_US):
            injector.heal()
            if not _until_end(cluster, world.now_us + LIVENESS_US):
                watcher.violation("liveness", f"not finished {LIVENESS_US / 1e6:g} s after healing: {_state(cluster)}")
        if not watcher.violations:
            # Either zombies go on, or they are gone and whoever is left finds a job that has ended without it.
            injector.random.choice((injector.stop, injector.heal))()
            world.run(until=lambda: bool(watcher.violations), limit_us=world.now_us + AFTERMATH_US)
            _judge(cluster, target, job)
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
        struck=injector.struck,
        marks=world.marks,
        steps=world.steps,
        virtual_us=world.now_us,
        restarts=watcher.restarts,
        checkpoints=len(watcher.journaled),
        rows=target.visible.total(),
        crash="".join(traceback.format_exception(watcher.error)) if watcher.error else "",
        trace=world.lines or [],
    )


def _until_end(cluster: Cluster, limit_us: int) -> bool:
    """Run until the job has finished or something is wrong."""
    watcher = cluster.watcher
    return cluster.world.run(until=lambda: watcher.ended or bool(watcher.violations), limit_us=limit_us)


def _state(cluster: Cluster) -> str:
    view = cluster.view()
    if view is None:
        return "no JobManager knows the job"
    last = f"; last checkpoint: {view.last_checkpoint}" if view.last_checkpoint else ""
    return f"{view.state} {view.reason}, attempt {view.attempt}{last}"


def _watch_fences(cluster: Cluster) -> None:
    cluster.replace_if_fenced()
    cluster.world.after(FENCE_CHECK_US, "", lambda: _watch_fences(cluster))


def _operators(job: Job, target: Target) -> MakeOperator:
    def make(description: specs.Operator, context: OperatorContext) -> Operator:
        match description.spec:
            case specs.Source(connector=specs.Connector(kind=kind, options=options)) as spec if kind == KIND:
                return SourceOperator(spec, SimulatedSource(job.sources[options["name"]]))
            case specs.Sink(connector=specs.Connector(kind=kind)) if kind == KIND:
                return SinkOperator(lambda sink_context: SimulatedSink(target, sink_context))
        return make_operator(description, context)

    return make


def _draw_cluster(world: World, watcher: Watcher, job: Job, make: MakeOperator) -> Cluster:
    rng = world.stream("shape")
    wanted = max(vertex.parallelism for vertex in job.graph.vertices)
    managers = rng.randint(1, 3)
    spare = rng.choice((0, 0, 1, 2))
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
    return Cluster(world, watcher, shape, conditions, graph=job.graph, make_operator=make)


def _judge(cluster: Cluster, target: Target, job: Job) -> None:
    """What must hold when everything is over."""
    watcher, store = cluster.watcher, cluster.store.inner
    missing = job.expected - target.visible
    if missing:
        row, times = next(iter(sorted(missing.items())))
        watcher.violation("output", f"{missing.total()} rows are missing, the first {times} times {row}")
    recorded = journal.read_journal(store)
    last = recorded[-1].entry
    if not isinstance(last, journal.Ended) or last.outcome != "finished":
        watcher.violation("journal", f"the last entry is {last}")
    uids = {link.operator.uid for vertex in job.graph.vertices for link in vertex.chain}
    # A create that arrives very late may bring back an entry that was deleted; it is none of the newest.
    manifests = [each.entry.manifest for each in recorded if isinstance(each.entry, journal.CheckpointCompleted)]
    for manifest in manifests[-job.graph.settings.checkpoint.retained :]:
        everything = range(MAX_PARALLELISM)
        state_objects.read(store, manifest.handles, groups=everything, index=0, parallelism=1, uids=uids)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Faults make the code under test log warnings, thousands in a campaign."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
