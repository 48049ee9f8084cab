"""The CustomResourceDefinitions in crds/: what the models say, small, and whole."""

import keyword
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock_operator.spec.definitions import flowjob, flowsavepoint, write

ROOT = Path(__file__).parents[3]
DEFINITIONS = {"flowjob": flowjob(), "flowsavepoint": flowsavepoint()}


def schema_of(definition: dict[str, Any]) -> dict[str, Any]:
    return definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def nodes(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            yield from nodes(node[key], f"{path}[]")


def test_the_folder_of_the_controller_is_no_package():
    assert not (ROOT / "operator" / "__init__.py").exists(), "it would hide the standard library's module operator"


@pytest.mark.parametrize("folder", ["crds", "charts/penstock/definitions"])
def test_committed_definitions_match_the_models(tmp_path, folder):
    for path in write(tmp_path):
        assert path.read_text() == (ROOT / folder / path.name).read_text(), "run: make crds"


@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_definition_is_small_enough_for_every_tool(name):
    assert (ROOT / "crds" / f"{name}.yaml").stat().st_size < 200_000


@pytest.mark.parametrize("name", DEFINITIONS)
def test_every_field_has_a_description_and_a_type(name):
    for path, node in nodes(schema_of(DEFINITIONS[name])):
        if path in {"", ".metadata"} or path.endswith("[]"):
            continue
        assert node.get("type") or node.get("x-kubernetes-int-or-string"), path
        if not path.startswith(".spec.imagePullSecrets"):
            assert node.get("description"), path


@pytest.mark.parametrize("name", DEFINITIONS)
def test_there_are_no_defaults_and_no_noise(name):
    for path, node in nodes(schema_of(DEFINITIONS[name])):
        # The scale subresource, and with it autoscalers, fails where its field does not exist.
        assert "default" not in node or (name, path, node["default"]) == ("flowjob", ".spec.parallelism", 1)
        assert node.get("properties") != {}, path
        assert "title" not in node or keyword.iskeyword("title"), path


@pytest.mark.parametrize("name", DEFINITIONS)
def test_every_rule_has_a_message_with_a_code(name):
    rules = [
        rule for _, node in nodes(schema_of(DEFINITIONS[name])) for rule in node.get("x-kubernetes-validations", [])
    ]
    assert rules
    for rule in rules:
        assert rule["message"][:1] == "M", rule
        assert rule["message"][1:4].isdigit(), rule


def test_a_flowjob_has_columns_and_can_be_scaled():
    [version] = flowjob()["spec"]["versions"]
    columns = [column["name"] for column in version["additionalPrinterColumns"] if not column.get("priority")]
    assert columns == ["Phase", "Ready", "Parallelism", "Restarts", "Last-Checkpoint", "Age"]
    assert version["subresources"]["scale"]["specReplicasPath"] == ".spec.parallelism"
