"""The place of an operator's state on the disk, and its share of the slot's memory."""

from pathlib import Path

from penstock.checkpoint.state_objects import safe_name
from penstock.model import specs
from penstock.model.ids import SubtaskId, Uid
from penstock.model.tasks import Deployment
from penstock.operators.base import StateHome


def state_home(deployment: Deployment, subtask: SubtaskId, uid: Uid, folder: Path | None) -> StateHome:
    """The place of one operator's state, and its share of the slot's memory."""
    settings = deployment.settings.state
    operators = [link.operator for task in deployment.tasks for link in task.chain]
    sharing = sum(isinstance(operator.spec, specs.Process | specs.CoProcess | specs.BuiltIn) for operator in operators)
    place = None if folder is None else folder / f"{safe_name(uid)}-{subtask.index}"
    return StateHome(settings.backend, place, settings.memory_budget // max(1, sharing))
