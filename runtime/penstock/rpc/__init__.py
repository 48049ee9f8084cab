"""How processes of a cluster talk: gRPC between JobManager and TaskManagers, REST from clients to the JobManager."""

from penstock.rpc._services import (
    Reply,
    TellJobManager,
    TellTaskManager,
    ToldJobManager,
    ToldTaskManager,
    jobmanager_channel,
    serve_jobmanager,
    serve_taskmanager,
    taskmanager_channel,
)
from penstock.rpc._transport import Channel, RpcError, Server
from penstock.rpc.rest_client import RestClient, UnreachableError

__all__ = [
    "Channel",
    "Reply",
    "RestClient",
    "RpcError",
    "Server",
    "TellJobManager",
    "TellTaskManager",
    "ToldJobManager",
    "ToldTaskManager",
    "UnreachableError",
    "jobmanager_channel",
    "serve_jobmanager",
    "serve_taskmanager",
    "taskmanager_channel",
]
