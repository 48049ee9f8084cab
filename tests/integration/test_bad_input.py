"""Bad programs and bad rows, as a user meets them: a code, the place, what is wrong and how to fix it.

Every case goes through the command line, as `penstock run` does, to a cluster that they share. A refused program
starts nothing; bad rows end the job with exit code 1.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest

from penstock.cli import main
from penstock.local import LocalCluster

HEAD = """import os, threading, time
import penstock as ps
from penstock import col

def numbers(flow):
    return flow.read(ps.items([{"n": n, "ts": n} for n in range(10)]), event_time="ts", unit="s", uid="numbers")

"""

Run = Callable[..., tuple[int, str]]
"""From a program, and options, to the exit code and what was said."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("state")) as running:
        yield running


@pytest.fixture
def run(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Run:
    def run_program(program: str, *options: str) -> tuple[int, str]:
        path = tmp_path / "main.py"
        path.write_text(HEAD + program)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(
            sys, "argv", ["penstock", "run", f"{path}:main", "--jobmanager", cluster.client.url, *options]
        )
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        return ended.value.code, capfd.readouterr().err

    return run_program


def line_of(program: str, text: str) -> int:
    return next(number for number, line in enumerate((HEAD + program).splitlines(), 1) if text in line)


REFUSED = {
    "P1 a module that is missing": (
        "def main(flow):\n    import not_there_at_all\n",
        "import not_there",
        ["P001", "ModuleNotFoundError", "not_there_at_all", "install"],
    ),
    "P1 a syntax error": ("def main(flow)\n    pass\n", "def main", ["P001", "SyntaxError"]),
    "P2 a stream that is not written": (
        'def main(flow):\n    numbers(flow).filter(col("n") > 1)\n',
        "filter",
        ["P002", "no consumer"],
    ),
    "P3 a uid that is used twice": (
        "def main(flow):\n"
        '    numbers(flow).write(ps.discard(), uid="out")\n'
        '    numbers2 = flow.read(ps.items([{"a": 1}]), uid="two")\n'
        '    numbers2.write(ps.discard(), uid="out")\n',
        "numbers2.write",
        ["P003", '"out"', "2 operators"],
    ),
    "P4 a function that captures a lock": (
        "class Client:\n    def __init__(self):\n        self.lock = threading.Lock()\n"
        "def main(flow):\n"
        "    client = Client()\n"
        '    numbers(flow).map(lambda n: (client, n)[1], output={"n": int}, uid="enrich").write(ps.discard())\n',
        "numbers(flow).map",
        ["P004", '"enrich"', "lock"],
    ),
    "P5 a key that has no hash": (
        "def main(flow):\n"
        '    words = flow.read(ps.items([{"words": ["a", "b"]}]), uid="w")\n'
        '    words.key_by("words").process(None, output={"a": int}).write(ps.discard())\n',
        "key_by",
        ["P005", "words", "List"],
    ),
    "P10 an integer time without its unit": (
        'def main(flow):\n    flow.read(ps.items([{"ts": 1}]), event_time="ts").write(ps.discard())\n',
        'items([{"ts": 1}])',
        ["P010", '"ts"', "unit"],
    ),
    "a column that does not exist": (
        'def main(flow):\n    numbers(flow).filter(col("m") > 1).write(ps.discard())\n',
        "filter",
        ["P020", '"m"', "n, ts"],
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_program_is_refused_before_anything_starts(case: str, run: Run, cluster: LocalCluster) -> None:
    program, place, expected = REFUSED[case]
    jobs = len(cluster.client.jobs())
    code, errors = run(program)
    assert code == 2, errors
    assert f"main.py:{line_of(program, place)}" in errors
    for text in expected:
        assert text in errors
    assert "Traceback" not in errors
    assert len(cluster.client.jobs()) == jobs


FAILING = {
    "P7 an exception in a function": (
        "def halve(n):\n    return 100 // (n - 5)\n"
        'def main(flow):\n    numbers(flow).map(halve, output={"h": int}, uid="halve").write(ps.discard())\n',
        ["P007", "halve", "ZeroDivisionError", "main.py", "n=5"],
    ),
    "P8 a function that does not return": (
        "def spin(n):\n    while True:\n        time.sleep(1)\n"
        'def main(flow):\n    numbers(flow).map(spin, output={"n": int}, uid="endless").write(ps.discard())\n',
        ["P008", "has not yielded for 30 s", 'in operator "endless", here:\n  File ', "main.py", "in spin"],
    ),
    "P9 a function that ends its process": (
        "def leave(n):\n    os._exit(7)\n"
        'def main(flow):\n    numbers(flow).map(leave, output={"n": int}, uid="leave").write(ps.discard())\n',
        ["P009", "exited with code 7"],
    ),
    "P10 times in a wrong unit": (
        "def main(flow):\n"
        '    rows = ps.items([{"ts": 1_700_000_000_000_000}])\n'
        '    flow.read(rows, event_time="ts", unit="ms", uid="rows").write(ps.discard(), uid="out")\n',
        ["P010", "year 55840", "microseconds"],
    ),
    "R4 a row without event time": (
        "def main(flow):\n"
        '    rows = ps.items([{"ts": 1}, {"ts": None}])\n'
        '    flow.read(rows, event_time="ts", unit="s", uid="rows").write(ps.discard(), uid="out")\n',
        ["R004", "row 1", "ts=None"],
    ),
}


@pytest.mark.parametrize("case", FAILING)
def test_a_failing_job_says_why(case: str, run: Run) -> None:
    program, expected = FAILING[case]
    code, errors = run(program, "--restarts", "0")
    assert code == 1, errors
    for text in expected:
        assert text in errors


def json_program(schema: str = '{"n": int}') -> str:
    return (
        "def main(flow):\n"
        f'    flow.read(ps.json_lines("rows.jsonl", schema={schema}), uid="rows").write(ps.discard(), uid="out")\n'
    )


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'{"n": 1}\n{"n": oops}\n{"n": 3}\n', ["R001", "rows.jsonl", "oops"]),
        (b'{"n": "' + b"x" * (17 << 20) + b'"}\n', ["R002", "rows.jsonl", "16"]),
        (b'{"n": 1}\n{"n": "many"}\n', ["R003", "rows.jsonl", "many"]),
    ],
    ids=["R1 malformed", "R2 too large", "R3 of a wrong type"],
)
def test_a_bad_row_stops_the_job_and_names_its_place(
    content: bytes, expected: list[str], run: Run, tmp_path: Path
) -> None:
    (tmp_path / "rows.jsonl").write_bytes(content)
    code, errors = run(json_program())
    assert code == 1, errors
    for text in expected:
        assert text in errors


def test_a_file_with_other_columns_is_named(run: Run, tmp_path: Path) -> None:
    program = 'def main(flow):\n    flow.read(ps.parquet("*.parquet"), uid="rows").write(ps.discard(), uid="out")\n'
    pl.DataFrame({"amount": [1]}).write_parquet(tmp_path / "a.parquet")
    pl.DataFrame({"amount": ["1"]}).write_parquet(tmp_path / "b.parquet")
    code, errors = run(program)
    assert code != 0
    for text in ("R003", "amount: Int64 -> String", "b.parquet"):
        assert text in errors
