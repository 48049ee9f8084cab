"""Chromium, headless: what a person would see of a page."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
)


def find() -> str | None:
    """The program, by any of its names."""
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


def install() -> None:
    """From the distribution, when it is not here."""
    if find() is not None:
        return
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        sys.exit("The tests of the dashboard need Chromium. On Debian and Ubuntu: apt-get install chromium")
    print("installing chromium (once)", flush=True)
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], env=quiet, check=True)
    words = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"]
    subprocess.run(words, env=quiet, check=True, stdout=subprocess.DEVNULL)


def page_after(address: str, seconds: float, profile: Path) -> str:
    """The page as it is so much of its own time later, as HTML."""
    program = find()
    assert program is not None, "no Chromium: `make test-services` installs it"
    budget = f"--virtual-time-budget={seconds * 1000:.0f}"
    words = [program, *_QUIET, f"--user-data-dir={profile}", budget, "--dump-dom", address]
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=240).stdout


if __name__ == "__main__":
    install()
