"""Every operator of the API, with crashes and restores at other sizes, against a plain interpreter.

Rows, lateness, idleness, batch cuts, crash points and the order of messages are drawn; the programs and what they
mean are in `operator_cases`.
"""

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import testing
from penstock.model.settings import JobSettings, StateSettings

sys.path.insert(0, str(Path(__file__).parent))
from interpreter import Mark, Row, Script, rows_of
from operator_cases import CASES as OPERATORS
from operator_cases import WHOLE_ROWS, Case
from updating_cases import CASES as UPDATING
from window_cases import CASES as WINDOWS

SCHEMA = {"id": int, "key": int, "ts": int, "value": int, "text": str}
EXAMPLES = 5
CASES = [*OPERATORS, *WINDOWS, *UPDATING]


@st.composite
def scripts(draw: st.DrawFn, *, in_time: bool, first_id: int = 0) -> Script:
    """Rows around a time that moves on, and watermarks that may be too eager for some of them."""
    script: Script = []
    now, reached, number = 20, 0, first_id
    for _ in range(draw(st.integers(1, 5))):
        for _ in range(draw(st.integers(0, 5))):
            ts = now + draw(st.integers(-12, 6))
            row: Row = {
                "id": number,
                "key": draw(st.integers(0, 3)),
                "ts": max(ts, reached + 1) if in_time else ts,
                "value": draw(st.integers(-3, 20)),
                "text": draw(st.sampled_from(["a", "b", "a b", "b c a"])),
            }
            script.append(row)
            number += 1
        if draw(st.booleans()):
            reached = max(reached, now - draw(st.integers(0, 10)))
            script.append(Mark(reached))
        now += draw(st.integers(0, 15))
    return script


@st.composite
def runs(draw: st.DrawFn, case: Case) -> tuple[dict[str, Script], dict[str, Any]]:
    """Scripts for the inputs of a case, and how they are run."""
    given_ = {
        name: draw(scripts(in_time=case.in_time, first_id=100 * index)) for index, name in enumerate(case.inputs)
    }
    rows = sum(len(rows_of(script)) for script in given_.values())
    options = {
        "batch_rows": draw(st.sampled_from([1, 2, 3, 100])),
        "idle": draw(st.booleans()),
        "crash_after": draw(st.lists(st.integers(1, max(1, rows)), max_size=2)),
        "restore_parallelism": draw(st.lists(st.sampled_from([1, 2, 3]), max_size=2)),
        "checkpoint_every": draw(st.integers(0, 3)),
        "seed": draw(st.integers(0, 1000)),
    }
    return given_, options


def scripted(script: Script, *, batch_rows: int, idle: bool) -> Any:
    """As the test kit takes it. An input that says it is idle when it has no more to say changes nothing."""
    elements = [testing.watermark(int(each.time)) if isinstance(each, Mark) else each for each in script]
    end = [testing.idle(), testing.pause("100ms")] if idle else []
    return testing.source([*elements, *end], schema=SCHEMA, event_time="ts", unit="s", batch_rows=batch_rows)


def check(case: Case, scripts_: dict[str, Script], options: dict[str, Any], parallelism: int, state: str) -> None:
    """Run it, and compare every output."""
    shape = {name: options.pop(name) for name in ("batch_rows", "idle")}
    inputs = {name: scripted(script, **shape) for name, script in scripts_.items()}
    result = testing.run_stream(case.build, inputs, parallelism=parallelism, settings=SETTINGS[state], **options)
    for name, expected in case.meaning(**scripts_).items():
        keys = case.keys.get(name)
        by = None if keys == WHOLE_ROWS else keys
        testing.assert_rows(result[name] if keys is None else result.table(name, keys=by), expected)


SETTINGS = {
    "memory": JobSettings(),
    "rocksdb": JobSettings(state=StateSettings(backend="rocksdb", memory_budget=1)),
}
"""With a budget of one byte nothing stays in memory that can be elsewhere."""


@pytest.mark.parametrize("state", SETTINGS)
@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_operators_mean_what_they_say_whatever_crashes(case: Case, parallelism: int, state: str) -> None:
    @settings(max_examples=EXAMPLES, database=None)
    @given(runs(case))
    def hold(run: tuple[dict[str, Script], dict[str, Any]]) -> None:
        scripts_, options = run
        check(case, scripts_, dict(options), parallelism, state)

    hold()
