"""What a decision may ask for. Each step may be carried out twice without harm: names are chosen before."""

from dataclasses import dataclass

from penstock_operator.deciding.facts import Problem
from penstock_operator.spec.status import Memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The pods that there are to be."""

    revision: str
    jobmanagers: int
    taskmanagers: int


@dataclass(frozen=True, slots=True)
class AddFinalizer:
    """So that a deletion waits for the job to end in order."""


@dataclass(frozen=True, slots=True)
class RemoveFinalizer:
    """Let the deletion go on."""


@dataclass(frozen=True, slots=True)
class DeletePods:
    """Their StatefulSet makes them anew, of its present template."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """Hand the program in, by a pod of its own image."""

    run: str
    job_id: str
    revision: str
    parallelism: int
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRestore:
    """Ask the new image whether it can go on from a savepoint."""

    run: str
    revision: str
    parallelism: int
    savepoint: str


@dataclass(frozen=True, slots=True)
class DeleteRun:
    """It has told what it had to tell."""

    run: str


@dataclass(frozen=True, slots=True)
class RemoveSavepoint:
    """Of a check: nobody needs it any more. The run that does it is the sign that it was asked for."""

    run: str
    uri: str
    revision: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeSavepoint:
    """Under a name, so that it is one."""

    job_id: str
    name: str
    stop: bool


@dataclass(frozen=True, slots=True)
class StopJob:
    """With a last checkpoint."""

    job_id: str


@dataclass(frozen=True, slots=True)
class CancelJob:
    """Now; its last checkpoint stays."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Rescale:
    """While it runs."""

    job_id: str
    parallelism: int


@dataclass(frozen=True, slots=True)
class DeleteSelf:
    """The FlowJob: its time is over."""


Step = (
    AddFinalizer
    | RemoveFinalizer
    | DeletePods
    | Submit
    | CheckRestore
    | DeleteRun
    | RemoveSavepoint
    | TakeSavepoint
    | StopJob
    | CancelJob
    | Rescale
    | DeleteSelf
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to remember, then what to do.

    The memory is written first. A controller that dies in between is followed by one that reads it, decides the same,
    and does what was left.
    """

    memory: Memory
    phase: str
    workload: Workload | None = None
    """None: leave the pods as they are."""
    steps: tuple[Step, ...] = ()
    waiting: str = ""
    """What has to happen first."""
    stalled: Problem | None = None
    """Nothing will happen until somebody does something."""
    scaling_limited: Problem | None = None
    warning: str = ""
    seconds: float = 10.0
    """Look again after so long, when nothing is heard before."""
