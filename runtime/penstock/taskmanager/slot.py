"""One slot: the tasks of one deployment, their channels and links, driven turn by turn on one thread.

Owns: everything between the network and the chains. `run_once` gives every task a turn and returns how long the
caller may wait; frames, messages and finished background work come in between turns, on the same thread.
Does not own: sockets, threads, processes. Around it is a slot process, or the simulation.
Invariant: nothing of another job or attempt gets in; after a failure nothing gets out.
"""

import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from penstock.checkpoint import state_objects
from penstock.exchange import wire
from penstock.exchange.channels import ReceiveChannel, SendChannel
from penstock.exchange.gates import Destination, Gate
from penstock.exchange.partitioners import Partitioner, make_partitioner
from penstock.exchange.ports import Buffer, Link, Transport
from penstock.model import messages, tasks
from penstock.model.clocks import Clock
from penstock.model.counters import OperatorMetrics
from penstock.model.elements import Barrier, Element
from penstock.model.errors import FatalJobError, PenstockError, UserError
from penstock.model.handles import SectionHandle, StateHandle
from penstock.model.ids import Attempt, ChannelId, CheckpointId, JobId, SlotId, SubtaskId, Uid
from penstock.model.specs import Broadcast, Hash
from penstock.operators.base import Coroutines, OperatorContext
from penstock.savepoints.writing import write_tables
from penstock.state.key_groups import group_range
from penstock.storage import ObjectStore
from penstock.taskmanager import in_flight, parcels
from penstock.taskmanager.aligning import SourceAlignment
from penstock.taskmanager.chain import Chain, MakeOperator
from penstock.taskmanager.in_flight import Snapshots
from penstock.taskmanager.moving import Moving
from penstock.taskmanager.parcels import Parcel
from penstock.taskmanager.ports import Background
from penstock.taskmanager.state_homes import state_home
from penstock.taskmanager.task import Outcome, RunningTask

STEPS_PER_TURN = 8
"""Elements that one task handles before the next gets its turn and frames are read."""

LONGEST_TURN_SECONDS = 0.1
"""After which it handles no further one: a function that takes long is slow, not stuck."""

_AT_ONCE_BYTES = 64 * 1024
"""State this small is read in less time than it would wait for the background."""

Report = Callable[[messages.FromSlot], None]
Restored = dict[SubtaskId, state_objects.Restored]
Tables = tuple[SectionHandle, ...]


