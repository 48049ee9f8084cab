"""Processes of the cluster: started in the background, remembered by pid and start time, ended by name.

A pid alone does not name a process for ever; with the time of its start it does. Nothing is signalled that is not
proven to be ours in this way.
"""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

from cluster import control_groups, layout

_GRACE_SECONDS = 15.0


def start(name: str, *words: object, environment: dict[str, str] | None = None) -> int:
    """Its pid. When it runs already, nothing is done."""
    if (pid := find(name)) is not None:
        return pid
    with (layout.LOGS / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            [str(word) for word in words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
            preexec_fn=control_groups.enter_system,
        )
    remember(name, process.pid)
    return process.pid


def remember(name: str, pid: int) -> None:
    """From now on `find` answers with this process as long as it lives."""
    _record(name).write_text(f"{pid} {_start_time(pid)}")


def find(name: str) -> int | None:
    """The pid, when the process that we started under this name still lives."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        pid, started = map(int, _record(name).read_text().split())
        if _start_time(pid) == started:
            return pid
    return None


def names() -> list[str]:
    """Everything that was started and not stopped, dead or alive."""
    return sorted(path.stem for path in layout.RUNNING.glob("*.pid"))


def stop(name: str, number: signal.Signals = signal.SIGTERM) -> None:
    """And wait until it is gone; SIGKILL when it takes too long."""
    if (pid := find(name)) is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline = time.monotonic() + _GRACE_SECONDS
        while find(name) is not None:
            if time.monotonic() > deadline:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                deadline += _GRACE_SECONDS
            time.sleep(0.05)
    _record(name).unlink(missing_ok=True)


def _record(name: str) -> Path:
    return layout.RUNNING / f"{name}.pid"


def _start_time(pid: int) -> int | None:
    """In ticks since the machine's start; None when there is no such process, or only what is left of one."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else int(fields[19])
