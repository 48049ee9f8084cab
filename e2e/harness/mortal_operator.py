"""The controller, killed after each change that it makes: `mortal_operator.py CUTS`, then the controller's words.

The change has been made and its answer is lost, as when the pod is killed at that very moment. CUTS is a file with a
line per point at which that has happened: who is started again lives through these, and dies at the next one.
"""

import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from penstock_operator.__main__ import main
from penstock_operator.engine import Engines
from penstock_operator.kube import Kube

Call = Callable[..., Awaitable[Any]]


def mortal(call: Call, point_of: Callable[..., str], cuts: Path) -> Call:
    """The same call, which nobody survives who makes a change in it for the first time."""
    lived_through = set(cuts.read_text().splitlines()) if cuts.exists() else set()

    async def called(*words: Any, **options: Any) -> Any:
        answer = await call(*words, **options)
        point = point_of(*words, **options)
        if not point.startswith("GET ") and point not in lived_through:
            with cuts.open("a") as file:
                file.write(point + "\n")
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    return called


def kube_point(_: Kube, method: str, path: str, *, body: Mapping[str, Any] | None = None, **_options: Any) -> str:
    """A status counts once for each step of a change; those of every second, that a checkpoint was taken, do not."""
    if method == "POST" and path.endswith("/events"):
        return f"POST {path} {(body or {}).get('reason')}"
    if not path.endswith("/status"):
        finalizers = (body or {}).get("metadata", {}).get("finalizers")
        return f"{method} {path}" + (f" finalizers {finalizers}" if finalizers is not None else "")
    status = (body or {}).get("status", {})
    change = status.get("change", {})
    return f"{method} {path} {status.get('phase')} {change.get('kind')} {change.get('step')} {status.get('serial')}"


def engine_point(_: Engines, _address: str, method: str, path: str, **_options: Any) -> str:
    """Of the JobManager's REST interface."""
    return f"{method} engine{path}"


if __name__ == "__main__":
    cuts = Path(sys.argv[1])
    Kube._call = mortal(Kube._call, kube_point, cuts)  # type: ignore[method-assign]
    Engines._call = mortal(Engines._call, engine_point, cuts)  # type: ignore[method-assign]
    sys.exit(main(sys.argv[2:]))
