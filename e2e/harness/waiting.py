"""Waiting for a condition, with a deadline."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(what: str, ask: Callable[[], T | None], *, seconds: float, every: float = 0.25) -> T:
    """The first answer of `ask` that is not None or False. `what` is for the message: `job orders is running`."""
    deadline = time.monotonic() + seconds
    while not (answer := ask()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:.0f} s: {what}")
        time.sleep(every)
    return answer