class Slot:
    """Takes one deployment in its life. Is the `LinkHandler` of its transport."""

    transport: Transport

    def __init__(
        self,
        slot: SlotId,
        *,
        clock: Clock,
        background: Background,
        open_store: Callable[[str], ObjectStore],
        make_operator: MakeOperator,
        report: Report,
        work_folder: Path | None = None,
        coroutines: Coroutines | None = None,
    ) -> None:
        """`work_folder`: for files of running operators; need not exist, and is removed by somebody else."""
        self.id = slot
        self.work_folder = work_folder
        self.failed = False
        self._clock, self._background, self.say = clock, background, report
        self._coroutines = coroutines
        self._open_store, self.make_operator = open_store, make_operator
        self._deployment: tasks.Deployment | None = None
        self._store: ObjectStore | None = None
        self.tasks: list[RunningTask] = []
        self.descriptions: dict[SubtaskId, tasks.Task] = {}
        self.gates: dict[SubtaskId, list[Gate]] = {}
        """Of each task, in the order of its outputs."""
        self.moving = Moving(self)
        self._deferred: list[Callable[[], None]] = []
        """Uploads that have time."""
        self._alignment = SourceAlignment(())
        self._send: dict[ChannelId, SendChannel] = {}
        self._receive: dict[ChannelId, tuple[ReceiveChannel, wire.ElementCodec, SlotId]] = {}
        self._outgoing: dict[str, Link] = {}
        self._peers: dict[Link, SlotId] = {}
        """Who is at the other end, of links that we opened and of links that were opened to us."""
        self._early: list[tuple[Link, JobId, Attempt, SlotId]] = []
        """Links of peers that were deployed before us. They send nothing until they are granted credit."""
        self._accepted: dict[SlotId, Link] = {}
        self._early_credit: dict[ChannelId, int] = {}
        """For channels that we are yet to hear of."""

    # ------------------------------------------------------------ messages

    def on_message(self, message: messages.ToSlot) -> None:
        """From the JobManager, by way of the TaskManager."""
        if isinstance(message, messages.Deploy):
            self._guarded(lambda: self._deploy(message.deployment))
            return
        current = self._deployment
        if self.failed or current is None or (message.job, message.attempt) != (current.job, current.attempt):
            return
        match message:
            case messages.Trigger(checkpoint=checkpoint, kind=kind, overtakes=overtakes, savepoint=savepoint):
                barrier = Barrier(checkpoint, kind, overtakes, savepoint)
                for task in self.tasks:
                    if task.is_source:
                        self._guarded(partial(task.inject, barrier), task)
            case messages.Overtake(checkpoint=checkpoint):
                for task in self.tasks:
                    task.let_overtake(checkpoint)
            case messages.Commit(checkpoint=checkpoint):
                for task in self.tasks:
                    self._guarded(partial(task.chain.committed, checkpoint), task)
                if not self.failed:
                    self.moving.on_commit(checkpoint)
                    self._report_progress()
                    self.say(
                        messages.Committed(
                            job=current.job, attempt=current.attempt, checkpoint=checkpoint, slot=self.id
                        )
                    )
            case messages.Abort(checkpoint=checkpoint):
                for task in self.tasks:
                    task.abort(checkpoint)
            case messages.Align(others=others):
                self._alignment.hear(others)
            case messages.Prepare():
                self._guarded(lambda: self.moving.prepare(message))
            case messages.Forgo(number=number):
                self.moving.forgo(number)
            case messages.Reassign():
                self._guarded(lambda: self.moving.reassign(message))

    # ------------------------------------------------------------ the turn

    def run_once(self) -> float | None:
        """Let every task work. Returns 0.0: again at once; else the seconds to wait; None: until something comes."""
        if self.failed:
            return None
        worked, waits = False, list[float]()
        self._alignment.settle()
        for task in self.tasks:
            now = self._clock.monotonic()
            outcome = self._turn(task, now)
            if outcome is None:
                return None
            worked = worked or outcome is Outcome.WORKED
            flush_wait = task.chain.flush(now, input_paused=outcome is Outcome.STARVED)
            waits.extend(wait for wait in (flush_wait, task.wait(now)) if wait is not None)
        for channel in self._send.values():
            worked = channel.pump() or worked
        for task in self.tasks:
            task.settle()
        self.moving.settle()
        if (until_said := self._say_reached()) is not None:
            waits.append(until_said)
        return 0.0 if worked else min(waits, default=None)

    def _turn(self, task: RunningTask, now: float) -> Outcome | None:
        outcome = Outcome.WORKED
        try:
            task.overtake()
            task.on_processing_time()
            end = now + LONGEST_TURN_SECONDS
            for _ in range(STEPS_PER_TURN):
                outcome = task.step(now)
                now = self._clock.monotonic()
                if outcome is not Outcome.WORKED or now > end:
                    break
        except Exception as error:
            self._fail(error, task.subtask)
            return None
        return outcome

    # ------------------------------------------------------------ deployment

    def _deploy(self, deployment: tasks.Deployment) -> None:
        if self._deployment is not None:
            raise FatalJobError("C011", f"slot {self.id} already runs {self._deployment.job}")
        self._deployment = deployment
        store = self._store = self._open_store(deployment.store)
        for task in deployment.tasks:
            self.add_receivers(task)
        for link, job, attempt, sender in self._early:
            self._admit(link, job, attempt, sender)
        self._early.clear()
        gates = {task.subtask: self._make_gates(task) for task in deployment.tasks}
        self._background.submit(
            lambda: {task.subtask: _load(store, task, self.work_folder) for task in deployment.tasks},
            lambda restored: self._guarded(lambda: self._open_tasks(deployment, gates, restored)),
        )

    def add_receivers(self, task: tasks.Task) -> None:
        """The receiving ends of its inputs, unless they are there."""
        deployment = self.current
        for channel in task.inputs:
            if channel.channel in self._receive:
                continue
            receiver = ReceiveChannel(
                channel.channel,
                channel.port,
                deployment.settings.exchange,
                keys=channel.keys,
                in_order=channel.in_order,
                loop=channel.loop,
                feedback=channel.feedback,
            )
            self._receive[channel.channel] = (receiver, wire.ElementCodec(channel.schema), channel.slot)
            if (link := self._accepted.get(channel.slot)) is not None:
                self._grant(receiver, link)

    def _open_tasks(
        self,
        deployment: tasks.Deployment,
        gates: dict[SubtaskId, dict[tuple[int, str], list[Gate]]],
        restored: Restored | Exception,
    ) -> None:
        if isinstance(restored, Exception):
            raise restored
        make = self.make_operator
        for task in deployment.tasks:
            if deployment.joins is not None:
                make = parcels.joining_operator(self.make_operator, deployment.joins, task)
            self._open_task(task, gates[task.subtask], restored[task.subtask], make)
        self._alignment = self._new_alignment()
        if deployment.joins is not None:
            self.moving.joined(deployment.joins, deployment.tasks)
        self.say(messages.Running(job=deployment.job, attempt=deployment.attempt, slot=self.id))

    def _open_task(
        self,
        task: tasks.Task,
        gates: dict[tuple[int, str], list[Gate]],
        restored: state_objects.Restored,
        make_operator: MakeOperator,
    ) -> None:
        deployment = self.current
        chain = Chain(
            task.chain, gates, make_operator=make_operator, make_context=partial(self._make_context, deployment, task)
        )
        states, rows = in_flight.split_off(restored)
        chain.open(states)
        self.tasks.append(
            RunningTask(
                task.subtask,
                chain,
                [self.receiver(channel.channel) for channel in task.inputs],
                clock=self._clock,
                max_rows=max(deployment.settings.exchange.batch_rows, deployment.settings.source.batch_rows),
                hurry_bytes=deployment.settings.exchange.channel_bytes,
                on_snapshot=self._take_snapshot,
                on_ended=self._on_ended,
                on_rescale=self.moving.at_barrier,
                restored=in_flight.waiting_rows(task, rows),
            )
        )
        self.descriptions[task.subtask] = task

    def _new_alignment(self) -> SourceAlignment:
        return SourceAlignment((self.descriptions[task.subtask], task) for task in self.tasks)

    def _make_context(self, deployment: tasks.Deployment, task: tasks.Task, uid: Uid) -> OperatorContext:
        return OperatorContext(
            job=deployment.job,
            attempt=deployment.attempt,
            uid=uid,
            subtask=task.subtask,
            parallelism=task.parallelism,
            max_parallelism=task.max_parallelism,
            clock=self._clock,
            settings=deployment.settings,
            state=state_home(deployment, task.subtask, uid, self.work_folder),
            coroutines=self._coroutines,
        )

    def _make_gates(self, task: tasks.Task) -> dict[tuple[int, str], list[Gate]]:
        gates: dict[tuple[int, str], list[Gate]] = {}
        in_order = self.gates[task.subtask] = []
        for edge in task.outputs:
            partitioner, channels = self.outputs_of(edge, task)
            destination = Destination(
                operator=edge.target,
                port=edge.port,
                keys=edge.partitioning.keys if isinstance(edge.partitioning, Hash) else (),
                first=edge.channels[0].receiver.index,
                in_order=isinstance(edge.partitioning, Broadcast),
                loop=edge.loop,
            )
            gate = Gate(partitioner, channels, self._clock.monotonic, destination)
            gates.setdefault((edge.producer, edge.output), []).append(gate)
            in_order.append(gate)
        return gates

    def outputs_of(self, edge: tasks.OutputEdge, task: tasks.Task) -> tuple[Partitioner, tuple[SendChannel, ...]]:
        """How rows are spread over an edge, and the sending ends of its channels; those that are there stay."""
        codec = wire.ElementCodec(edge.schema)
        channels = tuple(
            self._send.get(channel.channel) or self._make_send_channel(self.current, channel, codec)
            for channel in edge.channels
        )
        partitioner = make_partitioner(
            edge.partitioning,
            channels=len(channels),
            routing=edge.routing,
            sender_index=task.subtask.index,
        )
        return partitioner, channels

    def _make_send_channel(
        self, deployment: tasks.Deployment, channel: tasks.OutputChannel, codec: wire.ElementCodec
    ) -> SendChannel:
        settings = deployment.settings.exchange
        if channel.slot == self.id:
            receiver = self._receive[channel.channel][0]

            def hand_over(sequence: int, element: Element, size: int) -> int:
                receiver.put(sequence, element, size)
                return size

            sender = SendChannel(channel.channel, settings, deliver=hand_over, writable=lambda: True)
            receiver.grant = sender.add_credit
            receiver.open()
        else:
            link = self.link_to(channel.slot, channel.address)
            deliver = partial(_send_element, link, codec, deployment.attempt, channel.channel)
            sender = SendChannel(channel.channel, settings, deliver=deliver, writable=partial(_is_writable, link))
        self._send[channel.channel] = sender
        if early := self._early_credit.pop(channel.channel, 0):
            sender.add_credit(early)
        return sender

    # ------------------------------------------------------------ another size

    @property
    def current(self) -> tasks.Deployment:
        """What the slot was given to run."""
        assert self._deployment is not None
        return self._deployment

    def now_us(self) -> int:
        """The wall clock."""
        return self._clock.now_us()

    def receiver(self, channel: ChannelId) -> ReceiveChannel:
        """The receiving end of a channel."""
        return self._receive[channel][0]

    def needed_peers(self) -> set[SlotId]:
        """Slots that our tasks are connected to."""
        described = self.descriptions.values()
        senders = {channel.slot for task in described for channel in task.inputs}
        return senders | {each.slot for task in described for edge in task.outputs for each in edge.channels}

    def open_joining(self, joining: Sequence[tasks.Task], reshape: tasks.Reshape) -> None:
        """Tasks that begin behind the barrier, beside those that run."""
        gates = {task.subtask: self._make_gates(task) for task in joining}
        for task in joining:
            make = parcels.joining_operator(self.make_operator, reshape, task)
            self._open_task(task, gates[task.subtask], state_objects.Restored(), make)

    def drop_tasks(self, gone: Collection[SubtaskId]) -> None:
        """They have nothing to do any more, or never had."""
        for task in [task for task in self.tasks if task.subtask in gone]:
            task.chain.close()
            self.tasks.remove(task)
            self.gates.pop(task.subtask, None)
            self.descriptions.pop(task.subtask, None)

    def have(self, after: Mapping[SubtaskId, tasks.Task]) -> None:
        """The tasks are as described from now on; others are about to go."""
        self.descriptions |= after
        self._alignment = self._new_alignment()

    def forget_peers(self) -> None:
        """Nothing that we run is connected to them any more: whether they live does not matter."""
        needed = self.needed_peers()
        gone = [link for link, peer in self._peers.items() if peer not in needed]
        for link in gone:
            self._forget(link)
            del self._peers[link]

    def _forget(self, link: Link) -> None:
        self._outgoing = {address: each for address, each in self._outgoing.items() if each is not link}
        self._accepted = {slot: each for slot, each in self._accepted.items() if each is not link}

    def link_to(self, slot: SlotId, address: str) -> Link:
        """The connection over which we send to that slot."""
        link = self._outgoing.get(address)
        if link is None:
            link = self.transport.connect(address, self.current.job, self.current.attempt, self.id)
            self._outgoing[address] = link
            self._peers[link] = slot
        return link

    def send_parcel(self, owner: tasks.Owner, parcel: Parcel) -> None:
        """To another slot, beside the rows."""
        body = msgspec.msgpack.encode(parcel)
        header = wire.pack_header(wire.FrameKind.STATE, self.current.attempt, ChannelId(0), 0, len(body))
        self.link_to(owner.slot, owner.address).send([header, body])

    def read_state(
        self,
        handles: Sequence[StateHandle],
        groups: range,
        uids: Collection[Uid],
        use: Callable[[state_objects.Restored], None],
        *,
        folder: Path | None = None,
    ) -> None:
        """In the background; then `use` it."""
        store = self._store
        assert store is not None

        def read() -> state_objects.Restored:
            return state_objects.read(store, handles, groups=groups, index=0, parallelism=1, uids=uids, folder=folder)

        def done(restored: state_objects.Restored | Exception) -> None:
            if isinstance(restored, Exception):
                raise restored
            use(restored)

        if all(_is_small(handle) for handle in handles):
            self._guarded(lambda: done(read()))
        else:
            self._background.submit(read, lambda restored: self._guarded(lambda: done(restored)))

    # ------------------------------------------------------------ links

    def on_accept(self, link: Link, job: JobId, attempt: Attempt, sender: SlotId) -> None:
        """Another slot has connected."""
        if self._deployment is None:
            self._early.append((link, job, attempt, sender))
        else:
            self._admit(link, job, attempt, sender)

    def on_frame(self, link: Link, header: Buffer, body: memoryview) -> None:
        """An element for one of our tasks, or credit for one of our senders. Strangers are not listened to."""
        if self.failed or link not in self._peers:
            return
        frame = wire.unpack_header(header)
        if self._deployment is None or frame.attempt != self._deployment.attempt:
            return
        try:
            if frame.kind is wire.FrameKind.STATE:
                self.moving.on_parcel(msgspec.msgpack.decode(body, type=Parcel))
                return
            if frame.kind is wire.FrameKind.CREDIT:
                amount, sender = wire.unpack_credit(body), self._send.get(frame.channel)
                if sender is None:
                    self._early_credit[frame.channel] = self._early_credit.get(frame.channel, 0) + amount
                else:
                    sender.add_credit(amount)
                return
            receiver, codec, _ = self._receive[frame.channel]
            size = frame.length if frame.kind is wire.FrameKind.BATCH else 0
            receiver.put(frame.sequence, codec.decode(frame.kind, body), size)
        except Exception as error:
            self._fail(error, None)

    def on_lost(self, link: Link, reason: str) -> None:
        """A connection broke: whatever is missing from it, the region has failed."""
        self._early = [early for early in self._early if early[0] is not link]
        peer = self._peers.pop(link, None)
        self._forget(link)
        if peer is not None and not self.moving.may_lose(peer):
            lost = PenstockError("C012", f"the connection to slot {peer} is lost: {reason}")
            self._fail(lost, None, secondary=True)

    def _admit(self, link: Link, job: JobId, attempt: Attempt, sender: SlotId) -> None:
        deployment = self._deployment
        if deployment is None or (job, attempt) != (deployment.job, deployment.attempt):
            link.close()
            return
        self._peers[link], self._accepted[sender] = sender, link
        for receiver, _, slot in self._receive.values():
            if slot == sender:
                self._grant(receiver, link)

    def _grant(self, receiver: ReceiveChannel, link: Link) -> None:
        receiver.grant = partial(_send_credit, link, self.current.attempt, receiver.id)
        receiver.open()

    # ------------------------------------------------------------ snapshots, end, failure

    def _take_snapshot(
        self, task: RunningTask, barrier: Barrier, snapshots: Snapshots, counters: tuple[OperatorMetrics, ...]
    ) -> None:
        deployment, store = self._deployment, self._store
        if deployment is None or store is None:
            return
        attempt, subtask, checkpoint = deployment.attempt, task.subtask, barrier.checkpoint

        def make() -> state_objects.Sections:
            return [(uid, section) for uid, snapshot in snapshots for section in snapshot()]

        def upload(sections: state_objects.Sections) -> StateHandle:
            # Tables first: the files of a database are gone when they are in the store.
            tables = self._write_tables(task, barrier, sections) if barrier.savepoint else ()
            inline_bytes = deployment.settings.checkpoint.inline_bytes
            handle = state_objects.write(
                store, checkpoint, attempt, subtask, sections, inline_bytes=inline_bytes, born=born
            )
            return msgspec.structs.replace(handle, counters=counters, tables=tables)

        born = self.descriptions[subtask].born
        acknowledge = partial(self._acknowledge, deployment.job, attempt, checkpoint, subtask)
        if self.moving.leaving(subtask) is None:
            self._background.submit(lambda: upload(make()), acknowledge)
        else:
            self._hand_over(subtask, make, upload, acknowledge)

    def _hand_over(
        self,
        subtask: SubtaskId,
        make: Callable[[], state_objects.Sections],
        upload: Callable[[state_objects.Sections], StateHandle],
        acknowledge: Callable[[StateHandle | Exception], None],
    ) -> None:
        """Groups that get another owner leave as soon as their state is at hand; the checkpoint follows."""

        def prepare() -> tuple[state_objects.Sections, list[Parcel] | None]:
            sections = make()
            return sections, self.moving.make_parcels(subtask, sections)

        def made(result: tuple[state_objects.Sections, list[Parcel] | None] | Exception) -> None:
            if self.failed:
                return
            if isinstance(result, Exception):
                acknowledge(result)
                return
            sections, ready = result
            if ready is not None:
                self._guarded(lambda: self.moving.hand_over(subtask, ready))
                # What is on its way to us is waited for, and the upload is not.
                self._deferred.append(lambda: self._background.submit(lambda: upload(sections), acknowledge))
                self.upload_deferred()
            else:
                self._background.submit(lambda: upload(sections), uploaded)

        def uploaded(handle: StateHandle | Exception) -> None:
            if not isinstance(handle, Exception) and not self.failed:
                stored = self.moving.make_parcels_in_store(subtask, handle)
                self._guarded(lambda: self.moving.hand_over(subtask, stored))
            acknowledge(handle)

        self._background.submit(prepare, made)

    def upload_deferred(self) -> None:
        """Unless groups are on their way to us."""
        if not self.moving.awaits:
            deferred, self._deferred = self._deferred, []
            for submit in deferred:
                submit()

    def _write_tables(self, task: RunningTask, barrier: Barrier, sections: state_objects.Sections) -> Tables:
        assert self._deployment is not None
        assert self._store is not None
        return write_tables(
            self._store,
            self._open_store(barrier.savepoint),
            checkpoint=barrier.checkpoint,
            attempt=self._deployment.attempt,
            subtask=task.subtask,
            operators={node.description.uid: node.description.spec for node in task.chain.nodes},
            sections=sections,
            max_parallelism=task.chain.head.context.max_parallelism,
        )

    def _acknowledge(
        self,
        job: JobId,
        attempt: Attempt,
        checkpoint: CheckpointId,
        subtask: SubtaskId,
        result: StateHandle | Exception,
    ) -> None:
        if self.failed:
            return
        if isinstance(result, Exception):
            reason = _explain(result)
            self.say(
                messages.Declined(job=job, attempt=attempt, checkpoint=checkpoint, subtask=subtask, reason=reason)
            )
        else:
            self.say(
                messages.Acknowledged(job=job, attempt=attempt, checkpoint=checkpoint, subtask=subtask, handle=result)
            )

    def _on_ended(self, subtask: SubtaskId) -> None:
        if self._deployment is not None:
            job, attempt = self._deployment.job, self._deployment.attempt
            self._report_progress()
            self.say(messages.InputEnded(job=job, attempt=attempt, subtask=subtask))

    def _guarded(self, work: Callable[[], None], task: RunningTask | None = None) -> None:
        if self.failed:
            return
        try:
            work()
        except Exception as error:
            self._fail(error, task.subtask if task else None)

    def _fail(self, error: Exception, subtask: SubtaskId | None, *, secondary: bool = False) -> None:
        if self.failed or self._deployment is None:
            return
        self.failed = True
        self.say(
            messages.Failed(
                job=self._deployment.job,
                attempt=self._deployment.attempt,
                slot=self.id,
                subtask=subtask,
                code=error.code if isinstance(error, PenstockError) else "C013",
                reason=_explain(error),
                secondary=secondary,
                fatal=isinstance(error, UserError | FatalJobError),
            )
        )
        for link in self._peers:
            link.close()
        for task in self.tasks:
            task.chain.close()

    # ------------------------------------------------------------ report

    def _report_progress(self) -> None:
        """Out of turn: what follows may be the last that is heard of this slot, and its figures should be right."""
        if report := self.report():
            self.say(report)

    def _say_reached(self) -> float | None:
        """Tell how far aligned sources are, when it is time; seconds until the next time."""
        now, current = self._clock.monotonic(), self._deployment
        if current is not None and (times := self._alignment.say(now)):
            self.say(messages.Reached(job=current.job, attempt=current.attempt, slot=self.id, times=times))
        return self._alignment.wait(now)

    def report(self) -> messages.SlotReport | None:
        """How far the tasks are; None before a deployment. Safe from another thread."""
        if self._deployment is None:
            return None
        rescale = self.moving.number
        return messages.SlotReport(
            job=self._deployment.job,
            attempt=self._deployment.attempt,
            slot=self.id,
            tasks=tuple(task.metrics() for task in tuple(self.tasks)),
            rescale=rescale,
        )


