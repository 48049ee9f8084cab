"""`penstock jobmanager` and `penstock taskmanager`: the processes of a cluster, by hand."""

import asyncio
import os
import socket
from typing import Annotated

import typer

from penstock.config import JobManagerSettings, TaskManagerSettings, configure_logging

LogLevel = Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")]


def jobmanager(
    state_dir: Annotated[
        str,
        typer.Option("--state-dir", metavar="DIR|URI", help="Journals and checkpoints; a path or s3://bucket/folder."),
    ],
    port: Annotated[int, typer.Option("--port", help="gRPC, for TaskManagers; 0: any.")] = 6123,
    rest_port: Annotated[int, typer.Option("--rest-port", help="REST, for people; 0: any.")] = 8081,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on. There is no login: open it with care.")
    ] = "127.0.0.1",
    advertise: Annotated[
        str, typer.Option("--advertise", metavar="HOST", help="Name under which others reach it. Default: --host.")
    ] = "",
    standby: Annotated[
        bool, typer.Option("--standby/--no-standby", help="When another one leads: wait for its end, or refuse.")
    ] = True,
    log_level: LogLevel = "info",
) -> None:
    """Run a JobManager until it is told to end (SIGTERM, Ctrl-C). Jobs go on when it is started again.

    Of several with the same --state-dir one leads, the others stand by: when it ends, one of them takes its jobs over
    within seconds. One that finds itself replaced ends with exit code 3.

    Examples: `penstock jobmanager --state-dir /var/lib/penstock --port 6123 --rest-port 8081`,
    `penstock jobmanager --state-dir s3://bucket/penstock --host 0.0.0.0 --advertise jm-2.example.com`
    """
    from penstock.jobmanager import server

    configure_logging(level=log_level)
    settings = JobManagerSettings(
        state_dir=state_dir, host=host, port=port, rest_port=rest_port, advertise=advertise, standby=standby
    )
    server.run(settings)


def taskmanager(
    jobmanager: Annotated[
        str,
        typer.Option(
            "--jobmanager",
            metavar="HOST:PORT[,...]",
            help="gRPC of the JobManager, or of each when there are several.",
        ),
    ],
    slots: Annotated[int, typer.Option("--slots", min=1, help="Slot processes; about one per core.")] = 1,
    name: Annotated[str | None, typer.Option("--id", help="Unique in the cluster. Default: host and pid.")] = None,
    host: Annotated[str, typer.Option("--host", help="Address where other processes reach this one.")] = "127.0.0.1",
    log_level: LogLevel = "info",
) -> None:
    """Run a TaskManager until it is told to end (SIGTERM, Ctrl-C); its slots end with it.

    Example: `penstock taskmanager --jobmanager 10.0.0.5:6123 --slots 4 --host 10.0.0.6`
    """
    from penstock.taskmanager import server

    configure_logging(level=log_level)
    settings = TaskManagerSettings(
        id=name or f"{socket.gethostname()}-{os.getpid()}", jobmanager=jobmanager, slots=slots, host=host
    )
    asyncio.run(server.serve(settings))
