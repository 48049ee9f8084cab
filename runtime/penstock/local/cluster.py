"""The embedded cluster: a JobManager and TaskManagers as child processes, looked after as Kubernetes would.

A child that dies is started again: the JobManager on the same state directory and ports, a TaskManager under the
same id. None outlives this process: each holds the read end of a pipe that only this process can write to.
"""

import contextlib
import logging
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import msgspec

from penstock.config import JobManagerSettings, LinkSettings, TaskManagerSettings
from penstock.local.child import EXIT_USER_ERROR
from penstock.model.clocks import Clock, SystemClock
from penstock.model.errors import FatalJobError, RetryableError
from penstock.rpc import RestClient
from penstock.storage import folder_of

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
_POLL_SECONDS = 0.05
_START_SECONDS = 60.0
"""A loaded laptop takes seconds to import everything; more than this is a fault."""
_STOP_SECONDS = 6.0
_QUICK_DEATH_SECONDS = 2.0
_RESTART_SECONDS = 1.0
_QUICK_DEATHS = 5
"""A child that died within `_QUICK_DEATH_SECONDS` waits a second for its next start, and has five of them."""


@dataclass(slots=True)
class _Child:
    name: str
    role: str
    settings: bytes
    log: IO[bytes]
    output: IO[bytes]
    process: "subprocess.Popen[bytes] | None" = None
    started: float = 0.0
    start_at: float = 0.0
    quick_deaths: int = 0
    """In a row."""


class LocalCluster:
    """Use as a context manager. `folder` is for logs, when the state directory is in an object store."""

    def __init__(
        self,
        state_dir: Path | str,
        *,
        folder: Path | None = None,
        task_managers: int = 1,
        slots_per_task_manager: int = 1,
        link: LinkSettings | None = None,
        clock: Clock | None = None,
        stuck_after_seconds: float | None = None,
    ) -> None:
        self.state_dir = str(state_dir)
        """Path or URI."""
        self._clock = clock or SystemClock()
        self._resources = contextlib.ExitStack()
        self._children: list[_Child] = []
        self._ending = threading.Event()
        self._broken = ""
        self._slots = task_managers * slots_per_task_manager
        folder = folder or folder_of(self.state_dir)
        if folder is None:
            raise ValueError(f"{state_dir} is not on this machine: give a folder for logs")
        self._logs = logs = folder.absolute() / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        port, rest_port = (self._reserve_port() for _ in range(2))
        self.client = RestClient(f"http://{HOST}:{rest_port}")
        link = link or LinkSettings()
        jobmanager = JobManagerSettings(
            state_dir=self.state_dir,
            host=HOST,
            port=port,
            rest_port=rest_port,
            share_ports=True,
            standby=False,
            link=link,
        )
        self._add("jobmanager", "jobmanager", msgspec.json.encode(jobmanager), logs)
        for number in range(1, task_managers + 1):
            settings = TaskManagerSettings(
                id=f"tm-{number}", jobmanager=f"{HOST}:{port}", slots=slots_per_task_manager, host=HOST, link=link
            )
            if stuck_after_seconds is not None:
                settings = msgspec.structs.replace(settings, stuck_after_seconds=stuck_after_seconds)
            self._add(f"taskmanager-{number}", "taskmanager", msgspec.json.encode(settings), logs)
        self._output = [(logs / f"{child.name}.out").open("rb") for child in self._children]
        for reader in self._output:
            self._resources.enter_context(reader).seek(0, 2)
        self._supervisor = threading.Thread(target=self._supervise, name="local-cluster", daemon=True)

    def __enter__(self) -> Self:
        try:
            for child in self._children:
                self._start(child)
            self._supervisor.start()
            self._wait_until_up()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all children; returns when they are gone."""
        self._ending.set()
        if self._supervisor.is_alive():
            self._supervisor.join()
        # TaskManagers first: they say good-bye. Work that goes on waits for slots until the next JobManager.
        _end([child for child in self._children if child.role == "taskmanager"])
        _end([child for child in self._children if child.role == "jobmanager"])
        self._resources.close()

    def check(self) -> None:
        """Raises when a child cannot be kept alive."""
        if self._broken:
            raise FatalJobError("C006", self._broken, where=str(self._logs))

    def pids(self) -> dict[str, int]:
        """Name of each child -> its process."""
        return {child.name: child.process.pid for child in self._children if child.process is not None}

    def printed(self) -> str:
        """What slots have printed since the last call."""
        return "".join(reader.read().decode(errors="replace") for reader in self._output)

    # ------------------------------------------------------------ children

    def _add(self, name: str, role: str, settings: bytes, logs: Path) -> None:
        log = self._resources.enter_context((logs / f"{name}.log").open("ab"))
        output = self._resources.enter_context((logs / f"{name}.out").open("ab"))
        self._children.append(_Child(name, role, settings, log, output))

    def _start(self, child: _Child) -> None:
        child.started = self._clock.monotonic()
        child.process = subprocess.Popen(
            [sys.executable, "-m", "penstock.local", child.role, child.settings.decode()],
            stdin=subprocess.PIPE,
            stdout=child.output,
            stderr=child.log,
            start_new_session=True,  # Ctrl-C is for the parent alone
        )

    def _supervise(self) -> None:
        while not self._ending.wait(_POLL_SECONDS):
            for child in self._children:
                self._look_after(child)

    def _look_after(self, child: _Child) -> None:
        now = self._clock.monotonic()
        if child.process is not None and (code := child.process.poll()) is not None:
            _close_pipe(child.process)
            child.process = None
            quick = now - child.started < _QUICK_DEATH_SECONDS and code != -signal.SIGKILL
            child.quick_deaths = child.quick_deaths + 1 if quick else 0
            child.start_at = now + (_RESTART_SECONDS if quick else 0.0)
            logger.info("process ended", extra={"child": child.name, "code": code})
            if code == EXIT_USER_ERROR or child.quick_deaths >= _QUICK_DEATHS:
                self._broken = f"{child.name} cannot run: {self._last_words(child)}"
        elif child.process is None and now >= child.start_at and not self._broken:
            self._start(child)

    def _last_words(self, child: _Child) -> str:
        lines = (self._logs / f"{child.name}.log").read_text(errors="replace").splitlines()
        return "\n".join(lines[-2:])

    def _wait_until_up(self) -> None:
        deadline = self._clock.monotonic() + _START_SECONDS
        while True:
            self.check()
            with contextlib.suppress(RetryableError):
                if self.client.cluster().slots_total == self._slots:
                    return
            if self._clock.monotonic() > deadline:
                raise FatalJobError(
                    "C006",
                    f"the embedded cluster did not start within {_START_SECONDS:.0f} s",
                    where=str(self._logs),
                    fix="its logs say why",
                )
            self._ending.wait(_POLL_SECONDS)

    def _reserve_port(self) -> int:
        """A port for this cluster alone, as long as it lives: bound here, and never listened on."""
        holder = self._resources.enter_context(socket.socket())
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind((HOST, 0))
        port: int = holder.getsockname()[1]
        return port


def _end(children: list[_Child]) -> None:
    processes = [child.process for child in children if child.process is not None]
    for process in processes:
        process.send_signal(signal.SIGTERM)
    for process in processes:
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _close_pipe(process)


def _close_pipe(process: "subprocess.Popen[bytes]") -> None:
    if process.stdin is not None:
        process.stdin.close()
