"""How many episodes, from which seed; the totals at the end."""

import pytest

DEFAULT_EPISODES = 3
"""For `make test`; `make torture` asks for more."""
DEFAULT_SEED = 1

TOTALS = pytest.StashKey[dict[str, int]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--episodes", type=int, default=DEFAULT_EPISODES, help="episodes of random kills")
    parser.addoption("--seed", type=int, default=DEFAULT_SEED, help="seed of the first episode; the next has one more")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        # This file may be read after the command line was, and then there are no options but the defaults.
        first = metafunc.config.getoption("seed", DEFAULT_SEED)
        count = metafunc.config.getoption("episodes", DEFAULT_EPISODES)
        metafunc.parametrize("seed", range(first, first + count))


@pytest.fixture
def totals(request: pytest.FixtureRequest) -> dict[str, int]:
    """Counters over all episodes."""
    return request.config.stash.setdefault(TOTALS, {})


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if totals := config.stash.get(TOTALS, None):
        terminalreporter.write_line("torture: " + ", ".join(f"{count} {what}" for what, count in totals.items()))
