"""Every operator of the API survives a stop with a savepoint and a start from it, at other sizes, with nothing else.

The cases, their inputs and their meaning are those of `test_operators_under_faults`. All but the savepoint is thrown
away: what a restored job knows has been a Parquet table.
"""

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from interpreter import Script, rows_of
from operator_cases import Case
from test_operators_under_faults import CASES, SETTINGS, check, scripts

EXAMPLES = 3


@st.composite
def runs(draw: st.DrawFn, case: Case) -> tuple[dict[str, Script], dict[str, Any]]:
    given_ = {
        name: draw(scripts(in_time=case.in_time, first_id=100 * index)) for index, name in enumerate(case.inputs)
    }
    rows = sum(len(rows_of(script)) for script in given_.values())
    options = {
        "batch_rows": draw(st.sampled_from([1, 2, 100])),
        "idle": False,
        "savepoint_after": draw(st.lists(st.integers(1, max(1, rows)), min_size=1, max_size=2)),
        "restore_parallelism": draw(st.lists(st.sampled_from([1, 2, 5]), min_size=1, max_size=2)),
        "checkpoint_every": draw(st.integers(0, 3)),
        "seed": draw(st.integers(0, 1000)),
    }
    return given_, options


@pytest.mark.parametrize("state", SETTINGS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_operators_go_on_from_a_savepoint(case: Case, state: str) -> None:
    @settings(max_examples=EXAMPLES, database=None)
    @given(runs(case))
    def hold(run: tuple[dict[str, Script], dict[str, Any]]) -> None:
        scripts_, options = run
        check(case, scripts_, dict(options), 3, state)

    hold()
