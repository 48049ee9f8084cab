"""How tools read the status of an object: the rules of the library kstatus, and a record of a whole life."""

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field

from harness.kubectl import Kubectl, Object, condition

CURRENT, IN_PROGRESS, FAILED, TERMINATING = "Current", "InProgress", "Failed", "Terminating"


def read(found: Object) -> str:
    """As `kstatus.Compute` does for a kind that it does not know."""
    if found["metadata"].get("deletionTimestamp"):
        return TERMINATING
    status = found.get("status") or {}
    if "observedGeneration" in status and status["observedGeneration"] != found["metadata"]["generation"]:
        return IN_PROGRESS
    for kind, meaning in (("Reconciling", IN_PROGRESS), ("Stalled", FAILED)):
        said = condition(found, kind)
        if said is not None and said["status"] == "True":
            return meaning
    ready = condition(found, "Ready")
    return CURRENT if ready is None or ready["status"] == "True" else IN_PROGRESS


@dataclass
class Life:
    """Every version of an object that a watch has told."""

    versions: list[Object] = field(default_factory=list)

    def check(self) -> list[str]:
        """That tools would never take it for done when it is not; what they read, each change once."""
        readings: list[str] = []
        for found in self.versions:
            status = found.get("status")
            if status is None:
                continue
            reading = read(found)
            conditions = {each["type"]: each for each in status["conditions"]}
            for each in conditions.values():
                assert each["observedGeneration"] == status["observedGeneration"], each
                assert each["lastTransitionTime"], each
            both = {name for name in ("Reconciling", "Stalled") if conditions[name]["status"] == "True"}
            assert len(both) <= 1, (both, status["phase"])
            if reading == CURRENT:
                assert "change" not in status, (status["phase"], status["change"])
                assert conditions["Ready"]["status"] == "True"
                assert status["phase"] in {"Running", "Suspended", "Finished"}
            if not readings or readings[-1] != reading:
                readings.append(reading)
        first = next(found for found in self.versions if found.get("status"))
        assert condition(first, "Ready")["status"] == "Unknown"  # type: ignore[index]
        assert condition(first, "Reconciling")["status"] == "True"  # type: ignore[index]
        return readings


@contextlib.contextmanager
def watched(kubectl: Kubectl, kind: str, name: str) -> Iterator[Life]:
    """The life of an object while the block runs; it is whole when the block has ended."""
    life = Life()
    words = ["get", kind, "--field-selector", f"metadata.name={name}", "--watch", "--output=json"]
    with tempfile.TemporaryFile("w+") as file:
        process = subprocess.Popen(
            ["kubectl", f"--namespace={kubectl.namespace}", *words],
            env=kubectl.environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
        )
        try:
            yield life
        finally:
            process.terminate()
            process.wait()
            file.seek(0)
            life.versions += _documents(file.read())


def _documents(text: str) -> Iterator[Object]:
    decoder, at = json.JSONDecoder(), 0
    while (at := text.find("{", at)) >= 0:
        try:
            found, at = decoder.raw_decode(text, at)
        except ValueError:
            return  # cut off where the watch ended
        yield found
