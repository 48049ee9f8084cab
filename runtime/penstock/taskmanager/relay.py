"""One slot of a TaskManager: keeps a warm process behind it and carries messages both ways.

    starting -> ready -> deployed -> starting ...

Owns: which process is behind the slot, what it was told to run, and the end of it.
Invariant: a process runs one deployment in its life, and every deployment that ends without saying why is
reported as failed, once.
"""

import asyncio
import logging
from collections.abc import Callable

import msgspec

from penstock.config import BoundLogger
from penstock.model.clocks import Clock
from penstock.model.elements import BarrierKind
from penstock.model.ids import Attempt, JobId, SlotId
from penstock.model.messages import (
    Cancel,
    Committed,
    Deploy,
    Failed,
    FromSlot,
    Heartbeat,
    InputEnded,
    Prepare,
    Probe,
    Running,
    Runs,
    SlotInfo,
    SlotReady,
    SlotReport,
    ToJobManager,
    ToSlot,
    ToTaskManager,
    Trigger,
)
from penstock.taskmanager.slot_processes import SlotLauncher, SlotProcess, describe_exit

_CRASH_LOOP_SECONDS = 1.0
"""A process that ends sooner than this without a deployment would end again: the next one waits as long."""


class SlotRelay:
    """Call `run` once; `deliver` and `reset` at any time from the same loop."""

    def __init__(
        self,
        slot: SlotId,
        launcher: SlotLauncher,
        tell: Callable[[ToJobManager], None],
        clock: Clock,
        *,
        stuck_after_seconds: float,
    ) -> None:
        self.slot = slot
        self.info: SlotInfo | None = None
        """Of the process that stands behind the slot, once it has announced itself."""
        self.report: SlotReport | None = None
        self._launcher, self._tell, self._clock = launcher, tell, clock
        self._stuck_after_seconds = stuck_after_seconds
        self._process: SlotProcess | None = None
        self._deployment: tuple[JobId, Attempt] | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._end_is_known = False
        self._runs: Runs | None = None
        self._logger = BoundLogger(logging.getLogger(__name__), {"slot": str(slot)})

    async def run(self) -> None:
        """Start processes, one after the other, until cancelled; the last one ends with it."""
        while True:
            started = self._clock.monotonic()
            process = self._process = await self._launcher.launch(self.slot)
            try:
                async for message in process.messages():
                    self._on_message(process, message)
            except BaseException:
                process.kill()
                await process.exit_code()
                raise
            code = await process.exit_code()
            deployed = self._deployment is not None
            self._on_exit(process, code)
            if not deployed and self._clock.monotonic() - started < _CRASH_LOOP_SECONDS:
                await asyncio.sleep(_CRASH_LOOP_SECONDS)

    def deliver(self, message: ToTaskManager) -> None:
        """From the JobManager. What belongs to another attempt than the slot's own is dropped."""
        if isinstance(message, Deploy):
            self._deploy(message)
        elif isinstance(message, Cancel):
            job, attempt = self._deployment or (None, 0)
            if job == message.job and attempt <= message.attempt:
                self._end("cancelled")
        elif isinstance(message, Probe):
            pass  # that it came here is the answer
        elif self._process is not None and self._deployment == (message.job, message.attempt):
            self._note(message)
            self._process.send(message)

    @property
    def offer(self) -> SlotInfo | None:
        """The slot for a registration, with what it runs. None: no process stands behind it."""
        if self.info is None or self._runs is None:
            return self.info
        failed = self._runs.failed or self._end_is_known
        return msgspec.structs.replace(self.info, runs=msgspec.structs.replace(self._runs, failed=failed))

    async def reset(self) -> None:
        """End what the slot runs; returns when it has ended. A fresh process announces itself when it is ready."""
        if self._deployment is not None:
            self._end("reset")
        await self._idle.wait()

    def _deploy(self, message: Deploy) -> None:
        job, attempt = message.deployment.job, message.deployment.attempt
        if self._deployment == (job, attempt):
            return
        if self._process is None or self.info is None or self._deployment is not None:
            reason = "the slot's process was being replaced when the deployment arrived"
            self._tell(Failed(job=job, attempt=attempt, slot=self.slot, subtask=None, code="C005", reason=reason))
            if self._deployment is not None:
                self._end("a newer attempt arrived")
            return
        self._idle.clear()
        self._deployment, self._end_is_known = (job, attempt), False
        subtasks = tuple(task.subtask for task in message.deployment.tasks)
        joins = message.deployment.joins is not None
        self._runs = Runs(job=job, attempt=attempt, subtasks=subtasks, running=False, failed=joins)
        self._process.send(message)

    def _note(self, message: FromSlot | ToSlot) -> None:
        """Remember what another JobManager would have to know."""
        runs = self._runs
        assert runs is not None
        match message:
            case Trigger(checkpoint=checkpoint, kind=kind):
                ordinary = kind in (BarrierKind.CHECKPOINT, BarrierKind.SAVEPOINT)
                self._runs = msgspec.structs.replace(
                    runs, newest=max(checkpoint, runs.newest), failed=runs.failed or not ordinary
                )
            case Prepare():
                self._runs = msgspec.structs.replace(runs, failed=True)
            case Running():
                self._runs = msgspec.structs.replace(runs, running=True)
            case InputEnded(subtask=subtask):
                self._runs = msgspec.structs.replace(runs, ended=(*runs.ended, subtask))

    def _end(self, why: str) -> None:
        self._end_is_known = True
        self._logger.info("slot process ends", extra={"why": why})
        if self._process is not None:
            self._process.kill()

    def _on_message(self, process: SlotProcess, message: FromSlot | SlotReady) -> None:
        if isinstance(message, SlotReady):
            self.info = message.info
            self._logger.info("slot process ready", extra={"pid": process.pid, "address": message.info.address})
            self._tell(message)
        elif self._end_is_known:
            return
        elif isinstance(message, SlotReport):
            self.report = message
            if message.stuck_seconds > self._stuck_after_seconds:
                self._fail_stuck(message)
        else:
            self._end_is_known = isinstance(message, Failed)
            self._note(message)
            if isinstance(message, InputEnded | Committed) and self.report is not None:
                # These may be the last words of a job: its figures must be there before them.
                self._tell(Heartbeat(task_manager=self.slot.task_manager, reports=(self.report,)))
            self._tell(message)

    def _fail_stuck(self, report: SlotReport) -> None:
        subtasks = ", ".join(str(task.subtask) for task in report.tasks)
        self._fail("P008", f"{subtasks} has not yielded for {report.stuck_seconds:.0f} s, {report.stuck_stack}")
        self._end("stuck")

    def _on_exit(self, process: SlotProcess, code: int) -> None:
        how = describe_exit(code)
        if self._deployment is not None and not self._end_is_known:
            self._fail("P009", f"process {process.pid} of slot {self.slot} {_was(how)}")
        elif self._deployment is None:
            self._logger.warning("slot process ended", extra={"pid": process.pid, "how": how})
        self._process = self._deployment = self._runs = self.info = self.report = None
        self._end_is_known = False
        self._idle.set()

    def _fail(self, code: str, reason: str) -> None:
        assert self._deployment is not None
        job, attempt = self._deployment
        self._logger.warning("deployment failed", extra={"job": job, "attempt": attempt, "reason": reason})
        self._tell(Failed(job=job, attempt=attempt, slot=self.slot, subtask=None, code=code, reason=reason))


def _was(how: str) -> str:
    return f"was {how}" if how.startswith("killed") else how
