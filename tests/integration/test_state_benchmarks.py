"""The benchmarks of keyed state run from end to end with little state; their figures of speed are not looked at."""

import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks import checkpoints, data, state
from benchmarks.figures import Figure

SCALE = 0.002

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "CACHE", tmp_path)


def by_metric(figures: list[Figure]) -> dict[str, float]:
    values = {figure.metric: figure.value for figure in figures}
    assert all(math.isfinite(value) and value > 0 for value in values.values()), values
    return values


@pytest.mark.parametrize("form", ["per record", "per batch"])
def test_both_backends_are_measured_in_turn(form: str) -> None:
    values = by_metric(list(state.run(repeats=1, scale=SCALE, cases=[form])))
    assert values["most resident to budget"] < state.MEMORY_GOAL


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_what_checkpoints_upload_is_compared_with_what_has_changed(backend: str) -> None:
    values = by_metric(list(checkpoints.run(repeats=1, scale=SCALE, cases=[backend])))
    assert values["state MB"] > SCALE * 1000
