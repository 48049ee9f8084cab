"""How processes of a cluster behave: one frozen tree of settings, and the form of their logs."""

from penstock.config._processes import JobManagerSettings, LeaseSettings, LinkSettings, TaskManagerSettings
from penstock.config.logs import BoundLogger, configure_logging, loggable
from penstock.config.versions import installed_versions

__all__ = [
    "BoundLogger",
    "JobManagerSettings",
    "LeaseSettings",
    "LinkSettings",
    "TaskManagerSettings",
    "configure_logging",
    "installed_versions",
    "loggable",
]
