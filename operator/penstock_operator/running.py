"""The process: leadership first, then watching and the loop, until SIGTERM."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from aiohttp import web

from penstock_operator.controller import Controller
from penstock_operator.engine import Engines
from penstock_operator.handlers import watch
from penstock_operator.health import application
from penstock_operator.kube import Kube, connection
from penstock_operator.leading import Leadership, LeadershipLostError, own_identity

logger = logging.getLogger(__name__)
_PLAIN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """From flags and environment."""

    namespaces: tuple[str, ...]
    default_image: str
    own_namespace: str
    lease: str = "penstock-operator"
    port: int = 8080
    leader_election: bool = True
    log_level: str = "INFO"


class JsonFormatter(logging.Formatter):
    """One object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Message and facts."""
        facts = {key: value for key, value in vars(record).items() if key not in _PLAIN}
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **facts,
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure_logging(level: str) -> None:
    """To standard output; kopf only when something is wrong."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in ("kopf", "aiohttp", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)


async def run(options: Options) -> int:
    """Until it is told to end; the exit code."""
    configure_logging(options.log_level)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with Kube(connection()) as kube, Engines() as engines:
        leadership = Leadership(kube, options.own_namespace, own_identity(), options.lease)
        controller = Controller(kube, engines, default_image=options.default_image, namespaces=options.namespaces)
        runner = web.AppRunner(application(controller, leadership, time.monotonic()), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, port=options.port).start()
        logger.info("started", extra={"namespaces": options.namespaces or "all", "port": options.port})
        try:
            return await _lead(options, leadership, controller, stop)
        finally:
            await leadership.release()
            await runner.cleanup()


async def _lead(options: Options, leadership: Leadership, controller: Controller, stop: asyncio.Event) -> int:
    stopping = asyncio.create_task(stop.wait())
    if options.leader_election:
        acquiring = asyncio.create_task(leadership.acquire())
        await asyncio.wait({acquiring, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            acquiring.cancel()
            return 0
        acquiring.result()
    else:
        leadership.held = True
    work = [
        asyncio.create_task(watch(controller, options.namespaces, stop)),
        asyncio.create_task(controller.run()),
    ]
    if options.leader_election:
        work.append(asyncio.create_task(leadership.keep()))
    done, _ = await asyncio.wait({*work, stopping}, return_when=asyncio.FIRST_COMPLETED)
    failed = [task for task in done if task is not stopping and not stop.is_set()]
    for task in failed:
        if isinstance(task.exception(), LeadershipLostError):
            # Not a moment longer than allowed: what is under way must not reach the API server any more.
            logger.error("leadership lost")
            sys.stdout.flush()
            os._exit(1)
        logger.error("ended by itself", exc_info=task.exception())
    stop.set()
    for task in work:
        task.cancel()
    for task in work:
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task
    return 1 if failed else 0
