import os
import subprocess
import sys

from penstock.testing import run_episode

SEEDS = (17, 20, 21, 22)
"""Jobs of several kinds, with restarts."""

PROGRAM = """
import sys
from penstock.testing import run_episode
for seed in sys.argv[1:]:
    print(run_episode(int(seed)).digest)
"""


def test_the_same_seed_gives_the_same_trace_twice() -> None:
    for seed in SEEDS:
        first, second = run_episode(seed), run_episode(seed, keep_trace=True)
        assert first.digest == second.digest
        assert (first.marks, first.struck, first.steps) == (second.marks, second.struck, second.steps)


def test_another_seed_gives_another_trace() -> None:
    assert len({run_episode(seed).digest for seed in SEEDS}) == len(SEEDS)


def test_hashes_of_strings_do_not_reach_the_trace() -> None:
    here = [run_episode(seed).digest for seed in SEEDS]
    for hash_seed in ("1", "2"):
        elsewhere = subprocess.run(
            [sys.executable, "-c", PROGRAM, *map(str, SEEDS)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert elsewhere.stdout.split() == here
