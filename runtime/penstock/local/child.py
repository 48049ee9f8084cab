"""What the processes of an embedded cluster run: `python -m penstock.local ROLE SETTINGS`.

The standard input is a pipe from the parent. It carries nothing; when it closes, the parent is gone, however it
went, and the child ends too.
"""

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time

import msgspec

from penstock.config import JobManagerSettings, TaskManagerSettings, configure_logging
from penstock.model.errors import UserError

EXIT_USER_ERROR = 2
"""Starting it again would not help."""

_GRACE_SECONDS = 5.0
"""For an orderly end after the parent has gone; then it ends at once."""


def run(role: str, settings: str) -> None:
    """Until SIGTERM, or until the parent is gone."""
    configure_logging()
    threading.Thread(target=_end_with_parent, name="parent-watch", daemon=True).start()
    if role == "jobmanager":
        from penstock.jobmanager import server as jobmanager

        jobmanager.run(msgspec.json.decode(settings, type=JobManagerSettings))
    else:
        from penstock.taskmanager import server as taskmanager

        asyncio.run(taskmanager.serve(msgspec.json.decode(settings, type=TaskManagerSettings)))


def _end_with_parent() -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 1):
            pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_SECONDS)
    os._exit(1)


def main() -> None:
    """Run what the arguments say."""
    try:
        run(sys.argv[1], sys.argv[2])
    except UserError as error:
        print(error.render(), file=sys.stderr)
        sys.exit(EXIT_USER_ERROR)
