"""Words that other people's tools see: API group, labels, annotations, names of children.

Labels and annotations of a FlowJob are not copied to its children: tools that track objects by label would take the
children for their own.
"""

import re
from collections.abc import Mapping
from typing import Final

GROUP: Final = "penstock.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
FLOWJOB: Final = "FlowJob"
FLOWSAVEPOINT: Final = "FlowSavepoint"

FIELD_MANAGER: Final = "penstock-operator"
FINALIZER: Final = f"{GROUP}/finalizer"

JOB_LABEL: Final = f"{GROUP}/job"
REVISION_LABEL: Final = f"{GROUP}/revision"
SCHEDULED_LABEL: Final = f"{GROUP}/scheduled"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGED_SELECTOR: Final = f"{MANAGED_BY}={FIELD_MANAGER}"
COMPONENT_LABEL: Final = "app.kubernetes.io/component"

RESTART_ANNOTATION: Final = f"{GROUP}/restart"
"""Another value is another revision: the job is restarted with its state; a refused revision is tried again."""
FORCE_DELETE_ANNOTATION: Final = f"{GROUP}/force-delete"
PAUSE_ANNOTATION: Final = f"{GROUP}/paused"

JOBMANAGER: Final = "jobmanager"
TASKMANAGER: Final = "taskmanager"
RUN: Final = "run"
"""Component of short-lived pods: submission, restore check, removal of savepoints."""

REVISION: Final = "revision"
"""Component of our own ControllerRevisions; those of StatefulSets carry labels of their pods."""

MAX_NAME: Final = 40
"""`<name>-taskmanager-<hash of a revision>` has to fit into the 63 characters of a label."""
NAME_PATTERN: Final = "^[a-z]([-a-z0-9]*[a-z0-9])?$"

RPC_PORT: Final = 6123
REST_PORT: Final = 8081


def jobmanager(job: str) -> str:
    """StatefulSet, Service and PodDisruptionBudget."""
    return f"{job}-{JOBMANAGER}"


def taskmanager(job: str) -> str:
    """StatefulSet, Service and PodDisruptionBudget."""
    return f"{job}-{TASKMANAGER}"


def engine_job(job: str, uid: str, serial: int) -> str:
    """Id of a job in the engine: never used again, not even by a later FlowJob of the same name."""
    return f"{job}-{uid[:5]}-{serial}"


def is_own_engine_job(engine_id: str, job: str, uid: str) -> bool:
    """Whether this very FlowJob has submitted it."""
    return re.fullmatch(re.escape(f"{job}-{uid[:5]}-") + r"\d+", engine_id) is not None


def labels(job: str, component: str) -> dict[str, str]:
    """Of every child."""
    return {
        "app.kubernetes.io/name": "penstock",
        "app.kubernetes.io/instance": job,
        COMPONENT_LABEL: component,
        MANAGED_BY: FIELD_MANAGER,
        JOB_LABEL: job,
    }


def selector(job: str, component: str) -> dict[str, str]:
    """What a StatefulSet and a Service select by; may never change."""
    return {JOB_LABEL: job, COMPONENT_LABEL: component}


def as_text(selected: Mapping[str, str]) -> str:
    """A label selector as the API takes it."""
    return ",".join(f"{key}={value}" for key, value in sorted(selected.items()))
