"""Whether a TaskManager can run what a client has built (P006)."""

from collections.abc import Mapping

from penstock.model.errors import UserError
from penstock.model.ids import TaskManagerId


def mismatch(built: Mapping[str, str], task_managers: Mapping[TaskManagerId, Mapping[str, str]]) -> UserError | None:
    """The first difference that matters. Python: major and minor, since pickled functions hold its bytecode."""
    for name, found in task_managers.items():
        for part in ("python", "penstock", "polars"):
            wanted, there = built.get(part, ""), found.get(part, "")
            if part == "python":
                wanted, there = (".".join(version.split(".")[:2]) for version in (wanted, there))
            if wanted and there and wanted != there:
                return UserError(
                    "P006",
                    f"the job was built with {part} {wanted}, TaskManager {name} has {there}",
                    fix=f"use {part} {there} where the job is submitted, or start TaskManagers with {wanted}",
                )
    return None
