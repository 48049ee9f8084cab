"""FlowJobs in tests: manifests, and what their status says."""

from dataclasses import dataclass
from typing import Any

from harness.kubectl import Kubectl, Object, condition
from harness.s3 import CREDENTIALS
from harness.totals import PROGRAM
from harness.waiting import wait_until

SMALL: Object = {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}


@dataclass(frozen=True, slots=True)
class FlowJobs:
    """In the namespace of a test."""

    kubectl: Kubectl
    image: str

    def add_program(self, name: str, text: str = PROGRAM) -> None:
        """A ConfigMap with `totals.py`."""
        content = {"totals.py": text}
        self.kubectl.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": content})

    def manifest(self, name: str, storage: str, *, program: str = "totals", **spec: Any) -> Object:
        """`totals`, with a checkpoint every second; `spec` on top."""
        return {
            "apiVersion": "penstock.dev/v1alpha1",
            "kind": "FlowJob",
            "metadata": {"name": name},
            "spec": {
                "image": self.image,
                "entrypoint": "totals.py:totals",
                "program": {"configMap": {"name": program}},
                "parallelism": 1,
                "envFrom": [{"secretRef": {"name": CREDENTIALS}}],
                "checkpoints": {"storage": storage, "interval": "1s"},
                "jobManager": {"resources": SMALL},
                "taskManager": {"resources": SMALL},
                **spec,
            },
        }

    def get(self, name: str) -> Object:
        """As it is now."""
        return self.kubectl.get("flowjob", name)

    def status(self, name: str) -> Object:
        """Empty before the first one is written."""
        found: Object = self.get(name).get("status", {})
        return found

    def wait_settled(self, name: str, *, seconds: float = 180, ready: str = "True") -> Object:
        """Until the controller has nothing left to do for the present spec."""

        def settled() -> Object | None:
            found = self.get(name)
            reconciling, said = condition(found, "Reconciling"), condition(found, "Ready")
            current = found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"]
            if not current or reconciling is None or said is None or "change" in found["status"]:
                return None
            return found["status"] if (reconciling["status"], said["status"]) == ("False", ready) else None

        try:
            return wait_until(f"{name} is settled, Ready {ready}", settled, seconds=seconds)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self.kubectl('describe', 'flowjob', name)}") from error

    def wait_for(self, name: str, what: str, ask: Any, *, seconds: float = 120) -> Object:
        """Until `ask` likes the status."""

        def asked() -> Object | None:
            status = self.status(name)
            return status if ask(status) else None

        try:
            return wait_until(f"{name}: {what}", asked, seconds=seconds)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self.kubectl('describe', 'flowjob', name)}") from error

    def take_savepoint(self, name: str, job: str, location: str, *, seconds: float = 120, **spec: Any) -> Object:
        """By a FlowSavepoint; its status when it is complete."""
        self.kubectl.apply(
            {
                "apiVersion": "penstock.dev/v1alpha1",
                "kind": "FlowSavepoint",
                "metadata": {"name": name},
                "spec": {"jobRef": {"name": job}, "location": location, **spec},
            }
        )

        def completed() -> Object | None:
            status: Object = self.kubectl.get("flowsavepoint", name).get("status", {})
            assert status.get("phase") != "Failed", status
            return status if status.get("phase") == "Completed" else None

        return wait_until(f"savepoint {name} is complete", completed, seconds=seconds)

    def pids(self, job: str) -> dict[str, str]:
        """Pod -> its uid and the start of its container: both stay while it is left alone."""
        pods = self.kubectl.items("pods", labels=f"penstock.dev/job={job},app.kubernetes.io/component=taskmanager")
        return {
            pod["metadata"]["name"]: pod["metadata"]["uid"] + str(pod["status"].get("containerStatuses"))
            for pod in pods
        }
