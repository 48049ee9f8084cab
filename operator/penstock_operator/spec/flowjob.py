"""`FlowJob.spec`, as people write it. Defaults are in `effective.py`, never in the stored object."""

from typing import Annotated, Any, Literal

from pydantic import Field

from penstock_operator.spec.base import OPEN, Cron, Doc, Duration, Place, TimeZone, checked, rule

_MEMORY_RULE = rule(
    "!('memory' in self) || type(self['memory']) != string || !self['memory'].endsWith('m')",
    "M006 memory ends in m, which means thousandths of a byte: write Mi or Gi, such as 2Gi",
)
_QUANTITY_RULE = rule(
    "self.all(k, type(self[k]) != string || isQuantity(self[k]))",
    "M006 not a quantity: write a number and a unit without a space, such as 500m (cpu) or 2Gi (memory)",
)
Quantities = Annotated[
    dict[str, Any],
    Field(
        json_schema_extra=checked(
            _QUANTITY_RULE,
            _MEMORY_RULE,
            maxProperties=16,
            additionalProperties={
                "anyOf": [{"type": "integer"}, {"type": "string"}],
                "x-kubernetes-int-or-string": True,
                "maxLength": 32,
            },
        )
    ),
]


class Resources(Doc):
    """What a pod asks for and may use at most."""

    requests: Quantities | None = None
    """What the scheduler sets aside: cpu, memory, ephemeral-storage."""
    limits: Quantities | None = None
    """What the pod may use at most. A memory limit should leave room for the state of the job."""


RESOURCE_RULES = [
    rule(
        f"""!has(self.requests) || !has(self.limits) || !('{name}' in self.requests) || !('{name}' in self.limits)
        || !isQuantity(string(self.requests['{name}'])) || !isQuantity(string(self.limits['{name}']))
        || quantity(string(self.limits['{name}'])).compareTo(quantity(string(self.requests['{name}']))) >= 0""",
        f"M006 limits.{name} is below requests.{name}: raise the limit or lower the request",
    )
    for name in ("cpu", "memory")
]
ResourcesField = Annotated[Resources, Field(json_schema_extra=checked(*RESOURCE_RULES))]
PodTemplate = Annotated[dict[str, Any], Field(json_schema_extra=OPEN)]


class JobManagerSpec(Doc):
    """The pod that coordinates the job."""

    replicas: Annotated[int, Field(ge=1, le=5)] | None = None
    """JobManagers; one leads, the others stand by. Default: 1."""
    resources: ResourcesField | None = None
    """Of the container `main`. Default: 250m CPU and 512Mi asked for, 1Gi at most."""
    pod_template: PodTemplate | None = None
    """Labels, annotations and pod spec to merge into what the controller makes; containers and volumes are found by
    name, and the container of Penstock is called `main`."""


class TaskManagerSpec(Doc):
    """The pods that run the job."""

    slots: Annotated[int, Field(ge=1, le=64)] | None = None
    """Slot processes per pod, about one per core. Pods: parallelism / slots, rounded up. Default: 1."""
    resources: ResourcesField | None = None
    """Of the container `main`. Default: 500m CPU and 1Gi asked for, 2Gi at most."""
    pod_template: PodTemplate | None = None
    """As for the JobManager."""
    termination_grace_period: Duration | None = None
    """How long a pod that has to go may take. Default: 30s."""


class ConfigMapProgram(Doc):
    """Files of a program in a ConfigMap of the same namespace."""

    name: Annotated[str, Field(min_length=1, max_length=253)]
    """The ConfigMap. Its keys become files in /opt/programs, where programs are looked for: entrypoint is then, say,
    hot_items.py:hot_items. Give it another name for another program."""


class ProgramSource(Doc):
    """Where the program comes from when the image does not hold it."""

    config_map: ConfigMapProgram
    """Mounted into every pod of the job."""


class CheckpointSpec(Doc):
    """How state is kept."""

    storage: Place | None = None
    """Journal, checkpoints and, unless told otherwise, savepoints: s3://bucket/folder, or the path of a volume that
    all pods mount. Belongs to this job alone. Needed."""
    interval: Duration | None = None
    """Time between two checkpoints. Default: what the program says, else 10s."""


