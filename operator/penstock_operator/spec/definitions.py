"""The CustomResourceDefinitions, made from the models; `make crds` writes them to crds/."""

from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from penstock_operator.names import FLOWJOB, FLOWSAVEPOINT, GROUP, MAX_NAME, NAME_PATTERN, VERSION
from penstock_operator.spec.base import rule
from penstock_operator.spec.flowjob import SPEC_RULES, FlowJobSpec
from penstock_operator.spec.flowsavepoint import SAVEPOINT_RULES, FlowSavepointSpec, FlowSavepointStatus
from penstock_operator.spec.schema import structural
from penstock_operator.spec.status import FlowJobStatus

_NAME_RULES = [
    rule(
        f"self.metadata.name.size() <= {MAX_NAME}",
        f"M005 metadata.name is longer than {MAX_NAME} characters: names of pods and labels are made from it",
    ),
    rule(
        f"self.metadata.name.matches('{NAME_PATTERN}')",
        "M005 metadata.name must be lower-case letters, digits and hyphens, and begin with a letter",
    ),
]


def _condition(name: str) -> str:
    return f'.status.conditions[?(@.type=="{name}")]'


def _column(name: str, path: str, kind: str = "string", *, wide: bool = False) -> dict[str, Any]:
    return {"name": name, "type": kind, "jsonPath": path} | ({"priority": 1} if wide else {})


def flowjob() -> dict[str, Any]:
    """Of FlowJob."""
    return _definition(
        FLOWJOB,
        short="fj",
        description="A stream or batch job of Penstock.",
        spec=FlowJobSpec,
        spec_description="What the job is to be.",
        spec_rules=SPEC_RULES,
        status=FlowJobStatus,
        name_rules=_NAME_RULES,
        columns=[
            _column("Phase", ".status.phase"),
            _column("Ready", _condition("Ready") + ".status"),
            _column("Parallelism", ".status.parallelism.summary"),
            _column("Restarts", ".status.engine.restarts", "integer"),
            _column("Last-Checkpoint", ".status.lastCheckpoint.time", "date"),
            _column("Savepoint", ".status.lastSavepoint.location", wide=True),
            _column("Reason", _condition("Ready") + ".message", wide=True),
            _column("Age", ".metadata.creationTimestamp", "date"),
        ],
        scale={
            "specReplicasPath": ".spec.parallelism",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
    )


def flowsavepoint() -> dict[str, Any]:
    """Of FlowSavepoint."""
    return _definition(
        FLOWSAVEPOINT,
        short="fsp",
        description="A savepoint of a FlowJob: create one to take one.",
        spec=FlowSavepointSpec,
        spec_description="What is to be taken, where, and what becomes of it.",
        spec_rules=SAVEPOINT_RULES,
        status=FlowSavepointStatus,
        name_rules=[],
        columns=[
            _column("Job", ".spec.jobRef.name"),
            _column("Phase", ".status.phase"),
            _column("Size", ".status.sizeText"),
            _column("Completed", ".status.completedAt", "date"),
            _column("Location", ".status.location", wide=True),
            _column("Message", ".status.message", wide=True),
            _column("Age", ".metadata.creationTimestamp", "date"),
        ],
    )


def _definition(
    kind: str,
    *,
    short: str,
    description: str,
    spec: type[BaseModel],
    spec_description: str,
    spec_rules: list[dict[str, str]],
    status: type[BaseModel],
    name_rules: list[dict[str, str]],
    columns: list[dict[str, Any]],
    scale: dict[str, str] | None = None,
) -> dict[str, Any]:
    spec_schema = structural(spec) | {
        "description": spec_description,
        "x-kubernetes-validations": spec_rules,
    }
    status_schema = structural(status) | {"description": "What has become of it; written by the controller alone."}
    schema: dict[str, Any] = {
        "type": "object",
        "description": description,
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": f"{GROUP}/{VERSION}"},
            "kind": {"type": "string", "description": kind},
            "metadata": {"type": "object"},
            "spec": spec_schema,
            "status": status_schema,
        },
    }
    if name_rules:
        schema["x-kubernetes-validations"] = name_rules
    plural = kind.lower() + "s"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short],
                "categories": ["flow"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}} | ({"scale": scale} if scale else {}),
                    "additionalPrinterColumns": columns,
                }
            ],
        },
    }


def write(folder: Path) -> list[Path]:
    """One file each."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for definition in (flowjob(), flowsavepoint()):
        path = folder / f"{definition['spec']['names']['singular']}.yaml"
        text = yaml.safe_dump(definition, sort_keys=False, width=120, allow_unicode=True)
        path.write_text(f"# Written by `make crds` from the models in operator/penstock_operator/spec.\n{text}")
        written.append(path)
    return written
