"""Faults of an episode: drawn from the seed, aimed at phases of the job, carried out on the cluster.

A fault waits for its phase to come the n-th time, then for a short delay, and strikes between two events. So rare
moments (all acknowledged but nothing journaled, mid-commit, during a restore) are hit often, not by luck alone.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.testing.cluster import Cluster
from penstock.testing.endpoints import Target
from penstock.testing.network import Connection
from penstock.testing.stores import StoreConditions

PHASES = (
    "time", "time", "time", "deploying", "restoring", "restoring", "restarting", "triggered", "aligning", "aligning",
    "collected", "collected", "journaled", "journaled", "answered", "committing", "committing", "ending",
)  # fmt: skip
RESCALE_PHASES = (
    "rescaling",
    "rescaling",
    "aligning",
    "collected",
    "answered",
    "resizing",
    "resized",
    "resized",
    "restoring",
)
LAST_STRIKE_US = 4_000_000
AFTERMATH_US = 4_000_000
"""So long after a fault is over it may still be felt: who is lost has to be missed, who is gone has to start."""
FELT_AT_ONCE = frozenset({"slot crash", "slot pause", "link broken", "store fails", "store slow", "commits fail"})
SHORT_AFTERMATH_US = 500_000
"""For these."""
UNHEARD_US = 2_500_000
"""Long enough for TaskManagers to turn to another JobManager."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens, and when."""

    kind: str
    phase: str
    skip: int
    """How many times the phase passes first."""
    delay_us: int
    duration_us: int

    def __str__(self) -> str:
        when = f"at {self.delay_us / 1e6:.3f} s"
        if self.phase != "time":
            when = f"{self.delay_us / 1e3:g} ms after {self.phase} no. {self.skip + 1}"
        return f"{self.kind} {when}, for {self.duration_us / 1e6:g} s"


def draw_faults(rng: random.Random, *, most: int = 8) -> list[Fault]:
    """None to eight."""
    return [_draw_fault(rng) for _ in range(min(most, rng.choice((0, 1, 2, 2, 3, 4, 6, 8))))]


def draw_rescale_faults(rng: random.Random) -> list[Fault]:
    """None to three, on the way from one size to another."""
    return [_draw_fault(rng, RESCALE_PHASES) for _ in range(rng.choice((0, 1, 1, 2, 3)))]


def _draw_fault(rng: random.Random, phases: Sequence[str] = PHASES) -> Fault:
    phase = rng.choice(phases)
    delay = rng.randrange(150_000, LAST_STRIKE_US) if phase == "time" else rng.choice((0, 0, 300, 2_000, 20_000))
    kind = rng.choice(list(_STRIKES))
    if phase == "aligning" and rng.random() < 0.5:
        kind = "link broken"
    return Fault(
        kind=kind,
        phase=phase,
        skip=rng.choice((0, 0, 1, 3, 8)),
        delay_us=delay,
        duration_us=rng.choice((50_000, 400_000, 2_000_000, 5_000_000)),
    )


def draw_savepoint_faults(rng: random.Random) -> list[Fault]:
    """At the moment that all tables of a savepoint are written and its manifest is not: mostly another leader."""
    if rng.random() < 0.5:
        return []
    kind = rng.choice(
        ("JobManager replaced", "JobManager replaced", "second JobManager", "JobManager crash", "slot crash")
    )
    delay, duration = rng.choice((0, 0, 2_000, 20_000)), rng.choice((400_000, 2_000_000, 5_000_000))
    return [Fault(kind=kind, phase="tables", skip=rng.choice((0, 0, 1)), delay_us=delay, duration_us=duration)]


