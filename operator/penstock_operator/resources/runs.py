"""Short-lived pods: they hand programs in, check restores, verify and remove savepoints.

What concerns user code or the store is done by the job's own image with the job's own rights, never by the
controller. The last lines of a pod that fails become the message that its FlowJob shows.
"""

from collections.abc import Sequence
from typing import Any, Final

from penstock_operator import names
from penstock_operator.deciding.steps import CheckRestore, Submit
from penstock_operator.resources.pods import Owner, pod_template
from penstock_operator.spec.flowjob import FlowJobSpec

_KEPT_SECONDS: Final = 600
"""The controller removes what it has read; this is for what nobody reads any more."""
USER_ERROR: Final = 2
"""Exit code of `penstock` for a mistake of the user: another try would end the same way."""


def submission(owner: Owner, spec: FlowJobSpec, step: Submit) -> dict[str, Any]:
    """`penstock run --detach` under an id that was chosen before."""
    words = [
        "penstock",
        "run",
        spec.entrypoint,
        f"--jobmanager=http://{names.jobmanager(owner.name)}:{names.REST_PORT}",
        "--detach",
        f"--id={step.job_id}",
        f"--parallelism={step.parallelism}",
        f"--max-parallelism={spec.max_parallelism or 128}",
    ]
    if spec.checkpoints is not None and spec.checkpoints.interval:
        words.append(f"--checkpoint-interval={spec.checkpoints.interval}")
    words += [f"--set={name}={value}" for name, value in sorted((spec.settings or {}).items())]
    if step.origin:
        words.append(f"--from={step.origin}")
        words += _allowed(spec)
    return _run(owner, spec, step.run, step.revision, [*words, *_args(spec)], retries=2, seconds=600)


def restore_check(owner: Owner, spec: FlowJobSpec, step: CheckRestore) -> dict[str, Any]:
    """`penstock restore-check` with the new image."""
    words = [
        "penstock",
        "restore-check",
        spec.entrypoint,
        f"--from={step.savepoint}",
        f"--parallelism={step.parallelism}",
        f"--max-parallelism={spec.max_parallelism or 128}",
        *_allowed(spec),
    ]
    return _run(owner, spec, step.run, step.revision, [*words, *_args(spec)], retries=0, seconds=600)


def removal(owner: Owner, spec: FlowJobSpec, run: str, revision: str, uri: str) -> dict[str, Any]:
    """`penstock savepoints rm`."""
    words = ["penstock", "savepoints", "rm", uri, "--yes"]
    return _run(owner, spec, run, revision, words, retries=2, seconds=300)


def verification(owner: Owner, spec: FlowJobSpec, run: str, revision: str, uri: str) -> dict[str, Any]:
    """`penstock savepoints verify`."""
    return _run(owner, spec, run, revision, ["penstock", "savepoints", "verify", uri], retries=1, seconds=600)


def listing(owner: Owner, spec: FlowJobSpec, folder: str) -> dict[str, Any]:
    """`penstock savepoints ls`."""
    words = ["penstock", "savepoints", "ls", folder, "--json"]
    return _run(owner, spec, "list", "list", words, retries=0, seconds=300)


def _allowed(spec: FlowJobSpec) -> list[str]:
    restore = spec.restore
    if restore is None:
        return []
    flags = {
        "--allow-non-restored": restore.allow_non_restored_state,
        "--allow-foreign": restore.allow_foreign,
        "--evolve": restore.evolve,
    }
    words = [flag for flag, wanted in flags.items() if wanted]
    return words + [f"--map-uid={old}={new}" for old, new in sorted((restore.map_uids or {}).items())]


def _args(spec: FlowJobSpec) -> list[str]:
    return ["--", *spec.args] if spec.args else []


def _run(
    owner: Owner,
    spec: FlowJobSpec,
    run: str,
    revision: str,
    command: Sequence[str],
    *,
    retries: int,
    seconds: int,
) -> dict[str, Any]:
    template = pod_template(
        owner,
        spec,
        component=names.RUN,
        revision=revision,
        command=command,
        resources=None,
        template=None,
        container={"env": _environment(spec)},
        pod={"restartPolicy": "Never", "terminationGracePeriodSeconds": 5},
    )
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": owner.metadata(f"{owner.name}-{run}", names.RUN),
        "spec": {
            "backoffLimit": retries,
            "ttlSecondsAfterFinished": _KEPT_SECONDS,
            "activeDeadlineSeconds": seconds,
            "podFailurePolicy": {
                "rules": [
                    {
                        "action": "FailJob",
                        "onExitCodes": {"containerName": "main", "operator": "In", "values": [USER_ERROR]},
                    }
                ]
            },
            "template": template,
        },
    }


def _environment(spec: FlowJobSpec) -> list[dict[str, Any]]:
    own = [{"name": "HOME", "value": "/var/penstock"}, {"name": "TMPDIR", "value": "/tmp"}]
    # Tables in an error message are cut to the width of a terminal that is not there.
    own.append({"name": "COLUMNS", "value": "200"})
    given = {each["name"] for each in spec.env or ()}
    return [each for each in own if each["name"] not in given] + list(spec.env or ())
