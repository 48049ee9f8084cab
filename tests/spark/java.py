"""`python tests/spark/java.py`: the Java that Spark needs, installed where there is none."""

import os
import re
import shutil
import subprocess
import sys

LEAST = 17


def version() -> int:
    """Of the Java that Spark would take; 0: there is none."""
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    if java is None:
        return 0
    shown = subprocess.run([java, "-version"], check=False, capture_output=True, text=True, timeout=60).stderr
    found = re.search(r'version "(\d+)', shown)
    return int(found[1]) if found else 0


def install() -> None:
    """From the distribution's packages."""
    if version() >= LEAST:
        return
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        sys.exit(f"Spark needs Java {LEAST} or newer. On Debian and Ubuntu: apt-get install openjdk-17-jre-headless")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], env=quiet, check=True)
    words = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "openjdk-17-jre-headless"]
    subprocess.run(words, env=quiet, check=True)


if __name__ == "__main__":
    install()
