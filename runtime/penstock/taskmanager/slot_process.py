"""The process around a slot: real sockets, a background thread, a reporter thread, a line to the TaskManager.

Owns: the loop. The main thread alternates between the slot's turn and waiting for sockets; everything else comes to
it as a letter. The process ends when its TaskManager does (the line closes), or is killed by it.
"""

import contextlib
import os
import queue
import resource
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from penstock.exchange.sockets import SocketTransport
from penstock.model import messages
from penstock.model.clocks import Clock, SystemClock
from penstock.model.ids import SlotId
from penstock.operators.factory import make_operator
from penstock.operators.user_errors import describe_stuck
from penstock.storage import open_store
from penstock.taskmanager.control import FrameReader, encode_frame
from penstock.taskmanager.coroutines import CoroutineThread
from penstock.taskmanager.letters import Letters
from penstock.taskmanager.slot import Slot
from penstock.taskmanager.warming import warm_up
from penstock.taskmanager.work_folders import work_folder

REPORT_SECONDS = 0.5
READ_BYTES = 256 * 1024
STUCK_AFTER_SECONDS = 5.0
"""A turn that takes longer is reported with its stack; the TaskManager decides when it is too long."""

T = TypeVar("T")


def slot_main(control: socket.socket, slot: SlotId, host: str) -> None:
    """Entry point of a slot process. Never returns: a normal interpreter exit may abort inside Arrow's threads."""
    try:
        SlotProcess(control, slot, host).run()
    except (ConnectionError, EOFError):
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


class SlotProcess:
    """Wires a slot to the machine."""

    def __init__(self, control: socket.socket, slot: SlotId, host: str, clock: Clock | None = None) -> None:
        self._line = Line(control)
        self._clock = clock or SystemClock()
        self._letters = Letters()
        self._background = BackgroundThread(self._letters)
        self._slot = Slot(
            slot,
            clock=self._clock,
            background=self._background,
            coroutines=CoroutineThread(self._letters),
            open_store=open_store,
            make_operator=make_operator,
            report=self._line.send,
            work_folder=work_folder(os.getpid()),
        )
        self._transport = SocketTransport(host, self._slot)
        self._slot.transport = self._transport
        self._transport.watch(control, self._read_control)
        self._transport.watch(self._letters.readable, self._letters.open_all)
        self._reader = FrameReader(msgspec.json.Decoder(messages.ToSlot))
        self._turn_since: float | None = None
        self._main_thread = threading.get_ident()

    def run(self) -> None:
        """Until the TaskManager is gone."""
        info = messages.SlotInfo(slot=self._slot.id, address=self._transport.address, pid=os.getpid())
        self._line.send(messages.SlotReady(info=info))
        threading.Thread(target=self._report_for_ever, name="reporter", daemon=True).start()
        warm_up()
        while True:
            self._turn_since = self._clock.monotonic()
            wait = self._slot.run_once()
            self._turn_since = None
            self._transport.poll(wait)

    def _read_control(self) -> None:
        data = self._line.receive()
        for message in self._reader.feed(data):
            self._slot.on_message(message)

    def _report_for_ever(self) -> None:
        pause = threading.Event()
        with contextlib.suppress(ConnectionError, OSError):
            while not pause.wait(REPORT_SECONDS):
                report = self._slot.report()
                if report is not None:
                    self._line.send(self._with_health(report))

    def _with_health(self, report: messages.SlotReport) -> messages.SlotReport:
        since = self._turn_since
        stuck = self._clock.monotonic() - since if since is not None else 0.0
        stack = ""
        if stuck > STUCK_AFTER_SECONDS and (frame := sys._current_frames().get(self._main_thread)) is not None:
            stack = describe_stuck(frame)
        return msgspec.structs.replace(report, stuck_seconds=stuck, stuck_stack=stack, rss_bytes=resident_bytes())


class Line:
    """The socket to the TaskManager, written by several threads."""

    def __init__(self, control: socket.socket) -> None:
        self._socket = control
        self._socket.setblocking(True)
        self._lock = threading.Lock()

    def send(self, message: messages.FromSlot | messages.SlotReady) -> None:
        """Whole messages only."""
        with self._lock:
            self._socket.sendall(encode_frame(message))

    def receive(self) -> bytes:
        """What is there; EOFError when the TaskManager is gone."""
        data = self._socket.recv(READ_BYTES)
        if not data:
            raise EOFError("the TaskManager is gone")
        return data


class BackgroundThread:
    """One thread for encoding and uploads: kernels, hashing and files release the GIL."""

    def __init__(self, letters: Letters) -> None:
        self._letters = letters
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Callable[[Any], None]]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="background", daemon=True).start()

    def submit(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        """See `ports.Background`."""
        self._work.put((work, done))

    def _run(self) -> None:
        while True:
            work, done = self._work.get()
            try:
                result: Any = work()
            except Exception as error:
                result = error
            self._letters.post(lambda done=done, result=result: done(result))  # type: ignore[misc]


def resident_bytes() -> int:
    """Memory of this process now."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * resource.getpagesize()
