"""Who leads: a claim per epoch in a store, created once, and a beat that says that its holder still lives.

leader/claims/<epoch>.json   who leads in this epoch and where; by conditional create, so one wins; never removed
leader/beats/<epoch>.json    a counter that the holder writes again and again, and that nobody else ever writes

Needs nothing but the conditional create that journals stand on, and no clocks that agree: whoever waits compares
what it reads with what it has read before. A lease says who *should* lead. That nothing of an old leader counts is
the journal's business (`checkpoint.journal`): a process may be paused between any two instructions.

A lease of another kind (of Kubernetes, say) is another `Lease`.
"""

import os
import socket
from pathlib import Path
from typing import Final, Protocol

import msgspec

from penstock.model.ids import Epoch
from penstock.storage import ObjectStore, UnknownResultError

_CLAIMS: Final = "leader/claims/"
_BEATS: Final = "leader/beats/"


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A JobManager leads in this epoch."""

    epoch: Epoch
    holder: str
    """Unique per JobManager process: a create whose answer was lost is recognised by it."""
    host: str
    pid: int
    process: str = ""
    """Tells this process from all others of its machine; empty: unknown."""
    machine: str = ""
    """Processes that see each other have the same; empty: unknown."""
    grpc: str
    rest: str


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """The holder of a claim lives."""

    count: int
    answers: bool = False
    """It has read all journals, and talks to clients."""
    released: bool = False
    """It leads no more, and nobody need wait."""


class Lead(msgspec.Struct, frozen=True, kw_only=True):
    """The newest claim, and its last beat."""

    claim: Claim
    beat: Beat | None


class Lease(Protocol):
    """Calls block for as long as the place where the lease is kept takes. RetryableError: it does not answer."""

    def look(self) -> Lead | None:
        """The newest claim; None: nobody has ever led."""
        ...

    def claim(self, claim: Claim) -> bool:
        """Lead in this epoch. False: somebody else does, or nobody knows yet; `look` tells."""
        ...

    def beat(self, claim: Claim, beat: Beat) -> Claim | None:
        """Say that the holder lives. Returns a later claim when there is one: then it has been replaced."""
        ...


class StoreLease:
    """In an object store, or a directory. Safe for one thread at a time."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._newest = 0
        """Epoch of the newest claim that was seen."""

    def look(self) -> Lead | None:
        """The newest claim; claims have consecutive epochs, so one listing is enough for ever."""
        if not self._newest:
            names = [info.path for info in self._store.list(_CLAIMS)]
            self._newest = _epoch_in(names[-1]) if names else 0
        while (claim := self._read(self._newest + 1)) is not None:
            self._newest = claim.epoch
        claim = self._read(self._newest) if self._newest else None
        return None if claim is None else Lead(claim=claim, beat=self._last_beat(claim))

    def claim(self, claim: Claim) -> bool:
        """See the port. An unknown answer is decided by what lies there."""
        data, where = _encode(claim), _claim_path(claim.epoch)
        try:
            created = self._store.create(where, data)
        except UnknownResultError:
            created = False
        return created or self._store.get(where) == data

    def beat(self, claim: Claim, beat: Beat) -> Claim | None:
        """See the port."""
        if (later := self._read(claim.epoch + 1)) is None:
            self._store.put(_beat_path(claim.epoch), _encode(beat))
        return later

    def _read(self, epoch: int) -> Claim | None:
        data = self._store.get(_claim_path(epoch))
        return None if data is None else msgspec.json.decode(data, type=Claim)

    def _last_beat(self, claim: Claim) -> Beat | None:
        data = self._store.get(_beat_path(claim.epoch))
        return None if data is None else msgspec.json.decode(data, type=Beat)


def is_gone(claim: Claim) -> bool:
    """Whether its process has certainly ended: one of this very machine, that is not there any more."""
    return bool(claim.process) and claim.machine == machine() and claim.process != process_token(claim.pid)


def machine() -> str:
    """The running system and the process namespace in it; empty where that cannot be told."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115 - not a path of files
    except OSError:
        return ""


def process_token(pid: int) -> str:
    """The process and when it was started, so that another one with its pid is another; empty: there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else f"{pid}@{fields[19]}"


def new_claim(epoch: int, *, holder: str, grpc: str, rest: str) -> Claim:
    """By this process."""
    return Claim(
        epoch=Epoch(epoch),
        holder=holder,
        host=socket.gethostname(),
        pid=os.getpid(),
        process=process_token(os.getpid()),
        machine=machine(),
        grpc=grpc,
        rest=rest,
    )


def _claim_path(epoch: int) -> str:
    return f"{_CLAIMS}{epoch:012d}.json"


def _beat_path(epoch: int) -> str:
    return f"{_BEATS}{epoch:012d}.json"


def _epoch_in(path: str) -> int:
    return int(path.removeprefix(_CLAIMS).removesuffix(".json"))


def _encode(value: msgspec.Struct) -> bytes:
    return msgspec.json.encode(value)