class Injector:
    """Waits for phases and strikes, until healed."""

    def __init__(self, cluster: Cluster, target: Target, faults: list[Fault]) -> None:
        self.cluster, self.target, self.world = cluster, target, cluster.world
        self.random = cluster.world.stream("faults")
        self.struck: Counter[str] = Counter()
        self.healed = False
        self.works_until_us = 0
        """Until then faults that have struck may be felt."""
        self._waiting = {number: fault for number, fault in enumerate(faults) if fault.phase != "time"}
        self._skipped: Counter[int] = Counter()
        for fault in faults:
            if fault.phase == "time":
                self._strike_later(fault)
        cluster.watcher.on_phase = self._on_phase

    def stop(self) -> None:
        """No more faults; what has been done stays as it is."""
        self.healed = True

    def heal(self) -> None:
        """No more faults; conditions are good again, and a JobManager that was replaced is gone for good."""
        self.stop()
        self._feel(AFTERMATH_US)
        self.world.trace("healed")
        self.cluster.calls.conditions.loss = 0.0
        self.cluster.calls.conditions.cut_off.clear()
        self.cluster.store.conditions = StoreConditions()
        self.target.fails = 0.0
        for connection in self.cluster.network.connections:
            connection.slowness = 1
        for manager in self.cluster.job_managers[:-1]:
            manager.process.kill("lost its lease")

    def for_a_while(self, fault: Fault, undo: Callable[[], None]) -> None:
        """End a condition when its time is over."""
        self.world.after(fault.duration_us, f"over: {fault.kind}", lambda: None if self.healed else undo())

    def _feel(self, duration_us: int) -> None:
        self.works_until_us = max(self.works_until_us, self.world.now_us + duration_us)

    def pick_connection(self) -> Connection | None:
        """Any that lives."""
        living = self.cluster.network.connections
        return self.random.choice(living) if living else None

    def _on_phase(self, phase: str) -> None:
        for number, fault in list(self._waiting.items()):
            if fault.phase != phase:
                continue
            if self._skipped[number] < fault.skip:
                self._skipped[number] += 1
            else:
                del self._waiting[number]
                self._strike_later(fault)

    def _strike_later(self, fault: Fault) -> None:
        self.world.after(fault.delay_us, f"fault: {fault.kind}", lambda: self._strike(fault))

    def _strike(self, fault: Fault) -> None:
        if not self.healed:
            self.struck[fault.kind] += 1
            short = fault.kind in FELT_AT_ONCE
            self._feel(fault.duration_us + (SHORT_AFTERMATH_US if short else AFTERMATH_US))
            _STRIKES[fault.kind](self, fault)


def _crash_slot(injector: Injector, fault: Fault) -> None:
    if slots := injector.cluster.slot_processes():
        injector.random.choice(slots).process.kill("crash")


def _pause_slot(injector: Injector, fault: Fault) -> None:
    if slots := injector.cluster.slot_processes():
        injector.random.choice(slots).process.pause(fault.duration_us)


def _crash_task_manager(injector: Injector, fault: Fault) -> None:
    injector.random.choice(list(injector.cluster.task_managers.values())).process.kill("crash")


def _pause_task_manager(injector: Injector, fault: Fault) -> None:
    injector.random.choice(list(injector.cluster.task_managers.values())).process.pause(fault.duration_us)


def _pause_host(injector: Injector, fault: Fault) -> None:
    """A virtual machine that stands still: everything on it becomes a zombie."""
    manager = injector.random.choice(list(injector.cluster.task_managers.values()))
    for process in (manager.process, *(slot.process for slot in manager.slot_processes.values())):
        process.pause(fault.duration_us)


def _lose_host(injector: Injector, fault: Fault) -> None:
    manager = injector.random.choice(list(injector.cluster.task_managers.values()))
    injector.cluster.network.lose_host([slot.address for slot in manager.slot_processes.values()])
    for slot in manager.slot_processes.values():
        slot.process.kill("power loss")
    manager.process.kill("power loss")


def _crash_job_manager(injector: Injector, fault: Fault) -> None:
    injector.cluster.leader.process.kill("crash")


def _pause_job_manager(injector: Injector, fault: Fault) -> None:
    injector.cluster.leader.process.pause(fault.duration_us)