class Retention(Doc):
    """Which savepoints of the schedule are kept."""

    count: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Most that are kept. Default: 10."""
    age: Duration | None = None
    """Older ones go, but for the newest. Default: none go by age."""


class SavepointsSpec(Doc):
    """When savepoints are taken without being asked for, and where."""

    location: Place | None = None
    """Folder in which each savepoint gets a folder of its own. Default: savepoints/ below checkpoints.storage."""
    schedule: Cron | None = None
    """Five fields of cron."""
    time_zone: TimeZone | None = None
    """Of the schedule, such as Europe/Berlin. Default: UTC."""
    retain: Retention | None = None
    """For savepoints of the schedule alone; nothing else is removed by itself."""
    on_delete: Literal["Take", "Skip"] | None = None
    """Whether deleting the job takes a last savepoint. State in checkpoints.storage stays either way. Default: Skip,
    which ends the job with a checkpoint."""
    delete_timeout: Duration | None = None
    """How long a deletion waits for the job to end in order. Default: 5m."""


class UpgradeSpec(Doc):
    """How a change of image, program or settings takes the state along."""

    mode: Literal["savepoint", "last-state", "stateless"] | None = None
    """savepoint: stop with a savepoint, start from it. last-state: stop with a checkpoint, start from it; also when
    the job is not healthy. stateless: start anew, state is lost. Default: savepoint."""
    restore_check: bool | None = None
    """With mode savepoint: before the old job stops, a short-lived pod with the new image checks that it can go on
    from a savepoint. Default: true."""


class RestoreFrom(Doc):
    """One of the three."""

    savepoint_ref: Annotated[str, Field(max_length=253)] | None = None
    """Name of a FlowSavepoint in this namespace."""
    path: Place | None = None
    """Folder of a savepoint."""
    checkpoint: Annotated[str, Field(max_length=253)] | None = None
    """JOB or JOB@NUMBER of an ended job in the same checkpoints.storage."""


class RestoreSpec(Doc):
    """What a new job starts from. Another value restarts a running job from there, once."""

    from_: Annotated[
        RestoreFrom,
        Field(
            alias="from",
            json_schema_extra=checked(
                rule(
                    "[has(self.savepointRef), has(self.path), has(self.checkpoint)].filter(x, x).size() == 1",
                    "M016 restore.from needs exactly one of savepointRef, path and checkpoint",
                )
            ),
        ),
    ]
    """A savepoint or a checkpoint."""
    allow_non_restored_state: bool | None = None
    """Leave state behind that no operator of the program takes."""
    allow_foreign: bool | None = None
    """The savepoint may be of a job of another name."""
    evolve: bool | None = None
    """Fields of state may be dropped, and key groups be computed anew."""
    map_uids: Annotated[dict[str, str], Field(json_schema_extra={"maxProperties": 100})] | None = None
    """Operators whose uid has changed: old name to new name."""


class RolloutSpec(Doc):
    """How a new revision is watched."""

    timeout: Duration | None = None
    """A revision that has not taken a checkpoint by then is rolled back. Default: 10m."""
    rollback: bool | None = None
    """Go back to the last stable revision, with the same savepoint, when the new one fails before its first
    checkpoint. Default: true."""


class BatchSpec(Doc):
    """For mode batch."""

    retries: Annotated[int, Field(ge=0, le=100)] | None = None
    """How often a run that has failed is started again, from its last checkpoint if it has one. Default: 0."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0)] | None = None
    """Delete the FlowJob this long after its run has ended; not with a schedule. Default: never."""
    schedule: Cron | None = None
    """Run again at these times."""
    time_zone: TimeZone | None = None
    """Of the schedule. Default: UTC."""
    concurrency_policy: Literal["Forbid", "Replace"] | None = None
    """When a run is due and the last one still runs: leave it out, or cancel the last one. Default: Forbid."""


