"""How many episodes of which kind, from which seed; the totals at the end."""

import sys
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from kinds import KINDS, seeds

DEFAULT_EPISODES = 4
"""For `make test`; `make torture` asks for more."""
DEFAULT_SEED = 1

TOTALS = pytest.StashKey[dict[str, Counter[str]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--episodes", type=int, default=DEFAULT_EPISODES, help="episodes of random kills")
    parser.addoption("--seed", type=int, default=DEFAULT_SEED, help="seed of the first episode; the next has one more")
    parser.addoption("--kind", choices=sorted(KINDS), help="episodes of this kind of job alone")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        # This file may be read after the command line was, and then there are no options but the defaults.
        option = metafunc.config.getoption
        first, count = option("seed", DEFAULT_SEED), option("episodes", DEFAULT_EPISODES)
        metafunc.parametrize("seed", list(islice(seeds(first, option("kind", None)), count)))


@pytest.fixture
def totals(request: pytest.FixtureRequest) -> dict[str, Counter[str]]:
    """Counters over all episodes, by kind."""
    return request.config.stash.setdefault(TOTALS, {})


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for kind, counted in config.stash.get(TOTALS, {}).items():
        terminalreporter.write_line(f"torture: {kind}: " + ", ".join(f"{n} {what}" for what, n in counted.items()))
