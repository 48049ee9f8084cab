"""The slots of the cluster and what their processes are used for.

Owns: TaskManagers, when each was last heard, their slots, the process behind each slot.
Invariant: a process is given one deployment in its life. A slot is free again only when another process has
been announced behind it; until then its Cancel is repeated.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from penstock.model.ids import Attempt, JobId, SlotId, TaskManagerId
from penstock.model.messages import Cancel, Register, SlotInfo


@dataclass(frozen=True, slots=True)
class Usage:
    """Whose work a slot does."""

    job: JobId
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class LostSlot:
    """The process that did this work is gone, or will be."""

    slot: SlotId
    usage: Usage
    code: str
    reason: str
    secondary: bool = False
    """Whoever lost it has more to say than that it is lost."""


@dataclass(slots=True)
class Slot:
    """A slot and its process."""

    info: SlotInfo
    usage: Usage | None = None
    deployed: bool = False
    """False while reserved: the process does not know of it yet."""
    cancel_at: float | None = None
    """When its Cancel is due, again; None: nobody wants it to end."""
    rss_bytes: int = 0


@dataclass(slots=True)
class TaskManager:
    """One TaskManager that has registered and has not been lost."""

    registration: Register
    last_heard: float
    slots: dict[int, Slot] = field(default_factory=dict)


class SlotPool:
    """All TaskManagers. Iteration is in the order of their first registration."""

    def __init__(self, *, heartbeat_timeout: float, cancel_repeat: float) -> None:
        self._heartbeat_timeout, self._cancel_repeat = heartbeat_timeout, cancel_repeat
        self._task_managers: dict[TaskManagerId, TaskManager] = {}

    # ------------------------------------------------------------ TaskManagers come and go

    def register(self, message: Register, monotonic: float) -> list[LostSlot]:
        """A TaskManager offers its slots, and says what they run. What they do not say that they run has ended.

        A process that it names again without a deployment has none: one that was sent since then is lost.
        """
        known = self._task_managers.get(message.task_manager)
        before = known.slots if known else {}
        after = {info.slot.index: _registered(before.get(info.slot.index), info) for info in message.slots}
        self._task_managers[message.task_manager] = TaskManager(message, monotonic, after)
        gone = [slot for index, slot in before.items() if after.get(index) is not slot]
        if known is not None and known.registration.pid != message.pid:
            return _lost_with(known, f"its process {known.registration.pid} was replaced by {message.pid}", gone)
        reason = f"TaskManager {message.task_manager} has ended what it ran and registered again"
        return [LostSlot(slot.info.slot, slot.usage, "C021", reason) for slot in gone if _in_use(slot) and slot.usage]

    def slot_ready(self, info: SlotInfo) -> list[LostSlot]:
        """A process stands behind the slot."""
        task_manager = self._task_managers.get(info.slot.task_manager)
        if task_manager is None:
            return []
        before = task_manager.slots.get(info.slot.index)
        after = task_manager.slots[info.slot.index] = _carry_over(before, info)
        if before is None or before is after or not _in_use(before) or before.usage is None:
            return []
        reason = f"process {before.info.pid} of slot {info.slot} was replaced by {info.pid}"
        return [LostSlot(info.slot, before.usage, "C021", reason, secondary=True)]

    def heard(self, task_manager: TaskManagerId, monotonic: float) -> bool:
        """It lives. False: it is not registered."""
        known = self._task_managers.get(task_manager)
        if known is None:
            return False
        known.last_heard = monotonic
        return True

    def lose(self, task_manager: TaskManagerId, reason: str) -> list[LostSlot]:
        """The TaskManager is gone, and all its slots with it.

        Among them are slots that are to end anyway: the work in them may have failed because of this very loss.
        """
        lost = self._task_managers.pop(task_manager, None)
        return _lost_with(lost, reason, lost.slots.values()) if lost else []

    def silent(self, monotonic: float) -> list[TaskManagerId]:
        """TaskManagers that have not been heard for too long."""
        return [
            name
            for name, known in self._task_managers.items()
            if monotonic - known.last_heard >= self._heartbeat_timeout
        ]

    # ------------------------------------------------------------ slots are used

    def free(self) -> list[SlotInfo]:
        """Slots that can be given work, spread over the TaskManagers: first slots first."""
        free = [slot.info for slot in self.slots() if slot.usage is None]
        return sorted(free, key=lambda info: (info.slot.index, info.slot.task_manager))

    def returning(self) -> int:
        """Slots that are about to be free."""
        return sum(slot.cancel_at is not None for slot in self.slots())

    def reserve(self, slots: Iterable[SlotId], usage: Usage) -> None:
        """Keep free slots for this attempt."""
        for slot_id in slots:
            if slot := self._find(slot_id):
                assert slot.usage is None
                slot.usage = usage

    def deployed(self, slot_id: SlotId) -> None:
        """The process was given its deployment."""
        if slot := self._find(slot_id):
            slot.deployed = True

    def release(self, slots: Iterable[SlotId], usage: Usage, monotonic: float) -> None:
        """The attempt is over: its processes are to end, unless they are gone or know nothing of it."""
        for slot_id in slots:
            slot = self._find(slot_id)
            if slot is None or slot.usage != usage:
                continue
            if not slot.deployed:
                slot.usage = None
            elif slot.cancel_at is None:
                slot.cancel_at = monotonic

    def set_free(self, usage: Usage) -> None:
        """Slots that were kept for this and never deployed."""
        for slot in self.slots():
            if slot.usage == usage and not slot.deployed:
                slot.usage = None

    def abandon(self, job: JobId) -> None:
        """The job belongs to another JobManager: its processes are not ours to end; slots kept for it are free."""
        for slot in self.slots():
            if slot.usage is not None and slot.usage.job == job:
                slot.cancel_at = None
                if not slot.deployed:
                    slot.usage = None

    def due_cancels(self, monotonic: float) -> list[Cancel]:
        """Processes that are to be ended now; asked for again when no fresh one is announced."""
        due = []
        for slot in self.slots():
            if slot.usage is not None and slot.cancel_at is not None and slot.cancel_at <= monotonic:
                slot.cancel_at = monotonic + self._cancel_repeat
                due.append(Cancel(slot=slot.info.slot, job=slot.usage.job, attempt=slot.usage.attempt))
        return due

    def next_wakes(self) -> list[float]:
        """When something here is due."""
        heard = [known.last_heard + self._heartbeat_timeout for known in self._task_managers.values()]
        return heard + [slot.cancel_at for slot in self.slots() if slot.cancel_at is not None]

    # ------------------------------------------------------------ questions

    def holds(self, slot_id: SlotId, usage: Usage) -> bool:
        """Whether the slot is there and works for this attempt."""
        slot = self._find(slot_id)
        return slot is not None and slot.usage == usage and slot.cancel_at is None

    def info(self, slot_id: SlotId) -> SlotInfo | None:
        """The process behind the slot; None: there is none."""
        slot = self._find(slot_id)
        return slot.info if slot is not None else None

    def versions(self, slots: Iterable[SlotInfo]) -> Mapping[TaskManagerId, Mapping[str, str]]:
        """Software of the TaskManagers behind these slots."""
        names = dict.fromkeys(info.slot.task_manager for info in slots)
        return {name: self._task_managers[name].registration.versions for name in names}

    def task_managers(self) -> Sequence[TaskManager]:
        """All of them."""
        return list(self._task_managers.values())

    def slots(self) -> list[Slot]:
        """All slots of all TaskManagers."""
        return [slot for known in self._task_managers.values() for slot in known.slots.values()]

    def _find(self, slot_id: SlotId) -> Slot | None:
        known = self._task_managers.get(slot_id.task_manager)
        return known.slots.get(slot_id.index) if known else None

    def note_memory(self, slot_id: SlotId, rss_bytes: int) -> None:
        """What the slot's process reported. A report that is made out of turn does not measure: 0."""
        if rss_bytes and (slot := self._find(slot_id)):
            slot.rss_bytes = rss_bytes


def _registered(before: Slot | None, info: SlotInfo) -> Slot:
    """As the TaskManager sees it now."""
    plain = msgspec.structs.replace(info, runs=None)
    if info.runs is None:
        return Slot(plain) if before is not None and before.deployed else _carry_over(before, plain)
    usage = Usage(info.runs.job, info.runs.attempt)
    same = _carry_over(before, plain)
    if same is before and before is not None and before.deployed and before.usage == usage:
        return before
    return Slot(plain, usage=usage, deployed=True)


def _carry_over(before: Slot | None, info: SlotInfo) -> Slot:
    """The same process keeps its work; another one is free."""
    same = before is not None and (before.info.pid, before.info.address) == (info.pid, info.address)
    return before if before is not None and same else Slot(info)


def _lost_with(task_manager: TaskManager, reason: str, slots: Iterable[Slot]) -> list[LostSlot]:
    what = f"TaskManager {task_manager.registration.task_manager} is lost: {reason}"
    return [LostSlot(slot.info.slot, slot.usage, "C020", what) for slot in slots if slot.usage]


def _in_use(slot: Slot) -> bool:
    return slot.usage is not None and slot.cancel_at is None