class FlowJobSpec(Doc):
    """What the job is to be."""

    mode: Literal["streaming", "batch"] | None = None
    """streaming runs until it is told otherwise; batch runs to the end of its input. Default: streaming."""
    image: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """With Penstock and, unless `program` says otherwise, the program. Default: the image that the controller was
    given."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """Default: IfNotPresent."""
    image_pull_secrets: (
        Annotated[
            list[dict[str, Any]],
            Field(
                max_length=16,
                json_schema_extra={
                    "items": {
                        "type": "object",
                        "properties": {"name": {"type": "string"}},
                        "required": ["name"],
                    }
                },
            ),
        ]
        | None
    ) = None
    """Secrets of this namespace to pull the image with."""
    service_account_name: Annotated[str, Field(max_length=253)] | None = None
    """For all pods of the job; its token is not mounted unless the pod template says so. Default: default."""
    entrypoint: Annotated[str, Field(min_length=1, max_length=1024)]
    """file.py:function or module:function, as `penstock run` takes it."""
    args: Annotated[list[str], Field(max_length=256)] | None = None
    """What the program finds in sys.argv[1:]."""
    env: (
        Annotated[
            list[dict[str, Any]],
            Field(
                max_length=256,
                json_schema_extra={
                    "items": {
                        "type": "object",
                        "properties": {
                            "name": {"type": "string", "description": "Of the variable."},
                            "value": {"type": "string", "description": "As it is."},
                            "valueFrom": {"type": "object", "description": "As in a pod.", **OPEN},
                        },
                        "required": ["name"],
                    },
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                },
            ),
        ]
        | None
    ) = None
    """Environment of all pods, such as the address and region of the object store."""
    env_from: (
        Annotated[list[dict[str, Any]], Field(max_length=64, json_schema_extra={"items": {"type": "object", **OPEN}})]
        | None
    ) = None
    """As in a pod: Secrets and ConfigMaps whose keys become variables, such as credentials of the object store. The
    controller itself never reads them."""
    program: ProgramSource | None = None
    """Where the program comes from when the image does not hold it."""
    parallelism: Annotated[int | None, Field(json_schema_extra={"x-default": 1})] = None
    """Subtasks per operator; what `kubectl scale` sets. A change moves state while the job runs. Default: 1."""
    max_parallelism: int | None = None
    """Key groups of the state: the most that parallelism can become. Fixed for the life of the job. Default: 128."""
    state: Literal["running", "suspended"] | None = None
    """suspended: stop with a savepoint and remove the pods; running goes on from there. Default: running."""
    settings: Annotated[dict[str, str], Field(json_schema_extra={"maxProperties": 100})] | None = None
    """Settings of the job by name, as `flow.configure` knows them: state.backend, restart.budget and so on."""
    upgrade: UpgradeSpec | None = None
    """How a change of image, program or settings takes the state along."""
    restore: RestoreSpec | None = None
    """What the job starts from."""
    savepoints: SavepointsSpec | None = None
    """When savepoints are taken, where, and how long they are kept."""
    checkpoints: CheckpointSpec | None = None
    """How state is kept."""
    rollout: RolloutSpec | None = None
    """How a new revision is watched."""
    job_manager: JobManagerSpec | None = None
    """The pod that coordinates the job."""
    task_manager: TaskManagerSpec | None = None
    """The pods that run the job."""
    batch: BatchSpec | None = None
    """For mode batch."""


_MAX = "(has(self.maxParallelism) ? self.maxParallelism : 128)"
_OLD_MAX = "(has(oldSelf.maxParallelism) ? oldSelf.maxParallelism : 128)"
SPEC_RULES = [
    rule(
        "has(self.checkpoints) && has(self.checkpoints.storage)",
        "M007 spec.checkpoints.storage is needed: it holds journal and state of the job, such as s3://bucket/folder",
    ),
    rule(
        "!has(self.parallelism) || self.parallelism >= 1",
        "M002 spec.parallelism must be 1 or more; to stop the job, set spec.state to suspended",
    ),
    rule(
        "!has(self.maxParallelism) || (self.maxParallelism >= 1 && self.maxParallelism <= 32768)",
        "M002 spec.maxParallelism must be from 1 to 32768",
    ),
    rule(
        f"!has(self.parallelism) || self.parallelism <= {_MAX}",
        "M003 spec.parallelism is above spec.maxParallelism (128 when not given): lower it; maxParallelism can only be"
        " raised for a new job",
    ),
    rule(
        f"{_MAX} == {_OLD_MAX}",
        "M004 spec.maxParallelism cannot change: key groups of the state would be computed anew. Create another job,"
        " with restore.from and restore.evolve",
    ),
    rule(
        "(has(self.mode) ? self.mode : 'streaming') == (has(oldSelf.mode) ? oldSelf.mode : 'streaming')",
        "M017 spec.mode cannot change: create another job",
    ),
    rule(
        "!has(self.batch) || (has(self.mode) && self.mode == 'batch')",
        "M017 spec.batch is for mode batch: set spec.mode to batch, or remove spec.batch",
    ),
    rule(
        "!has(self.savepoints) || !has(self.savepoints.schedule) || !has(self.mode) || self.mode == 'streaming'",
        "M017 spec.savepoints.schedule is for mode streaming: remove it, or use spec.batch.schedule",
    ),
    rule(
        "!has(self.batch) || !has(self.batch.schedule) || !has(self.batch.ttlSecondsAfterFinished)",
        "M017 a job with a schedule never ends: remove spec.batch.ttlSecondsAfterFinished or spec.batch.schedule",
    ),
]
