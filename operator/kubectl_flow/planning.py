"""`kubectl flow plan`: what the controller would do for a manifest, by the controller's own decision."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer
import yaml

from kubectl_flow import short_pods
from kubectl_flow.jobs import status_of
from kubectl_flow.kubectl import ContextOption, Kubectl, NamespaceOption, Object, cluster
from penstock.local import figures
from penstock.model.errors import UserError
from penstock_operator import border, names
from penstock_operator.deciding.decide import decide
from penstock_operator.deciding.facts import Desired, Engine, EngineJob, Seen
from penstock_operator.deciding.outcomes import CHANGE_CLASSES
from penstock_operator.deciding.steps import CheckRestore
from penstock_operator.moments import text_of, utc_now
from penstock_operator.resources import runs
from penstock_operator.spec.flowjob import FlowJobSpec
from penstock_operator.spec.status import FlowJobStatus, Memory

_NEW_UID: Final = "00000000-0000-0000-0000-000000000000"
_WORDS: Final = {
    "none": "nothing of the job changes",
    "create": "a new job",
    "rescale": "the job runs on; key groups move",
    "rollout": "the job stops and goes on as another program",
    "restart": "the job stops, or starts",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What would come of a manifest."""

    change_class: str
    kind: str = ""
    """Of the change that would begin; empty: none."""
    problem: str = ""
    """Why nothing would begin."""
    fields: tuple[str, ...] = ()
    """Of the spec that differ."""


def plan(
    file: Annotated[
        str, typer.Option("--filename", "-f", metavar="FILE", help="With a FlowJob; - is standard input.")
    ],
    check: Annotated[
        bool, typer.Option("--check", help="Have the new image look at a savepoint, in a short-lived pod.")
    ] = False,
    savepoint: Annotated[
        str | None,
        typer.Option("--savepoint", metavar="NAME", help="FlowSavepoint to look at. Default: the newest of the job."),
    ] = None,
    timeout: Annotated[str, typer.Option("--timeout", metavar="5m", help="Of the look at the savepoint.")] = "5m",
    namespace: NamespaceOption = None,
    context: ContextOption = None,
) -> None:
    """Say what applying a manifest would do to a job, without doing it.

    The API server checks the manifest (dry run); then the controller's decision is made here. Ends with 1 when the
    change would be refused.

    Examples: `kubectl flow plan -f job.yaml`, `kubectl flow plan -f job.yaml --check`
    """
    kubectl = cluster(namespace, context)
    refused = False
    for manifest in _flowjobs(file):
        name = manifest["metadata"]["name"]
        wanted = _dry_run(kubectl, manifest)
        live = _live(kubectl, name)
        made = plan_of(live, wanted)
        print(f"{name}: {made.change_class}: {_WORDS[made.change_class]}")
        for line in _details(live, wanted, made):
            print(f"  {line}")
        refused |= bool(made.problem)
        if check:
            refused |= not _check(kubectl, live or wanted, wanted, savepoint, timeout)
    raise typer.Exit(1 if refused else 0)


def plan_of(live: Object | None, wanted: Object) -> Plan:
    """`live`: as it is; `wanted`: as the API server would store it."""
    now = utc_now()
    meta = {"uid": _NEW_UID, "creationTimestamp": text_of(now), **wanted["metadata"]}
    generation = (live or {"metadata": {"generation": 0}})["metadata"]["generation"] + 1
    meta |= {"generation": generation, "finalizers": [names.FINALIZER]}
    body = {**wanted, "metadata": meta, "status": (live or {}).get("status") or {}}
    read = border.read(body, now, savepoints=_AnySavepoint(), storages={})
    fields = _differing((live or {}).get("spec") or {}, wanted["spec"])
    if read.desired.invalid is not None:
        return Plan(change_class="none", problem=read.desired.invalid.text, fields=fields)
    memory = Memory.model_validate({field: getattr(read.status, field) for field in Memory.model_fields})
    if memory.change is not None:
        # What is under way ends first; what would begin then is what is told.
        memory = memory.model_copy(update={"change": None})
    decision = decide(read.desired, memory, _seen(read, memory))
    change = decision.memory.change
    if decision.stalled is not None:
        return Plan(change_class="none", problem=decision.stalled.text, fields=fields)
    if change is None:
        return Plan(change_class="none", fields=fields)
    return Plan(change_class=CHANGE_CLASSES.get(change.kind, "restart"), kind=change.kind, fields=fields)


