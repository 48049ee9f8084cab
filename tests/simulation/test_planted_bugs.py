import pytest

from penstock.testing import run_episode
from penstock.testing.planted import PLANTED

KNOWN_SEEDS = {
    "skip-alignment": 29,
    "acknowledge-before-upload": 0,
    "commit-before-journal": 4,
    "drop-timers-on-restore": 1,
    "accept-old-frames": 127,
    "reuse-checkpoint-id": 6,
    "position-too-far": 5,
    "forget-given-up-output": 14,
    "leak-credit": 5,
    "no-fence": 6,
    "doubt-is-failure": 10,
    "committables-in-turns": 54,
    "time-jumps-on-restore": 43,
}
"""Seeds that found each bug once. When the engine changes, another one near the beginning may have to do it."""

OTHERS = range(100)


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str) -> None:
    with PLANTED[name]():
        found = next(seed for seed in (KNOWN_SEEDS[name], *OTHERS) if not run_episode(seed).clean)
    assert run_episode(found).clean


def test_every_planted_bug_has_a_known_seed() -> None:
    assert KNOWN_SEEDS.keys() == PLANTED.keys()
