"""One slot's way through a rescale while its tasks run.

    Prepare -> connected -> barrier, task by task -> key groups leave and arrive -> settled

Before the barrier all new channels are connected, and nothing flows on them. When the barrier has passed a task, the
task sends by the new tables, reads its new channels, gives away the groups that are not its own any more and holds
rows for those that have not come. Groups travel from slot to slot beside the rows. Sources stand still until the
JobManager has told them where all splits were.

Owns: what is prepared, which tasks the barrier has passed, what is awaited. Does not own: links and channels (`slot`),
what happens to groups inside an operator (`operators.divided`), what is in a parcel (`parcels`).
Invariant: after the barrier there is no way back but a restart of the region.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from penstock.checkpoint import state_objects
from penstock.checkpoint.state_objects import safe_name
from penstock.exchange.channels import SendChannel
from penstock.exchange.gates import Gate
from penstock.exchange.partitioners import Partitioner
from penstock.graph.live import is_keyed
from penstock.model import messages, specs, tasks
from penstock.model.elements import Barrier
from penstock.model.errors import PenstockError
from penstock.model.handles import StateHandle
from penstock.model.ids import ChannelId, CheckpointId, SlotId, SubtaskId
from penstock.operators.divided import Divided
from penstock.operators.sources import SourceOperator
from penstock.taskmanager import parcels
from penstock.taskmanager.parcels import Leaving, Parcel
from penstock.taskmanager.task import RunningTask

if TYPE_CHECKING:
    from penstock.taskmanager.slot import Slot


@dataclass(frozen=True, slots=True)
class Switch:
    """What one gate does at the barrier."""

    gate: Gate
    partitioner: Partitioner
    channels: tuple[SendChannel, ...]


@dataclass(slots=True)
class Preparation:
    """What the barrier will change, and how far that is."""

    reshape: tasks.Reshape
    tasks: dict[SubtaskId, tasks.Task]
    """Those of the slot, afterwards."""
    peers: set[SlotId]
    """Whose connections are needed as long as the barrier has not come."""
    switches: dict[SubtaskId, list[Switch]] = field(default_factory=dict)
    to_pass: dict[SubtaskId, None] = field(default_factory=dict)
    """Tasks that the barrier has yet to pass."""
    awaited: dict[tuple[SubtaskId, int], range] = field(default_factory=dict)
    """Groups that have not come, by receiver and the first of them."""
    sources: dict[SubtaskId, None] = field(default_factory=dict)
    """Sources that have not been told their splits."""
    leaving: dict[SubtaskId, Leaving] = field(default_factory=dict)
    """What has not been handed over."""
    arrived: dict[tuple[SubtaskId, int], tuple[Parcel, state_objects.Restored]] = field(default_factory=dict)
    """What has come and is not in its place yet."""
    moved: list[messages.Moved] = field(default_factory=list)
    checkpoint: CheckpointId | None = None
    """Of the barrier, when it has come to the first task."""
    settled: bool = False

    @property
    def quiet(self) -> bool:
        """Nothing is missing."""
        return not (self.to_pass or self.awaited or self.sources or self.leaving)


class Moving:
    """The rescales of one slot, one after the other."""

    def __init__(self, slot: "Slot") -> None:
        self._slot = slot
        self._now: Preparation | None = None
        self.number = 0
        """Of the last rescale that is settled here."""

    # ------------------------------------------------------------ before the barrier

    def prepare(self, message: messages.Prepare) -> None:
        """Connect what the barrier will change. Asked again, it answers again."""
        known = self._now
        if known is None or known.reshape.number != message.reshape.number:
            known = self._begin(message.reshape, message.tasks)
        if known.settled:
            self._say_settled(known)
        else:
            current = self._slot.current
            self._slot.say(
                messages.Prepared(
                    job=current.job, attempt=current.attempt, slot=self._slot.id, number=known.reshape.number
                )
            )

    def joined(self, reshape: tasks.Reshape, joining: Sequence[tasks.Task]) -> None:
        """The whole slot joins others."""
        now = self._now = Preparation(reshape, {task.subtask: task for task in joining}, self._slot.needed_peers())
        self._await_state(now, joining)

    def forgo(self, number: int) -> None:
        """The barrier does not come: what was prepared is never used."""
        now = self._now
        if now is None or now.reshape.number != number or now.checkpoint is not None or now.settled:
            return
        self._slot.drop_tasks([subtask for subtask in now.tasks if subtask not in now.to_pass])
        self._slot.forget_peers()
        self._now = None

    def _begin(self, reshape: tasks.Reshape, after: Sequence[tasks.Task]) -> Preparation:
        slot = self._slot
        now = self._now = Preparation(reshape, {task.subtask: task for task in after}, slot.needed_peers())
        now.to_pass = {task.subtask: None for task in slot.tasks}
        for task in after:
            slot.add_receivers(task)
        for task in after:
            if task.subtask in now.to_pass:
                now.switches[task.subtask] = [
                    Switch(gate, *slot.outputs_of(edge, task))
                    for gate, edge in zip(slot.gates[task.subtask], task.outputs, strict=True)
                ]
        fresh = [task for task in after if task.subtask not in now.to_pass]
        slot.open_joining(fresh, reshape)
        self._await_state(now, fresh)
        for owner in reshape.owners:
            if owner.slot != slot.id:
                slot.link_to(owner.slot, owner.address)
        return now

    def _await_state(self, now: Preparation, joining: Sequence[tasks.Task]) -> None:
        running = {task.subtask: task for task in self._slot.tasks}
        for task in joining:
            if task.subtask.vertex not in now.reshape.after:
                continue
            if _is_source(task):
                running[task.subtask].standing = True
                now.sources[task.subtask] = None
            operator = running[task.subtask].chain.head.operator
            if isinstance(operator, Divided):
                for groups in parcels.expected(now.reshape, task.subtask, task.max_parallelism):
                    operator.expect(groups)
                    now.awaited[task.subtask, groups.start] = groups

    # ------------------------------------------------------------ the barrier

    def at_barrier(self, task: RunningTask, barrier: Barrier) -> None:
        """It has passed the task, and its state is frozen."""
        now, slot, subtask = self._now, self._slot, task.subtask
        if now is None or subtask not in now.to_pass:
            raise PenstockError(
                "C032",
                f"a rescale came to {subtask} that was not announced",
                fix="nothing to do: the job goes on from its last checkpoint, at the size that it had",
            )
        if task.ending and not task.is_source:
            raise PenstockError(
                "C031",
                f"{subtask} had come to the end of its input when the rescale came",
                fix="nothing to do: the job goes on from its last checkpoint, at the size that it had",
            )
        now.checkpoint = barrier.checkpoint
        before, after = slot.descriptions[subtask], now.tasks.get(subtask)
        changed = subtask.vertex in now.reshape.after
        complete = True
        if changed and is_keyed(before.chain[0].operator.spec):
            complete = self._divide(now, task, before)
        for switch in now.switches.get(subtask, ()):
            known = set(switch.gate.channels)
            tell = [channel for channel in switch.channels if changed or channel not in known]
            switch.gate.switch(
                switch.partitioner, switch.channels, tell=tell, time=complete, anew=changed and task.is_source
            )
        if after is None:
            task.standing = True
        elif task.is_source:
            if changed:
                task.standing = True
                now.sources[subtask] = None
        else:
            task.reshape(
                [slot.receiver(channel.channel) for channel in after.inputs],
                restarted=_restarted(after, now.reshape),
                passed=barrier.checkpoint,
            )
        del now.to_pass[subtask]
        self._unpack(now)

    def _divide(self, now: Preparation, task: RunningTask, before: tasks.Task) -> bool:
        """Whether nothing is on its way to the task."""
        leaving = parcels.divide(
            task.chain.head,
            before,
            now.reshape,
            self._slot.make_operator,
            watermark=task.watermark,
            stopped_us=self._slot.now_us(),
        )
        task.chain.find_askable()
        if leaving.ranges or leaving.useless:
            now.leaving[task.subtask] = leaving
        operator = task.chain.head.operator
        assert isinstance(operator, Divided)
        for part in operator.parts:
            if part.operator is None:
                now.awaited[task.subtask, part.groups.start] = part.groups
        return operator.complete

    # ------------------------------------------------------------ groups leave

    def leaving(self, subtask: SubtaskId) -> Leaving | None:
        """What the task has to hand over out of its frozen state."""
        return None if self._now is None else self._now.leaving.get(subtask)

    @property
    def awaits(self) -> bool:
        """Groups are on their way to tasks of the slot."""
        return self._now is not None and bool(self._now.awaited)

    def make_parcels(self, subtask: SubtaskId, sections: state_objects.Sections) -> list[Parcel] | None:
        """In the background. None: the state has to be in the store first."""
        now = self._now
        assert now is not None
        return parcels.parcels(now.leaving[subtask], now.reshape.number, subtask, sections)

    def make_parcels_in_store(self, subtask: SubtaskId, handle: StateHandle) -> list[Parcel]:
        """They only say where it is."""
        now = self._now
        assert now is not None
        return parcels.parcels_in_store(now.leaving[subtask], now.reshape.number, handle)

    def hand_over(self, subtask: SubtaskId, made: Sequence[Parcel]) -> None:
        """On their way; what was needed to make them is not needed any more."""
        now = self._now
        assert now is not None
        for operator in now.leaving.pop(subtask).useless:
            operator.close()
        owners = {owner.subtask: owner for owner in now.reshape.owners}
        for parcel in made:
            owner = owners[parcel.receiver]
            if owner.slot == self._slot.id:
                self.on_parcel(parcel)
            else:
                self._slot.send_parcel(owner, parcel)

    # ------------------------------------------------------------ groups arrive

    def on_parcel(self, parcel: Parcel) -> None:
        """Read it in the background, and put it in its place when the barrier has passed the task."""
        now, slot = self._now, self._slot
        if now is None or now.reshape.number != parcel.number:
            return
        folder = None
        if slot.work_folder is not None:
            folder = slot.work_folder / f"parcel-{parcel.number}-{safe_name(parcel.receiver.vertex)}-{parcel.first}"
        slot.read_state(
            (parcel.handle,), parcel.groups, {parcel.uid}, partial(self._on_read, now, parcel), folder=folder
        )

    def _on_read(self, now: Preparation, parcel: Parcel, restored: state_objects.Restored) -> None:
        now.arrived[parcel.receiver, parcel.first] = parcel, restored
        self._unpack(now)

    def _unpack(self, now: Preparation) -> None:
        for place in [place for place in now.arrived if place in now.awaited]:
            parcel, restored = now.arrived.pop(place)
            task = next(task for task in self._slot.tasks if task.subtask == parcel.receiver)
            operator = task.chain.head.operator
            assert isinstance(operator, Divided)
            operator.arrive(parcel.groups, restored.get(parcel.uid, {}), restored.files.get(parcel.uid, ()))
            del now.awaited[place]
            now.moved.append(
                messages.Moved(
                    vertex=parcel.receiver.vertex,
                    first=parcel.first,
                    end=parcel.end,
                    size=parcel.size,
                    pause_us=max(0, self._slot.now_us() - parcel.stopped_us),
                    rebuilt=parcel.sender == parcel.receiver,
                )
            )
        self._slot.upload_deferred()

    def reassign(self, message: messages.Reassign) -> None:
        """Sources read their part of all splits again."""
        now = self._now
        if now is None or now.reshape.number != message.number:
            return
        for subtask in [each for each in now.sources if each.vertex == message.vertex and each not in now.to_pass]:
            task = next(task for task in self._slot.tasks if task.subtask == subtask)
            uid = task.chain.head.description.uid
            self._slot.read_state(message.handles, range(0), {uid}, partial(self._on_splits, now, task))

    def _on_splits(self, now: Preparation, task: RunningTask, restored: state_objects.Restored) -> None:
        if task.subtask not in now.sources:
            return
        node = task.chain.head
        context = replace(node.context, parallelism=now.reshape.after[task.subtask.vertex])
        source = self._slot.make_operator(node.description, context)
        assert isinstance(source, SourceOperator)
        source.open(context, node)
        source.restore(restored.get(node.description.uid, {}))
        source.on_restored()
        task.read_from(source)
        del now.sources[task.subtask]

    # ------------------------------------------------------------ the end of it

    def settle(self) -> None:
        """Once a turn: when nothing is missing, say so."""
        now = self._now
        if now is None or now.settled or not now.quiet:
            return
        now.settled, self.number = True, now.reshape.number
        self._slot.have(now.tasks)
        if now.tasks:
            self._slot.forget_peers()
        self._say_settled(now)

    def on_commit(self, checkpoint: CheckpointId) -> None:
        """What tasks that are gone have left is visible."""
        now = self._now
        if now is not None and now.checkpoint is not None and now.checkpoint <= checkpoint:
            gone = [task.subtask for task in self._slot.tasks if task.subtask not in now.tasks]
            self._slot.drop_tasks([subtask for subtask in gone if subtask not in now.to_pass])

    def may_lose(self, peer: SlotId) -> bool:
        """Whether nothing that runs needs the connection to that slot."""
        now = self._now
        if now is None:
            return False
        if now.settled:
            return not now.tasks or peer not in self._slot.needed_peers()
        return now.checkpoint is None and bool(now.to_pass) and peer not in now.peers

    def _say_settled(self, now: Preparation) -> None:
        current = self._slot.current
        self._slot.say(
            messages.Settled(
                job=current.job,
                attempt=current.attempt,
                slot=self._slot.id,
                number=now.reshape.number,
                moved=tuple(now.moved),
            )
        )


def _is_source(task: tasks.Task) -> bool:
    return isinstance(task.chain[0].operator.spec, specs.Source)


def _restarted(task: tasks.Task, reshape: tasks.Reshape) -> set[ChannelId]:
    """Inputs from vertices whose subtasks change: what they have said of event time counts no longer."""
    return {channel.channel for channel in task.inputs if channel.sender.vertex in reshape.after}
