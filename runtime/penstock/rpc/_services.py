"""The two services, one per direction, named after who answers.

Every message is told in an envelope with the epoch of the JobManager process that it belongs to. An answer of
`accepted=False` means: you talk to, or you are, somebody who has been replaced; it is no error.
"""

from collections.abc import Awaitable, Callable

import msgspec

from penstock.model.ids import TaskManagerId
from penstock.model.messages import Directed, ToJobManager
from penstock.rpc._transport import Channel, Server

_TELL_JOBMANAGER = "/penstock.JobManager/Tell"
_TELL_TASKMANAGER = "/penstock.TaskManager/Tell"


class ToldJobManager(msgspec.Struct, frozen=True, kw_only=True):
    """TaskManager -> JobManager."""

    task_manager: TaskManagerId
    epoch: str
    """Of the JobManager that the sender is registered with; empty in a Register."""
    message: ToJobManager


class ToldTaskManager(msgspec.Struct, frozen=True, kw_only=True):
    """JobManager -> TaskManager."""

    epoch: str
    directed: Directed


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the message was taken, and by which JobManager process."""

    accepted: bool
    epoch: str


TellJobManager = Callable[[ToldJobManager], Awaitable[Reply]]
TellTaskManager = Callable[[ToldTaskManager], Awaitable[Reply]]


def serve_jobmanager(server: Server, tell: TellJobManager) -> None:
    """Let `server` answer TaskManagers."""
    server.add(_TELL_JOBMANAGER, ToldJobManager, tell)


def serve_taskmanager(server: Server, tell: TellTaskManager) -> None:
    """Let `server` answer the JobManager."""
    server.add(_TELL_TASKMANAGER, ToldTaskManager, tell)


def jobmanager_channel(address: str) -> Channel[ToldJobManager, Reply]:
    """To the JobManager."""
    return Channel(address, _TELL_JOBMANAGER, Reply)


def taskmanager_channel(address: str) -> Channel[ToldTaskManager, Reply]:
    """To a TaskManager."""
    return Channel(address, _TELL_TASKMANAGER, Reply)
