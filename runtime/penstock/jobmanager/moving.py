"""A job gets another size while it runs: who is told what, who has answered, what has moved. No I/O.

    prepare -> all have answered -> barrier -> all have settled, the checkpoint is in the journal, what tasks that go
    have left is committed -> the journal says so -> settled

New slots get their tasks first, and slots that run are told what will change. The barrier is a checkpoint of the size
before: whatever happens until the journal has the new size, the job goes on from there, or from the one before, at
the old size. Nothing of this is in the journal before it is done.

Owns: the slots that come and go, what every slot was told. Does not own: when it happens (`rescaling`), the barrier
(`checkpointing`). Invariant: slots that come belong to the region's attempt from the start, slots that go until the
journal has the new size; so whatever ends the attempt ends them too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from penstock import graph as graphs
from penstock.graph import JobGraph, NotLive, Region
from penstock.jobmanager import versions
from penstock.jobmanager.outbox import Outbox
from penstock.jobmanager.regions import RegionRun, Regions, RegionState
from penstock.jobmanager.slots import SlotPool, Usage
from penstock.jobmanager.timing import Moment
from penstock.model import messages
from penstock.model.handles import StateHandle
from penstock.model.ids import CheckpointId, SlotId, SubtaskId, VertexId
from penstock.model.specs import Source
from penstock.model.tasks import Deployment, Owner, Reshape, Task


@dataclass(frozen=True, slots=True)
class Plan:
    """How the job gets its new size without a stop."""

    graph: JobGraph
    region: Region
    held: dict[int, messages.SlotInfo]
    """By index of subtask: the slots that it has."""
    missing: tuple[int, ...]
    """Indices that need a slot."""
    next_channel: int


@dataclass(slots=True)
class Live:
    """The change that is under way. Dictionaries stand for ordered sets."""

    plan: Plan
    run: RegionRun
    reshape: Reshape
    placement: dict[SlotId, tuple[Task, ...]]
    joining: dict[SlotId, None]
    unready: dict[SlotId, None]
    unsettled: dict[SlotId, None]
    uncommitted: dict[SlotId, None]
    """Slots with tasks that go, whose output has yet to be made visible."""
    repeat_at: float
    checkpoint: CheckpointId | None = None
    handles: dict[SubtaskId, StateHandle] = field(default_factory=dict)
    """Of the barrier's checkpoint."""
    reassigned: dict[VertexId, None] = field(default_factory=dict)
    moved: list[messages.Moved] = field(default_factory=list)


