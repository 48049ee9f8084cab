"""What the API server has told: objects by kind, and children by the FlowJob that they belong to."""

from collections.abc import Iterable, Mapping
from typing import Any

from penstock_operator.names import JOB_LABEL

Body = Mapping[str, Any]


class Cache:
    """Filled by watching, corrected by listing."""

    def __init__(self) -> None:
        self._objects: dict[str, dict[tuple[str, str], Body]] = {}
        self._children: dict[tuple[str, str, str], dict[str, Body]] = {}
        self.listed: set[str] = set()
        """Kinds that were listed at least once."""

    def put(self, kind: str, body: Body) -> bool:
        """Keep the newer one; whether it was news."""
        meta = body["metadata"]
        key = (meta["namespace"], meta["name"])
        known = self._objects.setdefault(kind, {}).get(key)
        if known is not None and known["metadata"].get("uid") == meta.get("uid"):
            old, new = known["metadata"].get("resourceVersion", ""), meta.get("resourceVersion", "")
            if old == new or (old.isdigit() and new.isdigit() and int(new) < int(old)):
                return False
        self._objects[kind][key] = body
        if job := (meta.get("labels") or {}).get(JOB_LABEL):
            self._children.setdefault((kind, meta["namespace"], job), {})[meta["name"]] = body
        return True

    def drop(self, kind: str, namespace: str, name: str) -> None:
        """It is gone."""
        body = self._objects.get(kind, {}).pop((namespace, name), None)
        if body is not None and (job := (body["metadata"].get("labels") or {}).get(JOB_LABEL)):
            self._children.get((kind, namespace, job), {}).pop(name, None)

    def replace(self, kind: str, bodies: Iterable[Body], namespace: str | None) -> list[Body]:
        """A list from the API server: what is not in it is gone. What was dropped."""
        bodies = list(bodies)
        have = {(body["metadata"]["namespace"], body["metadata"]["name"]) for body in bodies}
        known = self._objects.setdefault(kind, {})
        gone = [key for key in known if key not in have and namespace in {None, key[0]}]
        dropped = [known[key] for key in gone]
        for key in gone:
            self.drop(kind, *key)
        for body in bodies:
            self.put(kind, body)
        self.listed.add(kind)
        return dropped

    def get(self, kind: str, namespace: str, name: str) -> Body | None:
        """One object."""
        return self._objects.get(kind, {}).get((namespace, name))

    def all(self, kind: str, namespace: str | None = None) -> list[Body]:
        """Of a namespace, or of all."""
        found = self._objects.get(kind, {})
        return [body for key, body in found.items() if namespace in {None, key[0]}]

    def children(self, kind: str, namespace: str, job: str) -> list[Body]:
        """Of a FlowJob."""
        return list(self._children.get((kind, namespace, job), {}).values())
