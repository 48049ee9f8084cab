"""Starts slot processes and holds their control sockets.

A process is forked from a fork server that has the heavy modules loaded and has never used them: a start takes
milliseconds, and no thread or lock of Polars or Arrow is copied. The slot ends when its control socket closes,
whatever it is busy with, so nothing outlives its TaskManager: our end of the socket exists in this process alone.
"""

import asyncio
import contextlib
import importlib
import multiprocessing
import os
import select
import signal
import socket
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.context import ForkServerProcess

import msgspec

from penstock.model.ids import SlotId
from penstock.model.messages import FromSlot, SlotReady, ToSlot
from penstock.taskmanager.control import FrameReader, encode_frame
from penstock.taskmanager.work_folders import remove_work_folder

SLOT_ENTRY = "penstock.taskmanager.slot_process:slot_main"
"""What runs in a slot process, with (control socket, slot, host to listen on). By name: the TaskManager itself
imports nothing of it."""

PRELOADED = ("polars", "pyarrow", "numpy", "numpy.ma", "narwhals", "penstock.taskmanager.slot_process")

SLOT_ENVIRONMENT = {
    "POLARS_MAX_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    "MALLOC_MMAP_THRESHOLD_": str(32 * 1024 * 1024),
    "MALLOC_TRIM_THRESHOLD_": str(256 * 1024 * 1024),
}
"""One slot is one core. What a user prints is seen at once.

NumPy allocates with malloc, which gives every array of more than 128 KB back to the system, to be mapped and cleared
again for the next batch: measured, a third of the time of a window query, and half of it in two slots at once.
"""

_EXIT_SECONDS = 2.0
"""A process that has closed its control socket has nothing left to do; it is ended after this."""

_READ_BYTES = 64 * 1024

_decoder = msgspec.json.Decoder(FromSlot | SlotReady)


class SlotProcess:
    """One process behind a slot, from its start to its end."""

    def __init__(
        self,
        process: ForkServerProcess,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        executor: ThreadPoolExecutor,
    ) -> None:
        assert process.pid is not None
        self.pid = process.pid
        self._process, self._reader, self._writer, self._executor = process, reader, writer, executor
        self._exited = asyncio.Event()
        asyncio.get_running_loop().add_reader(process.sentinel, self._on_exit)

    async def messages(self) -> AsyncIterator[FromSlot | SlotReady]:
        """What the slot says, until it closes its socket."""
        frames = FrameReader(_decoder)
        with contextlib.suppress(ConnectionError):
            while data := await self._reader.read(_READ_BYTES):
                for message in frames.feed(data):
                    yield message

    def send(self, message: ToSlot) -> None:
        """Queue a message; lost when the process is gone, which `messages` shows."""
        self._writer.write(encode_frame(message))

    def kill(self) -> None:
        """End it, whatever it does."""
        if not self._exited.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    async def exit_code(self) -> int:
        """Wait for its end; negative: the signal that ended it."""
        try:
            async with asyncio.timeout(_EXIT_SECONDS):
                await self._exited.wait()
        except TimeoutError:
            self.kill()
            await self._exited.wait()
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()
        loop = asyncio.get_running_loop()
        code = await loop.run_in_executor(self._executor, lambda: self._process.exitcode)
        self._process.close()
        await loop.run_in_executor(self._executor, remove_work_folder, self.pid)
        return 0 if code is None else code

    def _on_exit(self) -> None:
        asyncio.get_running_loop().remove_reader(self._process.sentinel)
        self._exited.set()


class SlotLauncher:
    """Makes slot processes."""

    def __init__(self, entry: str, host: str) -> None:
        self._entry, self._host = entry, host
        os.environ.update(SLOT_ENVIRONMENT)
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(PRELOADED))
        # multiprocessing reads exit codes of all its children whenever it starts one: one thread does both,
        # or two threads would read the same code and one of them get nothing.
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="slot-launcher")

    async def launch(self, slot: SlotId) -> SlotProcess:
        """A fresh process; it has announced nothing yet. When cancelled, none is left behind."""
        launching = asyncio.ensure_future(self._launch(slot))
        try:
            return await asyncio.shield(launching)
        except asyncio.CancelledError:
            process = await launching
            process.kill()
            await process.exit_code()
            raise

    async def _launch(self, slot: SlotId) -> SlotProcess:
        ours, theirs = socket.socketpair()
        process = self._context.Process(
            target=_run, args=(self._entry, theirs, slot, self._host), name=f"slot {slot}", daemon=True
        )
        with theirs:
            await asyncio.get_running_loop().run_in_executor(self._executor, process.start)
        reader, writer = await asyncio.open_connection(sock=ours)
        return SlotProcess(process, reader, writer, self._executor)

    def close(self) -> None:
        """No more launches."""
        self._executor.shutdown(wait=True)


def describe_exit(code: int) -> str:
    """How a process ended, for people."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "unknown"
    text = f"killed by signal {-code} ({name})"
    return text + "; if nobody killed it, it was out of memory" if -code == signal.SIGKILL else text


def _run(entry: str, control: socket.socket, slot: SlotId, host: str) -> None:
    # Ctrl-C in a terminal goes to the whole process group; the TaskManager decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(control.fileno(),), name="taskmanager-watch", daemon=True).start()
    module, _, function = entry.partition(":")
    getattr(importlib.import_module(module), function)(control, slot, host)


def _end_with(control: int) -> None:
    """The slot's own thread would notice too, but not while it is inside a function of the user."""
    watch = select.poll()
    watch.register(control, select.POLLHUP)
    watch.poll()
    os._exit(0)