class Moving:
    """Live rescales of one job, one at a time."""

    def __init__(
        self, graph: JobGraph, store: str, *, regions: Regions, pool: SlotPool, outbox: Outbox, repeat: float
    ) -> None:
        self._submitted, self._store = graph, store
        self._regions, self._pool, self._outbox, self._repeat = regions, pool, outbox, repeat
        self._live: Live | None = None
        self._number = 0

    # ------------------------------------------------------------ is it possible

    def plan(self, size: graphs.Size) -> Plan | NotLive:
        """How the running job gets that size; or why it has to start again."""
        if len(self._regions.runs) != 1 or self._regions.merged:
            return NotLive("parts of the job run apart from each other")
        (run,) = self._regions.runs
        if run.state is not RegionState.RUNNING or run.ended:
            return NotLive("some of its input has ended")
        held = {task.subtask.index: slot for slot, tasks in run.placement.items() for task in tasks}
        if len(held) != len(run.placement):
            return NotLive("it runs on fewer slots than it could fill")
        after = graphs.resized_live(self._regions.graph, self._submitted, size)
        if isinstance(after, NotLive):
            return after
        known = graphs.channels_of(run.region)
        next_channel = max(self._regions.next_channel, max(known.values(), default=-1) + 1)
        found = graphs.execution(after, known, next_channel)
        if len(found) != 1:
            return NotLive("parts of the job would run apart from each other")
        infos = {index: info for index, slot in held.items() if (info := self._pool.info(slot)) is not None}
        indices = sorted({subtask.index for subtask in found[0].subtasks})
        used = max((channel for task in found[0].tasks for channel in _channels(task)), default=-1)
        return Plan(
            after,
            found[0],
            held=infos,
            missing=tuple(index for index in indices if index not in infos),
            next_channel=max(next_channel, used + 1),
        )

    # ------------------------------------------------------------ before the barrier

    def begin(self, plan: Plan, free: list[messages.SlotInfo], at: Moment) -> NotLive | None:
        """Deploy what joins, and tell all others."""
        (run,) = self._regions.runs
        graph = self._regions.graph
        new = dict(zip(plan.missing, free, strict=False))
        if mismatch := versions.mismatch(graph.versions, self._pool.versions(new.values())):
            return NotLive(str(mismatch))
        self._number += 1
        self._regions.next_channel = plan.next_channel
        born = {subtask for subtask in plan.region.subtasks if subtask not in set(run.region.subtasks)}
        by_index = graphs.place_by_index(plan.region, {**plan.held, **new})
        placement = {
            slot: tuple(msgspec.structs.replace(t, born=self._number) if t.subtask in born else t for t in tasks)
            for slot, tasks in by_index.items()
        }
        changed = graphs.changed_vertices(graph, plan.graph)
        infos = {info.slot: info for info in (*plan.held.values(), *new.values())}
        reshape = Reshape(
            number=self._number,
            before={vertex: sizes[0] for vertex, sizes in changed.items()},
            after={vertex: sizes[1] for vertex, sizes in changed.items()},
            owners=tuple(
                Owner(subtask=task.subtask, slot=slot, address=infos[slot].address)
                for slot, tasks in placement.items()
                for task in tasks
                if task.subtask.vertex in changed
            ),
        )
        after = set(plan.region.subtasks)
        everyone = dict.fromkeys([*run.placement, *(info.slot for info in new.values())])
        self._live = Live(
            plan=plan,
            run=run,
            reshape=reshape,
            placement=placement,
            joining=dict.fromkeys(info.slot for info in new.values()),
            unready=dict(everyone),
            unsettled=dict(everyone),
            uncommitted=dict.fromkeys(
                slot for slot, tasks in run.placement.items() if any(task.subtask not in after for task in tasks)
            ),
            repeat_at=at.monotonic + self._repeat,
        )
        self._prepare(self._live, run.placement)
        self._pool.reserve(self._live.joining, Usage(self._outbox.job, run.number))
        for slot in self._live.joining:
            run.placement[slot] = placement[slot]
            self._pool.deployed(slot)
            deployment = Deployment(
                job=self._outbox.job,
                attempt=run.number,
                slot=slot,
                tasks=placement[slot],
                settings=self._submitted.settings,
                store=self._store,
                joins=reshape,
            )
            self._outbox.send(slot, messages.Deploy(deployment=deployment))
        return None

    def abandon(self, at: Moment) -> None:
        """No barrier was sent: slots that have joined go, all others forget what they were told."""
        live, self._live = self._live, None
        if live is None:
            return
        usage = Usage(self._outbox.job, live.run.number)
        for slot in list(live.run.placement):
            if slot in live.joining:
                del live.run.placement[slot]
            else:
                forgo = messages.Forgo(job=usage.job, attempt=usage.attempt, number=live.reshape.number)
                self._outbox.send(slot, forgo)
        self._pool.release(live.joining, usage, at.monotonic)

    def forget(self) -> None:
        """The attempt has ended, and with it all that was under way."""
        self._live = None

    # ------------------------------------------------------------ what is heard

    @property
    def ready(self) -> bool:
        """The barrier may come."""
        return self._live is not None and not self._live.unready

    @property
    def settled(self) -> bool:
        """Everything is where it belongs, and nobody waits for what is gone."""
        return self._live is not None and not self._live.unsettled and not self._live.uncommitted

    def joins(self, slot: SlotId) -> bool:
        """Whether the slot has joined for this and nothing depends on it yet."""
        return self._live is not None and self._live.checkpoint is None and slot in self._live.joining

    def on_message(self, message: messages.FromSlot) -> None:
        """An answer."""
        live = self._live
        if live is None:
            return
        match message:
            case messages.Running(slot=slot) if slot in live.joining:
                live.unready.pop(slot, None)
            case messages.Prepared(slot=slot, number=number) if number == live.reshape.number:
                live.unready.pop(slot, None)
            case messages.Settled(slot=slot, number=number, moved=moved) if number == live.reshape.number:
                live.unready.pop(slot, None)
                if slot in live.unsettled:
                    del live.unsettled[slot]
                    live.moved += moved
            case messages.Committed(slot=slot, checkpoint=checkpoint) if checkpoint == live.checkpoint:
                live.uncommitted.pop(slot, None)

    def on_barrier(self, checkpoint: CheckpointId) -> None:
        """It is on its way."""
        if self._live is not None:
            self._live.checkpoint = checkpoint

    def on_acknowledged(self, checkpoint: CheckpointId, subtask: SubtaskId, handle: StateHandle) -> None:
        """As soon as all subtasks of a source have said where their splits are, all of them can go on."""
        live = self._live
        if live is None or checkpoint != live.checkpoint:
            return
        live.handles[subtask] = handle
        vertex = subtask.vertex
        if vertex in live.reshape.before and vertex not in live.reassigned and self._is_source(vertex):
            expected = [SubtaskId(vertex, index) for index in range(live.reshape.before[vertex])]
            if all(each in live.handles for each in expected):
                live.reassigned[vertex] = None
                self._reassign(live, vertex)

    def drive(self, at: Moment) -> None:
        """Say again what has no answer."""
        live = self._live
        if live is None or live.repeat_at > at.monotonic:
            return
        live.repeat_at = at.monotonic + self._repeat
        self._prepare(live, live.unsettled if live.checkpoint is not None else live.unready)
        for vertex in live.reassigned:
            self._reassign(live, vertex)
        if live.checkpoint is not None and live.uncommitted:
            for slot in live.uncommitted:
                commit = messages.Commit(job=self._outbox.job, attempt=live.run.number, checkpoint=live.checkpoint)
                self._outbox.send(slot, commit)

    def wakes(self) -> list[float]:
        """When that is due."""
        return [self._live.repeat_at] if self._live is not None else []

    # ------------------------------------------------------------ the end

    @property
    def graph(self) -> JobGraph:
        """That the job has afterwards."""
        assert self._live is not None
        return self._live.plan.graph

    @property
    def moved(self) -> list[messages.Moved]:
        """What was handed over so far."""
        return list(self._live.moved) if self._live is not None else []

    def settle(self, at: Moment) -> None:
        """The journal says so: slots that have nothing to do any more are free."""
        live, self._live = self._live, None
        assert live is not None
        run = live.run
        gone = [slot for slot in run.placement if slot not in live.placement]
        self._pool.release(gone, Usage(self._outbox.job, run.number), at.monotonic)
        after = set(live.plan.region.subtasks)
        run.counted += [
            counters
            for subtask, handle in live.handles.items()
            if subtask not in after
            for counters in handle.counters
        ]
        run.placement = dict(live.placement)
        run.region = live.plan.region
        run.reported = dict.fromkeys(run.placement)
        # Sources that share their splits anew say it again.
        changed = live.reshape.after
        run.ended = {each: None for each in run.ended if each in after and each.vertex not in changed}
        run.rescale = live.reshape.number
        run.metrics = {subtask: metrics for subtask, metrics in run.metrics.items() if subtask in after}
        run.reached = {slot: reached for slot, reached in run.reached.items() if slot in run.placement}
        self._regions.settle(live.plan.graph, live.plan.region)

    # ------------------------------------------------------------ inside

    def _prepare(self, live: Live, slots: Mapping[SlotId, object]) -> None:
        for slot in slots:
            if slot in live.joining and slot in live.unready:
                continue  # its deployment says all of it
            prepare = messages.Prepare(
                job=self._outbox.job,
                attempt=live.run.number,
                reshape=live.reshape,
                tasks=live.placement.get(slot, ()),
            )
            self._outbox.send(slot, prepare)

    def _reassign(self, live: Live, vertex: VertexId) -> None:
        handles = tuple(handle for subtask, handle in sorted(live.handles.items()) if subtask.vertex == vertex)
        for slot, tasks in live.placement.items():
            if slot in live.unsettled and any(task.subtask.vertex == vertex for task in tasks):
                reassign = messages.Reassign(
                    job=self._outbox.job,
                    attempt=live.run.number,
                    number=live.reshape.number,
                    vertex=vertex,
                    handles=handles,
                )
                self._outbox.send(slot, reassign)

    def _is_source(self, vertex: VertexId) -> bool:
        found = next(each for each in self._regions.graph.vertices if each.id == vertex)
        return isinstance(found.chain[0].operator.spec, Source)


def _channels(task: Task) -> list[int]:
    return [channel.channel for edge in task.outputs for channel in edge.channels]
