"""The images of this tree, on all nodes of the cluster.

$PENSTOCK_E2E_IMAGES names images that were pushed before (`example.org/me/{}:dev`); then nothing is built.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from cluster.archives import write_image
from harness.clusters import TREE, Cluster

TAG = "e2e"
BUILD_SECONDS = 1800.0
ARCHIVES = TREE / "build" / "images"


@dataclass(frozen=True, slots=True)
class Images:
    """Their names, as pods say them."""

    penstock: str
    operator: str
    s3: str


def load_images(cluster: Cluster, s3_program: Path) -> Images:
    """Build them, and put them on all nodes."""
    if pushed := os.environ.get("PENSTOCK_E2E_IMAGES"):
        return Images(*(pushed.format(name) for name in ("penstock", "operator", "s3")))
    names = ["penstock"] + (["operator"] if (TREE / "operator").is_dir() else [])
    command = [str(TREE / "images" / "build"), "--tag", TAG, "--archives", str(ARCHIVES), *names]
    subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, timeout=BUILD_SECONDS, check=True)
    images = Images(f"penstock:{TAG}", f"operator:{TAG}", f"penstock-e2e-s3:{TAG}")
    write_program_image(ARCHIVES / "s3.tar", images.s3, s3_program)
    for name in (*names, "s3"):
        cluster.load(ARCHIVES / f"{name}.tar")
    return images


def write_program_image(archive: Path, name: str, program: Path) -> None:
    """A program and the libraries that it is linked with, and nothing else."""
    linked = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False).stdout
    libraries = {path.lstrip("/"): Path(path).resolve() for path in re.findall(r"(/\S+) \(0x", linked)}
    archive.parent.mkdir(parents=True, exist_ok=True)
    write_image(archive, name, {program.name: program, **libraries}, [f"/{program.name}"], folders=("tmp", "data"))
