"""The example of the README, as a user runs it: a real socket, the real command line."""

import json
import os
import re
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "word_count.py"
TEXT = """To be, or not to be: that is the question.
Whether 'tis nobler in the mind to suffer
the slings and arrows of outrageous fortune"""


def program_lines() -> list[str]:
    source = EXAMPLE.read_text()
    return [line for line in source.split('"""')[2].splitlines() if line.strip()]


def test_the_program_is_at_most_fifteen_lines() -> None:
    assert len(program_lines()) <= 15


@pytest.mark.parametrize("parallelism", [1, 2])
def test_words_from_a_socket_are_counted(parallelism: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(200)
        host, port = server.getsockname()
        command = [sys.executable, "-m", "penstock.cli", "run", str(EXAMPLE), "--parallelism", str(parallelism)]
        environment = os.environ | {"LINES_FROM": f"{host}:{port}"}
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as run:
            connection, _ = server.accept()
            connection.sendall(TEXT.encode() + b"\n")
            connection.close()
            output, errors = run.communicate(timeout=200)
    assert run.returncode == 0, errors
    counted: Counter[str] = Counter()
    for row in map(json.loads, output.splitlines()):
        counted[row["word"]] += row["count"]
    assert counted == Counter(re.findall(r"\w+", TEXT.lower())), output
