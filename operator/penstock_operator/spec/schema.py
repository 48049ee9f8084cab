"""From a pydantic model to the structural schema of a CustomResourceDefinition.

Such a schema has no references, and drops what it does not declare; so there is no word about additional properties
either. It has a default for one field, which the scale subresource needs; others would only fill objects with what
nobody has written.
"""

from typing import Any

from pydantic import BaseModel

_KEPT = (
    "type",
    "format",
    "description",
    "enum",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "maxProperties",
    "required",
    "anyOf",
)


def structural(model: type[BaseModel]) -> dict[str, Any]:
    """The schema of `model` as the API server takes it."""
    whole = model.model_json_schema(by_alias=True)
    return _structural(whole, whole.get("$defs", {}))


def _structural(node: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    node = _resolved(node, definitions)
    made = {key: node[key] for key in _KEPT if key in node}
    if "description" in made:
        made["description"] = " ".join(made["description"].split())
    made |= {key: value for key, value in node.items() if key.startswith("x-kubernetes-")}
    if "x-default" in node:
        made["default"] = node["x-default"]
    if "const" in node:
        made["enum"] = [node["const"]]
    if "properties" in node:
        made["properties"] = {name: _structural(each, definitions) for name, each in node["properties"].items()}
    if isinstance(node.get("items"), dict):
        made["items"] = _structural(node["items"], definitions)
    if isinstance(node.get("additionalProperties"), dict) and not made.get("x-kubernetes-preserve-unknown-fields"):
        made["additionalProperties"] = _structural(node["additionalProperties"], definitions)
    if made.get("type") == "array" and made.get("x-kubernetes-list-map-keys") is None:
        made.setdefault("x-kubernetes-list-type", "atomic")
    return made


def _resolved(node: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Without references, and without the `null` that an optional field may be."""
    while True:
        if "$ref" in node:
            target = definitions[node["$ref"].rpartition("/")[2]]
            # What is said at the field goes before what is said at the type.
            node = {**target, **{key: value for key, value in node.items() if key != "$ref"}}
        elif any(each.get("type") == "null" for each in node.get("anyOf", ())):
            [option] = [each for each in node["anyOf"] if each.get("type") != "null"]
            node = {**option, **{key: value for key, value in node.items() if key != "anyOf"}}
        elif len(node.get("allOf", ())) == 1:
            node = {**node["allOf"][0], **{key: value for key, value in node.items() if key != "allOf"}}
        else:
            return node