def _load(store: ObjectStore, task: tasks.Task, folder: Path | None) -> state_objects.Restored:
    return state_objects.read(
        store,
        task.restore,
        groups=group_range(task.subtask.index, task.parallelism, task.max_parallelism),
        index=task.subtask.index,
        parallelism=task.parallelism,
        uids={link.operator.uid for link in task.chain},
        folder=folder,
    )


def _is_small(handle: StateHandle) -> bool:
    """Whether the handle itself holds the state, and not much of it."""
    elsewhere = handle.path or any(section.path or section.files for section in handle.sections)
    return not elsewhere and len(handle.data) < _AT_ONCE_BYTES


def _send_element(
    link: Link,
    codec: wire.ElementCodec,
    attempt: Attempt,
    channel: ChannelId,
    sequence: int,
    element: Element,
    _: int,
) -> int:
    kind, body = codec.encode(element)
    link.send([wire.pack_header(kind, attempt, channel, sequence, len(body)), body])
    return len(body) if kind is wire.FrameKind.BATCH else 0


def _send_credit(link: Link, attempt: Attempt, channel: ChannelId, amount: int) -> None:
    link.send([wire.credit_frame(attempt, channel, amount)])


def _is_writable(link: Link) -> bool:
    return link.writable


def _explain(error: Exception) -> str:
    if isinstance(error, PenstockError):
        return error.render()
    # Many readers show the first line alone.
    return "".join([*traceback.format_exception_only(error), *traceback.format_exception(error)]).rstrip()
