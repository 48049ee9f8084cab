"""/healthz, /readyz and /metrics."""

import time
from typing import Final

from aiohttp import web
from prometheus_client import generate_latest

from penstock_operator import metrics
from penstock_operator.controller import FULL_PASS_SECONDS, Controller
from penstock_operator.leading import Leadership

STALE_SECONDS: Final = 5 * FULL_PASS_SECONDS
"""A leader that has not listed everything for this long sees nothing any more, however well it answers."""


def application(controller: Controller, leadership: Leadership, clock: float) -> web.Application:
    """`clock`: when the process began to lead, or to wait."""

    def age() -> float:
        return time.monotonic() - (controller.last_full_pass or clock)

    async def healthz(_request: web.Request) -> web.Response:
        if leadership.held and age() > STALE_SECONDS:
            return web.Response(status=503, text=f"the last full pass is {age():.0f} s old\n")
        return web.Response(text="ok\n")

    async def readyz(_request: web.Request) -> web.Response:
        if leadership.held and controller.last_full_pass is None:
            return web.Response(status=503, text="not everything is listed yet\n")
        return web.Response(text="leads\n" if leadership.held else "stands by\n")

    async def show_metrics(_request: web.Request) -> web.Response:
        metrics.leading.set(leadership.held)
        metrics.full_pass_age.set(age())
        metrics.queue.set(len(controller.looks))
        return web.Response(body=generate_latest(), headers={"Content-Type": "text/plain; version=0.0.4"})

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", show_metrics)
    return app
