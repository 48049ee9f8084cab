"""A TaskManager's side of the talk with its JobManager.

    unregistered -> registered(epoch) -> unregistered ...

Messages leave one at a time and in order. A JobManager that answers "not accepted" has been replaced by another
one, or has given this TaskManager up; one that cannot be reached for `lost_after_seconds` may have done so. In
both cases the slots end what they run before the TaskManager registers again.
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

    def tell(self, message: ToJobManager) -> None:
        """Queue; each registration starts with an empty queue, since it says all that there is to say."""
        self._outbox.put_nowait(message)

    async def run(self) -> None:
        """Register, talk, and again when the JobManager was lost; until cancelled."""
        while True:
            await self._reset()
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

    async def _register(self) -> None:
        delay = self._settings.first_retry_seconds
        while True:
            try:
                self._epoch = NO_EPOCH
                # The queue is emptied together with the look at the slots: what changes while the call is under
                # way is in the queue, what was before is in the message.
                self._outbox = asyncio.Queue()
                message = self._register_message()
                reply = await self._call(message)
                if self._jobmanagers.hear(reply):
                    self._epoch = reply.epoch
                    self._registered.set()
                    address = self._jobmanagers.address
                    facts = {"address": address, "epoch": reply.epoch, "slots": len(message.slots)}
                    logger.info("registered", extra=facts)
                    return
            except RpcError:
                self._jobmanagers.turn()
            await asyncio.sleep(delay)
            delay = min(delay * 2, self._settings.max_retry_seconds)

    async def _talk(self) -> str:
        heard = beat = self._clock.monotonic()
        message: ToJobManager | None = None
        while True:
            message = message or await self._next(beat)
            left = heard + self._settings.lost_after_seconds - self._clock.monotonic()
            try:
                reply = await self._call(message, seconds=max(0.01, min(left, self._settings.call_seconds)))
            except RpcError as error:
                if self._clock.monotonic() - heard >= self._settings.lost_after_seconds:
                    return error.what
                await asyncio.sleep(self._settings.first_retry_seconds)
                continue
            if not reply.accepted:
                return "it does not know this TaskManager"
            heard = self._clock.monotonic()
            if isinstance(message, Heartbeat):
                beat = heard + self._settings.heartbeat_seconds
            message = None

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
