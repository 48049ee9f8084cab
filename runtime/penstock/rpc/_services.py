"""The two services, one per direction, named after who answers.

Every message is told in an envelope with the epoch of the JobManager that it belongs to. An answer of
`accepted=False` means: you talk to, or you are, somebody who does not lead or has been replaced; it is no error.
"""

from collections.abc import Awaitable, Callable

import msgspec

from penstock.model.ids import Epoch, TaskManagerId
from penstock.model.messages import Directed, ToJobManager
from penstock.rpc._transport import Channel, Server

_TELL_JOBMANAGER = "/penstock.JobManager/Tell"
_TELL_TASKMANAGER = "/penstock.TaskManager/Tell"


class ToldJobManager(msgspec.Struct, frozen=True, kw_only=True):
    """TaskManager -> JobManager."""

    task_manager: TaskManagerId
    epoch: Epoch
    """In which the JobManager leads that the sender is registered with; 0 in a Register."""
    message: ToJobManager


class ToldTaskManager(msgspec.Struct, frozen=True, kw_only=True):
    """JobManager -> TaskManager."""

    epoch: Epoch
    directed: Directed


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the message was taken, and in which epoch."""

    accepted: bool
    epoch: Epoch
    """0: this one does not lead."""
    leader: str = ""
    """gRPC address of who does, as far as this one knows."""


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
