"""A TaskManager's side of the talk with its JobManager.

    unregistered -> registered(epoch) -> unregistered ...

Messages leave one at a time and in order. A JobManager that answers "not accepted" has been replaced by another
one, or has given this TaskManager up; one that cannot be reached may have been replaced, too. The TaskManager then
registers again, here or with another one, and says what its slots run: whoever leads decides what becomes of it. When
it has heard no leader for `lost_after_seconds` the slots end what they run, since they may be replaced soon.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from penstock.config import LinkSettings
from penstock.model.clocks import Clock
from penstock.model.ids import NO_EPOCH, Epoch, TaskManagerId
from penstock.model.messages import Heartbeat, Leaving, Register, ToJobManager
from penstock.rpc import Reply, RpcError, ToldJobManager
from penstock.taskmanager.jobmanagers import JobManagers

logger = logging.getLogger(__name__)

_RUNNING_RETRY_SECONDS = 0.3
"""While slots run, a leader is looked for without long pauses: there is little time."""

_ELSEWHERE_SECONDS = 1.0
"""After so much silence another JobManager is asked, when there are several."""


class JobManagerLink:
    """`run` keeps the TaskManager registered; `tell` queues what its slots have to say."""

    def __init__(
        self,
        task_manager: TaskManagerId,
        jobmanagers: JobManagers,
        *,
        settings: LinkSettings,
        clock: Clock,
        reset: Callable[[], Awaitable[None]],
        register: Callable[[], Register],
        heartbeat: Callable[[], Heartbeat],
    ) -> None:
        self._task_manager, self._jobmanagers, self._settings, self._clock = task_manager, jobmanagers, settings, clock
        self._reset, self._register_message, self._heartbeat_message = reset, register, heartbeat
        self._outbox: asyncio.Queue[ToJobManager] = asyncio.Queue()
        self._epoch = NO_EPOCH
        self._registered = asyncio.Event()
        self._heard = float("-inf")
        self._may_run = False
        """Slots may run something: they have been registered since they ended all."""
        self._unsent: ToJobManager | None = None
        """What was said last, until it was heard."""

    def tell(self, message: ToJobManager) -> None:
        """Queue. After a reset the queue is empty: the registration says all that there is to say."""
        self._outbox.put_nowait(message)

    async def run(self) -> None:
        """Register, talk, and again when the JobManager was lost; until cancelled."""
        await self._end_all()
        while True:
            await self._register()
            why = await self._talk()
            self._registered.clear()
            logger.warning("jobmanager lost", extra={"address": self._jobmanagers.address, "why": why})

    async def epoch(self) -> Epoch:
        """Of the JobManager that we are registered with; 0 when there is none within a call's time.

        A JobManager may use a slot before its answer to the registration has arrived here: that call waits.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.call_seconds / 2):
                await self._registered.wait()
                return self._epoch
        return NO_EPOCH

    async def leave(self) -> None:
        """Say good-bye, if anybody listens."""
        if self._registered.is_set():
            with contextlib.suppress(RpcError):
                await self._call(Leaving(task_manager=self._task_manager))

    async def _end_all(self) -> None:
        self._may_run = False
        await self._reset()
        self._unsent = None

    async def _register(self) -> None:
        delay = self._settings.first_retry_seconds
        while True:
            if self._may_run and self._left() <= 0:
                logger.warning("no jobmanager was heard: slots end what they run")
                await self._end_all()
            try:
                self._epoch = NO_EPOCH
                # The queue is emptied together with the look at the slots: what changes while the call is under
                # way is in the queue, what was before is in the message. What slots that run on have said may
                # not have been heard by anybody; twice does no harm.
                if not self._may_run:
                    self._outbox = asyncio.Queue()
                message = self._register_message()
                reply = await self._call(message, seconds=self._patience() if self._may_run else None)
                if self._jobmanagers.hear(reply):
                    self._epoch = reply.epoch
                    self._registered.set()
                    self._heard, self._may_run = self._clock.monotonic(), True
                    address = self._jobmanagers.address
                    facts = {"address": address, "epoch": reply.epoch, "slots": len(message.slots)}
                    logger.info("registered", extra=facts)
                    return
            except RpcError:
                self._jobmanagers.turn()
            if self._may_run:
                await asyncio.sleep(max(0.0, min(delay, _RUNNING_RETRY_SECONDS, self._left())))
            else:
                await asyncio.sleep(delay)
            delay = min(delay * 2, self._settings.max_retry_seconds)

    async def _talk(self) -> str:
        beat = self._clock.monotonic()
        while True:
            message = self._unsent = self._unsent or await self._next(beat)
            try:
                reply = await self._call(message, seconds=self._patience())
            except RpcError as error:
                elsewhere = self._jobmanagers.several and self._silence() >= _ELSEWHERE_SECONDS
                if elsewhere or self._left() <= 0:
                    self._jobmanagers.turn()
                    return error.what
                await asyncio.sleep(self._settings.first_retry_seconds)
                continue
            if not reply.accepted:
                return "it does not know this TaskManager"
            self._heard = self._clock.monotonic()
            if isinstance(message, Heartbeat):
                beat = self._heard + self._settings.heartbeat_seconds
            self._unsent = None

    def _silence(self) -> float:
        """How long no leader was heard."""
        return self._clock.monotonic() - self._heard

    def _left(self) -> float:
        """Until slots must have ended what they run."""
        return self._settings.lost_after_seconds - self._silence()

    def _patience(self) -> float:
        return max(0.01, min(self._left(), self._settings.call_seconds))

    async def _next(self, beat: float) -> ToJobManager:
        """The next message that waits, or a heartbeat when it is time for one."""
        if self._clock.monotonic() < beat:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(beat - self._clock.monotonic()):
                    return await self._outbox.get()
        return self._heartbeat_message()

    async def _call(self, message: ToJobManager, *, seconds: float | None = None) -> Reply:
        told = ToldJobManager(task_manager=self._task_manager, epoch=self._epoch, message=message)
        return await self._jobmanagers.channel.call(told, seconds=seconds or self._settings.call_seconds)
