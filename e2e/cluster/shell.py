"""Commands, and waiting for what they bring about; every wait has an end."""

import subprocess
import sys
import time
from collections.abc import Callable
from typing import NoReturn


def say(text: str) -> None:
    """To people; standard output is for what programs read."""
    print(f"{time.strftime('%T')} cluster: {text}", file=sys.stderr, flush=True)


def die(text: str) -> NoReturn:
    """End with a message."""
    say(text)
    sys.exit(1)


def run(*words: object, stdin: str | None = None, seconds: float = 120) -> str:
    """What a command prints; `CommandError` with all of its output when it fails."""
    command = [str(word) for word in words]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=seconds, check=False)
    if done.returncode:
        raise CommandError(
            f"{' '.join(command)[:300]}: exit code {done.returncode}\n{done.stdout}{done.stderr}".strip()
        )
    return done.stdout


def succeeds(*words: object, seconds: float = 20) -> bool:
    """Whether a command ends well, and in time."""
    try:
        run(*words, seconds=seconds)
    except (CommandError, subprocess.TimeoutExpired, OSError):
        return False
    return True


def wait_for(what: str, condition: Callable[[], bool], *, seconds: float, hint: str = "") -> None:
    """Until the condition holds; ends everything when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            die(f"{what}: not within {seconds:.0f} s{f'; {hint}' if hint else ''}")
        time.sleep(0.2)


class CommandError(Exception):
    """A command failed."""