def _replace_job_manager(injector: Injector, fault: Fault) -> None:
    """Its lease runs out while it stands still; later it goes on and does not know, before or after it is missed."""
    least_us = injector.random.choice((0, UNHEARD_US))
    injector.cluster.leader.process.pause(max(fault.duration_us, least_us))
    injector.cluster.start_job_manager()


def _second_job_manager(injector: Injector, fault: Fault) -> None:
    """Two at once, both awake: the worst that a lease can do."""
    injector.cluster.start_job_manager()


def _break_link(injector: Injector, fault: Fault) -> None:
    if connection := injector.pick_connection():
        if injector.cluster.watcher.aligning:
            injector.world.sometimes("link broken during alignment")
        connection.break_up(reason="broken by a fault")


def _half_open_link(injector: Injector, fault: Fault) -> None:
    if connection := injector.pick_connection():
        connection.break_up(reason="broken by a fault", late=injector.random.choice(connection.ends))


def _slow_link(injector: Injector, fault: Fault) -> None:
    if connection := injector.pick_connection():
        connection.slowness = 10_000
        injector.for_a_while(fault, lambda: setattr(connection, "slowness", 1))


def _cut_off(injector: Injector, fault: Fault) -> None:
    name = injector.random.choice(list(injector.cluster.task_managers.values())).process.name
    cut_off = injector.cluster.calls.conditions.cut_off
    cut_off[name] = None
    injector.for_a_while(fault, lambda: _discard(cut_off, name))


def _discard(names: dict[str, None], name: str) -> None:
    names.pop(name, None)


def _lose_calls(injector: Injector, fault: Fault) -> None:
    conditions = injector.cluster.calls.conditions
    conditions.loss = 0.3
    injector.for_a_while(fault, lambda: setattr(conditions, "loss", 0.0))


def _store_away(injector: Injector, fault: Fault) -> None:
    _change_store(injector, fault, unavailable=True)


def _store_fails(injector: Injector, fault: Fault) -> None:
    _change_store(injector, fault, fails=0.4)


def _store_unknown(injector: Injector, fault: Fault) -> None:
    _change_store(injector, fault, unknown=0.5)


def _store_unknown_then_away(injector: Injector, fault: Fault) -> None:
    """The answer to a write is lost, and then nobody can be asked what became of it."""
    _change_store(injector, fault, unknown=0.7, fails=0.7)


def _store_slow(injector: Injector, fault: Fault) -> None:
    _change_store(injector, fault, delay_us=300_000)


def _change_store(injector: Injector, fault: Fault, **changes: float) -> None:
    store = injector.cluster.store
    for name, value in changes.items():
        setattr(store.conditions, name, value)
    injector.for_a_while(fault, lambda: setattr(store, "conditions", StoreConditions()))


def _commits_fail(injector: Injector, fault: Fault) -> None:
    injector.target.fails = 0.5
    injector.for_a_while(fault, lambda: setattr(injector.target, "fails", 0.0))


_STRIKES: dict[str, Callable[[Injector, Fault], None]] = {
    "slot crash": _crash_slot,
    "slot pause": _pause_slot,
    "TaskManager crash": _crash_task_manager,
    "TaskManager pause": _pause_task_manager,
    "host pause": _pause_host,
    "host loss": _lose_host,
    "JobManager crash": _crash_job_manager,
    "JobManager pause": _pause_job_manager,
    "JobManager replaced": _replace_job_manager,
    "second JobManager": _second_job_manager,
    "link broken": _break_link,
    "link half-open": _half_open_link,
    "link slow": _slow_link,
    "TaskManager cut off": _cut_off,
    "calls lost": _lose_calls,
    "store away": _store_away,
    "store fails": _store_fails,
    "store answers lost": _store_unknown,
    "store answers lost, then away": _store_unknown_then_away,
    "store slow": _store_slow,
    "commits fail": _commits_fail,
}
