"""The embedded cluster: real JobManager and TaskManager processes on this machine, for one job.

Names are loaded when they are first used: the cluster's own processes start through this package.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.local.cluster import LocalCluster
    from penstock.local.running import JobFailedError, RunResult, run_flow, run_graph

__all__ = ["JobFailedError", "LocalCluster", "RunResult", "run_flow", "run_graph"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'penstock.local' has no attribute {name!r}")
    module = "penstock.local.cluster" if name == "LocalCluster" else "penstock.local.running"
    return getattr(importlib.import_module(module), name)
