"""A JobManager that kills itself at a moment of its third checkpoint: `dying_jobmanager.py MOMENT SETTINGS`."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from penstock.checkpoint import journal
from penstock.checkpoint.coordinator import Coordinator
from penstock.config import JobManagerSettings, configure_logging
from penstock.jobmanager import server
from penstock.jobmanager.peers import Peer
from penstock.model.messages import Commit, Directed

CHECKPOINT = 3
DELIVERY_SECONDS = 0.3
"""For one Commit to arrive, before the other one would have been sent."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def before_the_last_acknowledgement() -> None:
    acknowledge = Coordinator.acknowledge

    def dying(self: Coordinator, checkpoint: Any, subtask: Any, handle: Any) -> Any:
        if checkpoint >= CHECKPOINT and self.pending is not None and len(self.pending.waiting) == 1:
            die()
        return acknowledge(self, checkpoint, subtask, handle)

    Coordinator.acknowledge = dying  # type: ignore[method-assign]


def before_the_manifest() -> None:
    append = journal.append

    def dying(store: Any, entry: Any) -> Any:
        if is_due(entry):
            die()
        return append(store, entry)

    journal.append = dying


def after_the_manifest() -> None:
    append = journal.append

    def dying(store: Any, entry: Any) -> Any:
        result = append(store, entry)
        if is_due(entry):
            die()
        return result

    journal.append = dying


def in_mid_commit() -> None:
    send, first = Peer.send, list[Peer]()

    def dying(self: Peer, directed: Directed) -> None:
        if isinstance(directed.message, Commit) and directed.message.checkpoint >= CHECKPOINT:
            first.append(self)
            if self is not first[0]:
                asyncio.get_running_loop().call_later(DELIVERY_SECONDS, die)
                return
        send(self, directed)

    Peer.send = dying  # type: ignore[method-assign]


def is_due(entry: journal.JournalEntry) -> bool:
    return isinstance(entry, journal.CheckpointCompleted) and entry.manifest.checkpoint >= CHECKPOINT


MOMENTS: dict[str, Callable[[], None]] = {
    "before the last acknowledgement": before_the_last_acknowledgement,
    "before the manifest": before_the_manifest,
    "after the manifest": after_the_manifest,
    "in mid-commit": in_mid_commit,
}

if __name__ == "__main__":
    MOMENTS[sys.argv[1]]()
    configure_logging()
    server.run(msgspec.json.decode(sys.argv[2], type=JobManagerSettings))
