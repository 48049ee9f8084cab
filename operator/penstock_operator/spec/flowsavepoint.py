"""`FlowSavepoint`: creating one takes a savepoint; the object is its entry in the catalogue, and outlives the job."""

from typing import Annotated, Any, Literal

from pydantic import Field

from penstock_operator.spec.base import OPEN, Doc, Duration, Place, Timestamp, rule
from penstock_operator.spec.status import Condition, Conditions


class JobRef(Doc):
    """A FlowJob of the same namespace."""

    name: Annotated[str, Field(min_length=1, max_length=253)]
    """Of the FlowJob."""


class FlowSavepointSpec(Doc):
    """What is to be taken, where, and what becomes of it."""

    job_ref: JobRef
    """The job whose state it is. For an existing savepoint: the one it was of."""
    location: Place | None = None
    """Folder in which it gets a folder of its own. Default: what the job says."""
    existing: Place | None = None
    """Folder of a savepoint that is there already: nothing is taken, it is verified and entered in the catalogue."""
    deletion_policy: Literal["Retain", "Delete"] | None = None
    """What becomes of the files when this object is deleted. Default: Retain."""
    timeout: Duration | None = None
    """How long it may take. Default: 10m."""


class FlowSavepointStatus(Doc):
    """How far it is."""

    observed_generation: int | None = None
    """Of the spec that this status speaks of."""
    phase: str | None = None
    """Pending, Taking, Verifying, Completed or Failed."""
    conditions: Conditions[Condition] = ()
    """Ready, Reconciling, Stalled."""
    location: str | None = None
    """Folder of the savepoint."""
    job_id: str | None = None
    """Job of the engine that it is of."""
    checkpoint: int | None = None
    """Number of the checkpoint that it is."""
    size: int | None = None
    """Bytes of its tables."""
    size_text: str | None = None
    """For people."""
    key_groups: int | None = None
    """Key groups of its state: maxParallelism of the job."""
    checksum: str | None = None
    """SHA-256 of its manifest, which holds those of all its files."""
    progress: str | None = None
    """While it is taken: subtasks that are done."""
    access: Annotated[dict[str, Any], Field(json_schema_extra=OPEN)] | None = None
    """Image, environment and account of the job that took it, as its spec had them: they are what can read the
    savepoint again, and remove it, when the job is gone. Names of Secrets, never what is in them."""
    started_at: Timestamp | None = None
    """When it was asked for."""
    completed_at: Timestamp | None = None
    """When it was whole."""
    message: str | None = None
    """What is wrong, and what to do."""


SAVEPOINT_RULES = [
    rule("self == oldSelf", "M018 the spec of a FlowSavepoint cannot change: create another one"),
]
