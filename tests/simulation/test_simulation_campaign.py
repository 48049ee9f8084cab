import pytest

from penstock.testing import run_episode


@pytest.mark.parametrize("first", range(0, 30, 6))
def test_seeds_are_clean(first: int) -> None:
    for seed in range(first, first + 6):
        episode = run_episode(seed)
        assert episode.clean, (seed, episode.violations[:2], episode.faults)


def test_an_episode_finishes_its_job_and_shows_every_row() -> None:
    episode = run_episode(0)
    assert episode.rows > 0
    assert episode.checkpoints > 0
