"""Bugs that are put into the engine on purpose, to see that the simulation finds them.

Each is a context manager that patches one component of this process. Several were real once, or nearly.
"""

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import polars as pl

from penstock.checkpoint import coordinator, journal, state_objects
from penstock.checkpoint.alignment import Aligned, Aligner, Blocked, Stale
from penstock.checkpoint.coordinator import Coordinator
from penstock.exchange import wire
from penstock.exchange.channels import ReceiveChannel
from penstock.exchange.ports import Buffer, Link
from penstock.jobmanager import starting
from penstock.jobmanager.events import AppendJournal, Command, JobSubmitted
from penstock.jobmanager.jobs import Job
from penstock.jobmanager.timing import Moment
from penstock.model.elements import Barrier, Element
from penstock.model.errors import PenstockError
from penstock.model.handles import Redistribution
from penstock.model.ids import Attempt, ChannelId, CheckpointId, JobId, SlotId
from penstock.operators.base import Section, Snapshot
from penstock.operators.function_calls import EVENT_TIMERS
from penstock.operators.process import ProcessOperator
from penstock.operators.sinks import SinkOperator
from penstock.operators.sources import SourceOperator
from penstock.operators.windows import WindowAggregate
from penstock.storage import ObjectStore, UnknownResultError
from penstock.taskmanager.in_flight import Snapshots
from penstock.taskmanager.slot import Slot
from penstock.taskmanager.task import RunningTask
from penstock.testing.patching import Patch, Plant, patched
from penstock.testing.planted_in_flight import PLANTED_IN_FLIGHT
from penstock.testing.planted_leaders import PLANTED_LEADERS
from penstock.testing.planted_savepoints import PLANTED_IN_SAVEPOINTS


def skip_alignment() -> Patch:
    """One of several inputs is neither waited for nor held back."""
    make, handle = Aligner.__init__, Aligner.on_barrier

    def init(self: Aligner, channels: Iterable[ChannelId], **options: Any) -> None:
        every = list(channels)
        make(self, every[1:] or every, **options)

    def on_barrier(self: Aligner, channel: ChannelId, barrier: Barrier) -> Aligned | Blocked | Stale:
        return handle(self, channel, barrier) if channel in self._channels else Stale(barrier, forward=False)

    stack = contextlib.ExitStack()
    stack.enter_context(patched(Aligner, "__init__", init))
    stack.enter_context(patched(Aligner, "on_barrier", on_barrier))
    return stack


def acknowledge_before_upload() -> Patch:
    """The handle is sent while the object is still on its way."""

    def take(self: Slot, task: RunningTask, barrier: Barrier, snapshots: Snapshots, _: object) -> None:
        deployment, store = self._deployment, self._store
        assert deployment is not None
        assert store is not None
        made = [(uid, section) for uid, snapshot in snapshots for section in snapshot()]
        sections = [(uid, section) for uid, section in made if isinstance(section, Section)]
        path = state_objects.object_path(barrier.checkpoint, deployment.attempt, task.subtask)
        data, handle = state_objects.encode(task.subtask, sections, path)
        self._acknowledge(deployment.job, deployment.attempt, barrier.checkpoint, task.subtask, handle)
        self._background.submit(partial(store.put, path, data), lambda _: None)

    return patched(Slot, "_take_snapshot", take)


def commit_before_journal() -> Patch:
    """Sinks are told to commit when all have acknowledged, before the manifest is written."""
    advance = Job.advance

    def early(self: Job) -> list[Command]:
        commands = advance(self)
        for command in commands:
            if isinstance(command, AppendJournal) and isinstance(command.entry, journal.CheckpointCompleted):
                slots = [slot for run in self.regions.runs for slot in run.placement]
                self.checkpointing.commit(command.entry.manifest.checkpoint, slots, self._at)
        return [*self._outbox.take(), *commands]

    return patched(Job, "advance", early)


def drop_timers_on_restore() -> Patch:
    """State comes back, timers do not."""
    restore = ProcessOperator.restore

    def forgetful(self: ProcessOperator, sections: Mapping[str, Sequence[pl.DataFrame]]) -> None:
        restore(self, {name: frames for name, frames in sections.items() if name != EVENT_TIMERS})

    return patched(ProcessOperator, "restore", forgetful)


def accept_old_frames() -> Patch:
    """Links and frames of any attempt are taken for those of the present one."""
    admit, on_frame = Slot._admit, Slot.on_frame

    def admit_any(self: Slot, link: Link, job: JobId, attempt: Attempt, sender: SlotId) -> None:
        admit(self, link, job, self._deployment.attempt if self._deployment else attempt, sender)

    def take_any(self: Slot, link: Link, header: Buffer, body: memoryview) -> None:
        if self._deployment is not None:
            self._peers.setdefault(link, self.id)
            frame = wire.unpack_header(header)
            header = wire.pack_header(
                frame.kind, self._deployment.attempt, frame.channel, frame.sequence, frame.length
            )
        on_frame(self, link, header, body)

    stack = contextlib.ExitStack()
    stack.enter_context(patched(Slot, "_admit", admit_any))
    stack.enter_context(patched(Slot, "on_frame", take_any))
    return stack


def reuse_checkpoint_id() -> Patch:
    """The id of a checkpoint that was given up is given to the next one."""
    give_up = Coordinator._give_up

    def reuse(self: Coordinator, status: str, reason: str, monotonic: float) -> coordinator.GivenUp:
        given_up = give_up(self, status, reason, monotonic)
        self._last_id -= 1
        return given_up

    return patched(Coordinator, "_give_up", reuse)


