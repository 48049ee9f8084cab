"""One Spark for all tests of a session: starting one takes longer than most tests."""

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import penstock as ps
from penstock.api.programs import build

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2]))

collect_ignore_glob = ["test_*.py"] if importlib.util.find_spec("pyspark") is None else []
"""Without PySpark there is nothing to test: `make test-spark` installs it."""

SECONDS = 900
"""Of one test, on a machine that is busy with other things: Spark alone takes half a minute to start there."""

OnSpark = Callable[[Callable[[ps.Flow], Any]], dict[str, pl.DataFrame]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(SECONDS))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from penstock import batch

    folder = tmp_path_factory.mktemp("spark")
    conf = {
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "1536m",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    started = batch.session("local[2]", conf)
    yield started
    started.stop()


@pytest.fixture
def on_spark(spark: Any) -> OnSpark:
    """Runs a program; rows of its collect sinks."""
    from penstock import batch

    return lambda program: batch.run(build(program), spark).frames
