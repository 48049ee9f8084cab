"""The chart of this tree, by helm."""

import json
import subprocess
from dataclasses import dataclass
from typing import Any

from harness.clusters import TREE
from harness.images import Images
from harness.kubectl import Kubectl, Object

CHART = TREE / "charts" / "penstock"


class HelmError(AssertionError):
    """A command failed that should not have."""


def helm(kubectl: Kubectl, *words: str, stdin: str | None = None, seconds: float = 240) -> str:
    """What it prints."""
    done = subprocess.run(
        ["helm", f"--namespace={kubectl.namespace}", *words],
        env=kubectl.environment,
        input=stdin or "",
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    if done.returncode:
        raise HelmError(f"helm {' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


@dataclass(frozen=True, slots=True)
class Release:
    """An operator, installed by the chart into the namespace of `kubectl`."""

    kubectl: Kubectl
    images: Images
    name: str = "penstock"

    def install(self, **values: Any) -> str:
        """Or upgrade; it is ready when this returns the notes."""
        text = json.dumps({**self.image_values, **values})
        words = ("--install", self.name, str(CHART), "--values=-", "--wait", "--timeout=180s")
        return helm(self.kubectl, "upgrade", *words, stdin=text)

    def test(self) -> str:
        """`helm test`."""
        return helm(self.kubectl, "test", self.name, "--logs", "--timeout=60s")

    def uninstall(self) -> None:
        """And wait until its objects are gone."""
        helm(self.kubectl, "uninstall", self.name, "--wait", "--timeout=120s", "--ignore-not-found")

    @property
    def image_values(self) -> Object:
        """What makes the chart take the images under test."""
        (operator, operator_tag), (job, job_tag) = (
            image.rsplit(":", 1) for image in (self.images.operator, self.images.penstock)
        )
        images = {
            "operator": {"repository": operator, "tag": operator_tag},
            "job": {"repository": job, "tag": job_tag},
        }
        return {"image": images}