def position_too_far() -> Patch:
    """A source goes on one row behind where it stopped."""
    restore = SourceOperator.restore

    def skip_one(self: SourceOperator, sections: Mapping[str, Sequence[pl.DataFrame]]) -> None:
        restore(self, sections)
        for progress in self._restored.values():
            if progress.position is not None and not progress.ended:
                rows = msgspec.json.decode(progress.position)["rows"]
                progress.position = msgspec.json.encode({"rows": rows + 1}).decode()

    return patched(SourceOperator, "restore", skip_one)


def forget_given_up_output() -> Patch:
    """A sink commits only what was prepared for the very checkpoint, not what waits from one that was given up."""
    commit = SinkOperator.on_committed

    def only_this(self: SinkOperator, checkpoint: CheckpointId) -> None:
        self._waiting = {each: waiting for each, waiting in self._waiting.items() if each >= checkpoint}
        commit(self, checkpoint)

    return patched(SinkOperator, "on_committed", only_this)


def leak_credit() -> Patch:
    """A receiver grants a little less than it has consumed."""
    take = ReceiveChannel.take

    def stingy(self: ReceiveChannel, max_rows: int) -> Element:
        grant = self.grant
        self.grant = None if grant is None else (lambda amount: grant(amount - amount // 4))
        try:
            return take(self, max_rows)
        finally:
            self.grant = grant

    return patched(ReceiveChannel, "take", stingy)


def no_fence() -> Patch:
    """A journal entry is written over whatever another JobManager wrote there."""

    def overwrite(store: ObjectStore, entry: journal.JournalEntry) -> journal.Appended:
        data = journal.encode(entry)
        store.put(journal.path(entry.sequence), data)
        return journal.Appended(hashlib.sha256(data).hexdigest())

    return patched(journal, "append", overwrite)


def doubt_is_failure() -> Patch:
    """A journal write whose answer was lost counts as refused."""
    append = journal.append

    def hasty(store: ObjectStore, entry: journal.JournalEntry) -> journal.Appended | journal.Conflict:
        try:
            return append(store, entry)
        except UnknownResultError as error:
            raise PenstockError(error.code, error.what) from error

    return patched(journal, "append", hasty)


def committables_in_turns() -> Patch:
    """Committables are dealt out, so one subtask may clean up what another has yet to commit."""
    snapshot = SinkOperator.snapshot

    def dealt(self: SinkOperator, checkpoint: CheckpointId) -> Snapshot:
        make = snapshot(self, checkpoint)
        return lambda: [
            Section(section.state, Redistribution.LIST, section.frame)
            for section in make()
            if isinstance(section, Section)
        ]

    return patched(SinkOperator, "snapshot", dealt)


def time_jumps_on_restore() -> Patch:
    """The first split that is restored sets the time for all."""
    own_splits = SourceOperator._own_splits

    def hasty(self: SourceOperator, now: float) -> Any:
        first = self._splits is None
        splits = own_splits(self, now)
        restored = [each.watermark for each in splits.values() if not each.ended]
        if first and restored:
            self._valve.watermark = max(restored)
        return splits

    return patched(SourceOperator, "_own_splits", hasty)


def silence_holds_time_back() -> Patch:
    """A split without rows is waited for, however long."""
    return patched(SourceOperator, "_check_idle", lambda self, progress, now: 1_000_000)


def discovered_again() -> Patch:
    """What was discovered before a restore is taken for new, and read from its beginning."""
    discover = SourceOperator._discover

    def forgetful(self: SourceOperator, splits: dict[str, Any], now: float) -> int:
        if self._source.discovers:
            self._restored.clear()
        return discover(self, splits, now)

    return patched(SourceOperator, "_discover", forgetful)


def start_from_nothing() -> Patch:
    """A job that goes on from a checkpoint is deployed without its state."""
    add = starting.submitted

    def forgetful(event: JobSubmitted, around: starting.Surroundings, at: Moment) -> Job:
        return add(dataclasses.replace(event, initial=None), around, at)

    return patched(starting, "submitted", forgetful)


def frames_of_strangers() -> Patch:
    """A frame counts when its attempt has the right number, whoever sent it for whatever job."""
    on_frame = Slot.on_frame

    def take_any(self: Slot, link: Link, header: Buffer, body: memoryview) -> None:
        self._peers.setdefault(link, self.id)
        on_frame(self, link, header, body)

    return patched(Slot, "on_frame", take_any)


def clock_windows_start_afresh() -> Patch:
    """Windows that follow the clock do not get their rows back."""
    restore = WindowAggregate.restore

    def forgetful(self: WindowAggregate, sections: Mapping[str, Sequence[pl.DataFrame]]) -> None:
        restore(self, sections if self._spec.event_time is not None else {})

    return patched(WindowAggregate, "restore", forgetful)


PLANTED: dict[str, Plant] = {
    "skip-alignment": skip_alignment,
    "acknowledge-before-upload": acknowledge_before_upload,
    "commit-before-journal": commit_before_journal,
    "drop-timers-on-restore": drop_timers_on_restore,
    "accept-old-frames": accept_old_frames,
    "reuse-checkpoint-id": reuse_checkpoint_id,
    "position-too-far": position_too_far,
    "forget-given-up-output": forget_given_up_output,
    "leak-credit": leak_credit,
    "no-fence": no_fence,
    "doubt-is-failure": doubt_is_failure,
    "committables-in-turns": committables_in_turns,
    "time-jumps-on-restore": time_jumps_on_restore,
    "silence-holds-time-back": silence_holds_time_back,
    "discovered-again": discovered_again,
    "start-from-nothing": start_from_nothing,
    "frames-of-strangers": frames_of_strangers,
    "clock-windows-start-afresh": clock_windows_start_afresh,
    **PLANTED_IN_FLIGHT,
    **PLANTED_IN_SAVEPOINTS,
    **PLANTED_LEADERS,
}
