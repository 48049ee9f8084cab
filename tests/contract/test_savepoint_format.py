"""Savepoints that earlier versions have written, kept as they were, still restore.

A folder of `tests/golden` per format, and once more whenever the content of savepoints has changed; `expected.json`
has the rows that came out of the rest of the input. `python tests/contract/test_savepoint_format.py NAME` takes a new
one; those that were part of a release are never taken again.
"""

import json
import sys
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from golden_programs import ROWS, format_1

from penstock import savepoints, testing
from penstock.model.settings import JobSettings, StateSettings
from penstock.savepoints import catalogue
from penstock.testing import runs

GOLDEN = Path(__file__).parents[1] / "golden"
PROGRAMS = {"savepoint-format-1": format_1}
EXPECTED = "expected.json"


def inputs() -> dict[str, Any]:
    return {"rows": testing.source(ROWS, event_time="ts", unit="s", batch_rows=3)}


def plain(result: testing.StreamResult) -> dict[str, list[Any]]:
    return {name: sorted(map(repr, frame.rows())) for name, frame in result.frames.items()}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_this_version_takes_such_savepoints_and_goes_on_from_them(name: str, backend: str) -> None:
    calm = testing.run_stream(PROGRAMS[name], inputs())
    settings = JobSettings(state=StateSettings(backend=backend, memory_budget=1))
    stopped = testing.run_stream(
        PROGRAMS[name], inputs(), parallelism=3, savepoint_after=33, restore_parallelism=2, settings=settings
    )
    assert stopped.restarts == 1
    assert plain(stopped) == plain(calm)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize(("parallelism", "backend"), [(1, "memory"), (2, "rocksdb"), (3, "memory")])
def test_it_restores(name: str, parallelism: int, backend: str) -> None:
    settings = JobSettings(state=StateSettings(backend=backend, memory_budget=1))
    folder = str(GOLDEN / name)
    result = testing.run_stream(
        PROGRAMS[name], inputs(), parallelism=parallelism, start_from=folder, settings=settings
    )
    assert plain(result) == json.loads((GOLDEN / name / EXPECTED).read_text())


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_is_whole_and_is_read_by_other_programs(name: str) -> None:
    found = savepoints.open(str(GOLDEN / name))
    problems = catalogue.verify(found.store, found.manifest, deep=True)
    assert [problem.path for problem in problems] == [EXPECTED]
    for state in found.states:
        rows = found.frame(state)
        folder = Path(found.manifest.state(state).tables[0].path).parent
        pattern = str(GOLDEN / name / folder / "*.parquet")
        assert pl.read_parquet(pattern).columns == rows.columns
        assert duckdb.sql(f"select count(*) from '{pattern}'").fetchall() == [(rows.height,)]


def take(name: str) -> None:
    """Stop the program with a savepoint, keep that, and what came of the rest."""
    folder = GOLDEN / name
    assert not folder.exists(), f"{folder} is there, and must stay as it is"

    def keep(run: runs.Run, savepoint: str = "") -> runs.Leftover:
        left = end(run, savepoint)
        if left.savepoint is not None:
            for info in left.savepoint.list(""):
                path = folder / info.path
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(left.savepoint.get(info.path) or b"")
        return left

    end, runs.Run.end = runs.Run.end, keep  # type: ignore[method-assign]
    testing.run_stream(PROGRAMS[name], inputs(), parallelism=3, savepoint_after=33)
    runs.Run.end = end  # type: ignore[method-assign]
    result = testing.run_stream(PROGRAMS[name], inputs(), parallelism=2, start_from=str(folder))
    (folder / EXPECTED).write_text(json.dumps(plain(result)))


if __name__ == "__main__":
    take(sys.argv[1])