def groups_that_move(before: int, after: int, groups: int) -> int:
    """Key groups that get another subtask; a subtask has a range of them."""
    return sum(group * before // groups != group * after // groups for group in range(groups))


class _AnySavepoint(dict[str, str]):
    """A manifest may name a savepoint that is still to be taken."""

    def get(self, key: str, default: Any = None) -> Any:
        return f"savepoint {key}"


def _seen(read: border.Read, memory: Memory) -> Seen:
    """What is so, as far as the status tells it."""
    engine = None
    if memory.job is not None:
        state = read.status.engine.state if read.status.engine is not None else "running"
        job = EngineJob(id=memory.job.id, state=state or "running", parallelism=memory.job.parallelism, checkpoints=1)
        engine = Engine(jobs=(job,), slots=memory.job.parallelism)
    known = {read.desired.revision, *({memory.job.revision} if memory.job is not None else ())}
    return Seen(now=utc_now(), engine=engine, slots_per_pod=dict.fromkeys(known, _slots(read.spec)))


def _slots(spec: FlowJobSpec) -> int:
    return (spec.task_manager and spec.task_manager.slots) or 1


def _details(live: Object | None, wanted: Object, made: Plan) -> list[str]:
    if made.problem:
        return [f"refused: {made.problem}"]
    said = status_of(live) if live is not None else FlowJobStatus()
    spec = FlowJobSpec.model_validate(wanted["spec"])
    lines = [f"changed: {', '.join(made.fields)}"] if made.fields and live is not None else []
    if said.change is not None:
        lines.append(f"after the {said.change.kind} that is under way")
    if made.kind in {"Create", "Rescale"}:
        lines += _sizes(said, spec, made.kind)
    if made.change_class in {"rollout", "restart"}:
        lines.append(_state_words(border.read(_complete(wanted), utc_now(), savepoints={}, storages={}).desired, made))
    past = said.last_change
    if made.change_class == "rescale" or (past is not None and made.change_class == past.change_class):
        same = past if past is not None and past.change_class == made.change_class else None
        lines.append(
            f"rows waited {same.pause_seconds:.1f} s the last time" if same else "rows wait while groups move"
        )
    return lines


def _sizes(said: FlowJobStatus, spec: FlowJobSpec, kind: str) -> list[str]:
    slots, after, groups = _slots(spec), spec.parallelism or 1, spec.max_parallelism or 128
    before = said.job.parallelism if said.job is not None else 0
    pods = f"TaskManager pods {-(-before // slots)} -> {-(-after // slots)}"
    lines = [f"parallelism {before} -> {after}, {pods}" if kind == "Rescale" else f"parallelism {after}, {pods}"]
    if kind == "Rescale":
        moved = groups_that_move(before, after, groups)
        size = said.last_checkpoint.bytes * moved // groups if said.last_checkpoint is not None else None
        state = f", about {figures.size(size)} of state" if size is not None else ""
        lines.append(f"{moved} of {groups} key groups move{state}")
    return lines


def _state_words(desired: Desired, made: Plan) -> str:
    if made.kind == "Restore":
        return f"state: what it has is left; it starts from {desired.restore}"
    if made.kind == "Resume":
        return "state: goes on from where it was stopped"
    if desired.upgrade_mode == "stateless" and made.kind == "Rollout":
        return "state: lost, since spec.upgrade.mode is stateless"
    if desired.upgrade_mode == "last-state":
        return "state: goes along by a last checkpoint"
    looked = "; the new image looks at it before the old job stops" if made.kind == "Rollout" else ""
    return f"state: goes along by a savepoint{looked if desired.restore_check else ''}"


def _complete(wanted: Object) -> Object:
    meta = {"uid": _NEW_UID, "generation": 1, "creationTimestamp": text_of(utc_now()), **wanted["metadata"]}
    return {**wanted, "metadata": meta, "status": {}}


def _differing(now: Mapping[str, Any], then: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(sorted(f"spec.{name}" for name in {*now, *then} if now.get(name) != then.get(name)))


def _flowjobs(file: str) -> list[Object]:
    try:
        text = typer.get_text_stream("stdin").read() if file == "-" else Path(file).read_text()
    except OSError as error:
        raise UserError("K013", f"cannot be read: {error.strerror}", where=file) from error
    try:
        found = [
            each for each in yaml.load_all(text, _Once) if isinstance(each, dict) and each.get("kind") == "FlowJob"
        ]
    except yaml.YAMLError as error:
        raise UserError("K013", f"is no YAML: {' '.join(str(error).split())}", where=file) from error
    if not found:
        raise UserError("K013", "there is no FlowJob in it", where=file, fix="kind: FlowJob, of penstock.dev/v1alpha1")
    return found


class _Once(yaml.SafeLoader):
    """kubectl takes the last of several keys of one name without a word; here they are a mistake."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f'"{key.value}" stands here twice', problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _dry_run(kubectl: Kubectl, manifest: Object) -> Object:
    words = ("apply", "--server-side", "--dry-run=server", "--force-conflicts", "--output=json", "--filename=-")
    answer: Object = yaml.safe_load(kubectl(*words, stdin=yaml.safe_dump(manifest)))
    return answer


def _live(kubectl: Kubectl, name: str) -> Object | None:
    try:
        return kubectl.get("flowjob", name)
    except UserError as error:
        if error.code != "K003":
            raise
        return None


def _check(kubectl: Kubectl, live: Object, wanted: Object, savepoint: str | None, timeout: str) -> bool:
    """The words are those of `penstock restore-check` in the new image."""
    name = wanted["metadata"]["name"]
    uri = _newest(kubectl, name) if savepoint is None else _location(kubectl, savepoint)
    spec = FlowJobSpec.model_validate(wanted["spec"])
    step = CheckRestore(run="plan", revision="plan", parallelism=spec.parallelism or 1, savepoint=uri)
    manifest = runs.restore_check(short_pods.owner_of({**live, "spec": wanted["spec"]}, kubectl), spec, step)
    with short_pods.run(kubectl, manifest, timeout=timeout) as (well, text):
        print(f"  {uri}, as the new image sees it:")
        for line in text.splitlines():
            print(f"    {line}")
        return well


def _newest(kubectl: Kubectl, job: str) -> str:
    whole = [
        each
        for each in kubectl.items("flowsavepoints")
        if each["spec"]["jobRef"]["name"] == job and (each.get("status") or {}).get("phase") == "Completed"
    ]
    if not whole:
        fix = f"kubectl flow savepoint {job}, or --savepoint NAME of another job's"
        raise UserError("K014", "there is no savepoint to check with", where=job, fix=fix)
    newest = max(whole, key=lambda each: str(each["metadata"]["creationTimestamp"]))
    return str(newest["status"]["location"])


def _location(kubectl: Kubectl, name: str) -> str:
    place = (kubectl.get("flowsavepoint", name).get("status") or {}).get("location")
    if not place:
        raise UserError("K014", "this savepoint is not complete", where=name, fix=f"kubectl get fsp {name}")
    return str(place)
