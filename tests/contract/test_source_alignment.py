"""No split runs ahead of the slowest by more than the bound: in one subtask, over subtasks and over sources.

Splits are lists of rows with pauses between them. What is checked is the order in which rows came to the sink: when a
row was read, its split was not further ahead of any unfinished split than allowed.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock import testing

sys.path.insert(0, str(Path(__file__).parent))
from test_operators_under_faults import SETTINGS

SCHEMA = {"split": str, "ts": int}
WITHIN = 10
EXAMPLES = 5

Times = list[int]


def elements(name: str, times: Times, pause_ms: int) -> list[Any]:
    rows = [[{"split": name, "ts": ts}, testing.pause(f"{pause_ms}ms")] for ts in times]
    return [each for pair in rows for each in pair]


def overtakings(order: Sequence[tuple[str, int]], splits: dict[str, Times], within: int) -> list[tuple[str, int, int]]:
    """Rows that were read while their split was too far ahead: split, where it was, where the slowest was."""
    reached: dict[str, float] = dict.fromkeys(splits, float("-inf"))
    left = {name: len(times) for name, times in splits.items()}
    found = []
    for name, ts in order:
        slowest = min(reached[each] for each in splits if left[each])
        if reached[name] > slowest + within:
            found.append((name, reached[name], slowest))
        reached[name] = max(reached[name], ts)
        left[name] -= 1
    return found


def read_order(result: testing.StreamResult) -> list[tuple[str, int]]:
    frames = [event for event in result.events("result") if not isinstance(event, int)]
    return [row for frame in frames for row in frame.rows()]


def as_they_are(one: ps.DataStream) -> dict[str, ps.DataStream]:
    return {"result": one}


def together(one: ps.DataStream, other: ps.DataStream) -> dict[str, ps.DataStream]:
    return {"result": one.union(other)}


def source(splits: dict[str, Times], pauses: Sequence[int], **options: Any) -> Any:
    scripts = [elements(name, times, pause) for (name, times), pause in zip(splits.items(), pauses, strict=True)]
    return testing.source(*scripts, schema=SCHEMA, event_time="ts", unit="s", max_delay=0, batch_rows=1, **options)


FAST_AND_SLOW = {"fast": list(range(0, 100, 2)), "slow": list(range(0, 100, 5))}


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("within", [None, WITHIN])
def test_a_fast_split_waits_for_a_slow_one_and_without_a_bound_it_does_not(parallelism, within):
    inputs = {"one": source(FAST_AND_SLOW, [1, 300], align_within=within)}
    result = testing.run_stream(as_they_are, inputs, parallelism=parallelism)
    order = read_order(result)
    assert sorted(order) == sorted((name, ts) for name, times in FAST_AND_SLOW.items() for ts in times)
    assert bool(overtakings(order, FAST_AND_SLOW, WITHIN)) == (within is None)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_sources_of_one_group_wait_for_each_other(parallelism):
    fast, slow = ({name: times} for name, times in FAST_AND_SLOW.items())
    for options in ({"align_group": "shop"}, {}):
        inputs = {
            "one": source(fast, [1], align_within=WITHIN, **options),
            "other": source(slow, [300], align_within=WITHIN, **options),
        }
        order = read_order(testing.run_stream(together, inputs, parallelism=parallelism))
        assert bool(overtakings(order, FAST_AND_SLOW, WITHIN)) == (not options)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_split_that_has_ended_or_fallen_idle_holds_nobody_back(parallelism):
    ended = [{"split": "a", "ts": 0}]
    idle = [{"split": "b", "ts": 0}, testing.idle(), testing.pause("3m")]
    fast = [{"split": "c", "ts": ts} for ts in range(0, 1000, 9)]
    given_ = testing.source(
        ended, idle, fast, schema=SCHEMA, event_time="ts", unit="s", max_delay=0, batch_rows=1, align_within=WITHIN
    )
    order = read_order(testing.run_stream(as_they_are, {"one": given_}, parallelism=parallelism))
    assert len(order) == 2 + len(fast)


def test_a_silent_split_holds_others_until_it_counts_as_idle():
    silent = [{"split": "a", "ts": 0}, testing.pause("3m"), {"split": "a", "ts": 5}]
    fast = [{"split": "b", "ts": ts} for ts in range(0, 100, 9)]
    given_ = testing.source(
        silent, fast, schema=SCHEMA, event_time="ts", unit="s", max_delay=0, align_within=WITHIN, idle_after="30s"
    )
    order = read_order(testing.run_stream(as_they_are, {"one": given_}, parallelism=2))
    assert order[-1] == ("a", 5)  # and not before the others, which have gone on without it


@st.composite
def drawn_splits(draw: st.DrawFn) -> tuple[dict[str, Times], list[int]]:
    splits = {}
    for name in draw(st.sampled_from(["ab", "abc", "abcd"])):
        steps = draw(st.lists(st.integers(-3, 12), min_size=1, max_size=12))
        splits[name] = [20 + sum(steps[: number + 1]) for number in range(len(steps))]
    return splits, [draw(st.sampled_from([0, 3, 40, 700])) for _ in splits]


@pytest.mark.parametrize("state", SETTINGS)
@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("sources", [1, 2])
def test_rows_are_those_of_a_run_without_alignment_and_the_bound_holds_whatever_crashes(sources, parallelism, state):
    @settings(max_examples=EXAMPLES, database=None)
    @given(
        drawn_splits(),
        st.lists(st.integers(1, 12), max_size=2),
        st.lists(st.sampled_from([1, 2, 3]), max_size=2),
        st.integers(0, 3),
        st.integers(0, 1000),
    )
    def hold(
        drawn: tuple[dict[str, Times], list[int]],
        crash_after: list[int],
        restore_parallelism: list[int],
        checkpoint_every: int,
        seed: int,
    ) -> None:
        splits, pauses = drawn
        names = list(splits)
        cut = len(names) if sources == 1 else 1
        inputs = {}
        for name, part in (("one", names[:cut]), ("other", names[cut:])):
            if part:
                chosen = {each: splits[each] for each in part}
                waits = [pauses[names.index(each)] for each in part]
                inputs[name] = source(chosen, waits, align_within=WITHIN, align_group="all")
        result = testing.run_stream(
            as_they_are if sources == 1 else together,
            inputs,
            parallelism=parallelism,
            settings=SETTINGS[state],
            crash_after=crash_after,
            restore_parallelism=restore_parallelism,
            checkpoint_every=checkpoint_every,
            seed=seed,
        )
        order = read_order(result)
        assert sorted(order) == sorted((name, ts) for name, times in splits.items() for ts in times)
        assert overtakings(order, splits, WITHIN) == []

    hold()
