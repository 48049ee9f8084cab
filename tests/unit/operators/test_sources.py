"""The source operator over splits that are lists: positions, watermarks, idleness, the end, restore."""

import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model import specs
from penstock.model.clocks import MAX_WATERMARK, MIN_WATERMARK
from penstock.model.errors import RecordError, UserError
from penstock.model.ids import CheckpointId
from penstock.operators.sources import PollResult, SourceOperator

sys.path.insert(0, str(Path(__file__).parent))
from list_source import NOW_US, PAUSE, ListSource, poll_to_end, start


def test_splits_in_turns_advance_time_by_the_slowest() -> None:
    operator, collected, _ = start(
        ListSource({"a": [10, 30], "b": [20, 40]}), watermarks=specs.BoundedDelay(delay_us=2)
    )
    results = poll_to_end(operator)
    assert collected.values() == [10, 20, 30, 40]
    assert [result.watermark for result in results if result.watermark is not None] == [7, 17, MAX_WATERMARK]
    assert operator.current_watermark == MAX_WATERMARK
    assert not any(result.idle for result in results)
    assert operator.poll().ended


def test_one_batch_per_poll_of_the_size_that_is_set() -> None:
    operator, collected, _ = start(ListSource({"a": list(range(1, 8))}), batch_rows=3)
    poll_to_end(operator)
    assert [frame.height for frame in collected.frames] == [3, 3, 1]


def test_sequential_splits_are_read_one_after_the_other_and_unread_ones_hold_nothing_back() -> None:
    source = ListSource({"a": [10, 20], "b": [15, 30]}, sequential=True)
    operator, collected, _ = start(source)
    watermarks = [result.watermark for result in poll_to_end(operator)]
    assert collected.values() == [10, 20, 15, 30]
    assert watermarks == [9, 19, None, MAX_WATERMARK]
    assert [reader.closed for reader in source.readers] == [True, True]


def test_a_subtask_without_splits_ends_at_once() -> None:
    operator, _, _ = start(ListSource({"a": [1]}), subtask=1, parallelism=2)
    assert operator.poll() == PollResult(watermark=MAX_WATERMARK, ended=True, wait_us=operator.poll().wait_us)


def test_time_stays_unknown_until_something_was_read() -> None:
    operator, _, _ = start(ListSource({"a": [PAUSE, 10, 20]}, sequential=True))
    result = operator.poll()
    assert (result.emitted, result.watermark, result.idle, result.wait_us) == (False, None, None, 5_000)
    assert operator.current_watermark == MIN_WATERMARK


def test_a_split_without_rows_for_long_is_idle_and_wakes_up() -> None:
    source = ListSource({"a": [10, 20, 30, PAUSE], "b": [PAUSE, PAUSE, PAUSE, PAUSE, 15, 40]})
    operator, _, clock = start(source, idle_after_us=1_000_000)
    assert operator.poll().watermark is None
    clock.seconds = 2.0
    assert operator.poll().watermark == 19  # b has been silent for two seconds
    operator.poll()
    assert operator.current_watermark == 29
    while source.readers[1].at < 5:
        operator.poll()
    assert operator.current_watermark == 29  # awake again with an older time: nothing goes back


def test_a_source_whose_splits_are_all_idle_says_so_once_and_waits_no_longer_than_until_then() -> None:
    operator, _, clock = start(ListSource({"a": [10, *[PAUSE] * 9, 20, PAUSE]}), idle_after_us=8_000)
    operator.poll()
    assert operator.poll().wait_us == 5_000
    clock.seconds = 0.005
    assert operator.poll().wait_us == 3_000
    clock.seconds = 0.008
    assert operator.poll().idle is True
    assert operator.poll().idle is None
    while not (result := operator.poll()).emitted:
        assert result.idle is None
    assert result.idle is False


def test_splits_are_dealt_out_by_their_number() -> None:
    splits = {name: [index + 1] for index, name in enumerate("abcde")}
    outputs = []
    for subtask in range(2):
        operator, collected, _ = start(ListSource(splits), subtask=subtask, parallelism=2)
        poll_to_end(operator)
        outputs.append(sorted(collected.values()))
    assert outputs == [[1, 3, 5], [2, 4]]


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 99) | st.just(PAUSE), max_size=6), max_size=5),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(0, 12),
    st.booleans(),
)
def test_every_row_is_read_once_over_a_restore_at_any_parallelism(
    contents: list[list[Any]], old: int, new: int, polls: int, sequential: bool
) -> None:
    splits = {f"s{number}": items for number, items in enumerate(contents)}
    output: list[int] = []
    sections: list[pl.DataFrame] = []
    for subtask in range(old):
        operator, collected, _ = start(ListSource(splits, sequential=sequential), subtask=subtask, parallelism=old)
        for _ in range(polls):
            operator.poll()
        snapshot = operator.snapshot(CheckpointId(1))
        output += collected.values()
        for _ in range(2):
            operator.poll()
        sections += [section.frame for section in snapshot()]
    for subtask in range(new):
        source = ListSource(splits, sequential=sequential)
        operator, collected, _ = start(source, subtask=subtask, parallelism=new)
        operator.restore({"splits": sections})
        poll_to_end(operator)
        output += collected.values()
    assert sorted(output) == sorted(item for items in contents for item in items if item is not PAUSE)


def test_the_watermark_of_a_split_survives_a_restore() -> None:
    operator, _, _ = start(ListSource({"a": [100, 50, 60]}))
    operator.poll()
    frames = [section.frame for section in operator.snapshot(CheckpointId(1))()]
    again, collected, _ = start(ListSource({"a": [100, 50, 60]}))
    again.restore({"splits": frames})
    assert again.poll().watermark == 99
    assert collected.values() == [50]


# ---------------------------------------------------------------- alignment


WITHIN_20 = specs.Alignment(within_us=20)


def drain(operator: SourceOperator) -> None:
    """Until nothing more can be read."""
    while operator.poll().emitted:
        pass


def test_a_split_that_is_ahead_waits_for_the_slowest_of_its_subtask() -> None:
    operator, collected, _ = start(
        ListSource({"a": [10, 60, 70], "b": [5, PAUSE, 20, 65, PAUSE]}), alignment=WITHIN_20
    )
    operator.others = MAX_WATERMARK
    for _ in range(3):
        operator.poll()
    assert collected.values() == [10, 5, 60]
    assert not operator.poll().emitted  # a is at 59, b at 4 and silent
    assert operator.held
    assert not operator.awaited_time > 4
    operator.poll()
    operator.poll()
    assert collected.values() == [10, 5, 60, 20, 65]
    operator.poll()
    assert collected.values()[-1] == 70
    assert not operator.held


def test_a_subtask_waits_for_others_and_reads_one_batch_before_it_knows_of_any() -> None:
    operator, collected, _ = start(ListSource({"a": [10, 20, 30, 40, 50, PAUSE]}), alignment=WITHIN_20)
    drain(operator)
    assert (collected.values(), operator.held) == ([10], True)
    operator.others = 15
    drain(operator)
    assert collected.values() == [10, 20, 30, 40]
    operator.others = MAX_WATERMARK
    drain(operator)
    assert collected.values() == [10, 20, 30, 40, 50]
    assert not operator.held


def test_without_a_bound_nobody_waits() -> None:
    operator, collected, _ = start(ListSource({"a": [10, 900], "b": [5, PAUSE]}))
    drain(operator)
    assert collected.values() == [10, 5, 900]


def test_files_wait_too_and_between_two_of_them_nobody_is_let_go() -> None:
    source = ListSource({"a": [10, 60], "b": [PAUSE, 100]}, sequential=True)
    operator, collected, _ = start(source, alignment=WITHIN_20)
    operator.others = -20
    drain(operator)
    assert collected.values() == [10]
    operator.others = 50
    drain(operator)
    assert collected.values() == [10, 60]
    assert operator.awaited_time == 59
    drain(operator)
    assert collected.values() == [10, 60, 100]
    assert operator.awaited_time == MAX_WATERMARK


def test_a_split_that_is_held_is_not_idle_and_an_idle_one_holds_nobody() -> None:
    source = ListSource({"a": [10, 60, 70, PAUSE], "b": [5, *[PAUSE] * 9, 20]})
    operator, collected, clock = start(source, alignment=WITHIN_20, idle_after_us=1_000_000)
    operator.others = MAX_WATERMARK
    drain(operator)
    for clock.seconds in (0.4, 0.8):
        operator.poll()
        assert operator.held
    clock.seconds = 1.1
    result = operator.poll()
    assert result.emitted or result.wait_us == 1_000  # whichever was asked first: b is idle, a may go on at once
    operator.poll()
    assert collected.values() == [10, 5, 60, 70]
    assert operator.awaited_time == 69


def test_a_restored_split_far_ahead_waits_for_those_behind() -> None:
    operator, _, _ = start(ListSource({"a": [100, 110], "b": [90, 120]}), alignment=WITHIN_20)
    operator.others = MAX_WATERMARK
    operator.poll()
    operator.poll()
    frames = [section.frame for section in operator.snapshot(CheckpointId(1))()]
    again, collected, _ = start(ListSource({"a": [100, 110], "b": [90, 120]}), alignment=WITHIN_20)
    again.restore({"splits": frames})
    again.others = 10
    drain(again)
    assert (collected.values(), again.held, again.awaited_time) == ([], True, 89)
    again.others = 80
    poll_to_end(again)
    assert collected.values() == [110, 120]


def test_a_held_source_snapshots_and_stops_as_ever() -> None:
    operator, collected, _ = start(ListSource({"a": [10, 60, 70]}), alignment=WITHIN_20)
    operator.others = -20
    drain(operator)
    assert operator.held
    (frame,) = [section.frame for section in operator.snapshot(CheckpointId(1))()]
    assert frame["position"].to_list() == ['{"item":1}']
    operator.stop_emitting()
    operator.others = MAX_WATERMARK
    assert not operator.poll().emitted
    assert collected.values() == [10]


# ---------------------------------------------------------------- discovery and stop


def test_a_source_goes_on_when_its_last_barrier_was_given_up() -> None:
    operator, collected, _ = start(ListSource({"a": [10, 60, 70]}))
    operator.stop_emitting()
    assert not operator.poll().emitted
    operator.go_on()
    drain(operator)
    assert collected.values() == [10, 60, 70]


def test_new_splits_are_discovered_at_their_interval_and_never_twice() -> None:
    source = ListSource({}, sequential=True)
    source.later = {"x": [10]}
    operator, collected, clock = start(source)
    assert operator.poll().emitted
    source.later |= {"y": [20]}
    result = operator.poll()
    assert (result.emitted, result.ended, result.idle) == (False, False, None)
    assert result.wait_us == 1_000_000
    clock.seconds = 1.0
    assert operator.poll().emitted
    assert collected.values() == [10, 20]
    frames = [section.frame for section in operator.snapshot(CheckpointId(1))()]
    again, more, later = start(source)
    again.restore({"splits": frames})
    later.seconds = 5.0
    assert not again.poll().emitted
    assert more.values() == []


def test_a_subtask_that_only_waits_for_new_splits_holds_nobody_back() -> None:
    source = ListSource({})
    source.later = {}
    operator, _, clock = start(source)
    assert operator.poll().idle is True
    source.later = {"x": [10, 20]}
    clock.seconds = 1.0
    result = operator.poll()
    assert (result.emitted, result.idle, result.watermark) == (True, False, 9)


def test_a_discovered_split_is_read_on_by_exactly_one_subtask_after_a_restore() -> None:
    source = ListSource({"a": [1]})
    source.later = {"x": [10, 20], "y": [30, 40]}
    operator, _, _ = start(source)
    for _ in range(3):
        operator.poll()
    frames = [section.frame for section in operator.snapshot(CheckpointId(1))()]
    output = []
    for subtask in range(2):
        again = ListSource({"a": [1]})
        again.later = dict(source.later)
        restored, collected, _ = start(again, subtask=subtask, parallelism=2)
        restored.restore({"splits": frames})
        for _ in range(4):
            restored.poll()
        output += collected.values()
    assert sorted(output) == [20, 40]


def test_nothing_is_emitted_after_a_stop() -> None:
    operator, collected, _ = start(ListSource({"a": [1, 2, 3]}))
    operator.poll()
    operator.stop_emitting()
    result = operator.poll()
    assert (result.emitted, result.ended, collected.values()) == (False, False, [1])
    assert result.wait_us > 0


def test_closing_closes_open_readers() -> None:
    source = ListSource({"a": [1, 2, 3], "b": [1, 2]})
    operator, _, _ = start(source)
    operator.poll()
    operator.close()
    assert all(reader.closed for reader in source.readers)


# ---------------------------------------------------------------- kinds of time


def test_ingestion_time_is_a_column_and_follows_the_clock_without_rows() -> None:
    operator, collected, clock = start(
        ListSource({"a": [1, PAUSE, PAUSE]}), event_time=None, time_kind="ingestion", ingestion_column="arrived"
    )
    assert operator.poll().watermark == NOW_US - 1
    assert collected.frames[0].schema["arrived"] == pl.Datetime("us")
    assert collected.frames[0]["arrived"].to_physical().to_list() == [NOW_US]
    clock.seconds = 2.0
    assert operator.poll().watermark == NOW_US + 2_000_000 - 1
    clock.seconds = 1.0
    assert operator.poll().watermark in (None, MAX_WATERMARK)


def test_without_event_time_there_is_no_watermark_but_the_last() -> None:
    operator, _, _ = start(ListSource({"a": [1, 2]}), event_time=None, time_kind="none")
    assert [result.watermark for result in poll_to_end(operator)] == [None, MAX_WATERMARK]


@pytest.mark.parametrize(
    ("unit", "value", "microseconds"), [("s", 1_700, 1_700_000_000), ("ms", 17, 17_000), ("ns", 17_999, 17)]
)
def test_integer_times_count_in_their_unit(unit: str, value: int, microseconds: int) -> None:
    operator, _, _ = start(ListSource({"a": [value, PAUSE]}), unit=unit)
    assert operator.poll().watermark == microseconds - 1


@pytest.mark.parametrize("bad", ["null", -5])
def test_a_row_without_event_time_stops_the_job_or_is_dropped_and_counted(bad: Any) -> None:
    operator, _, _ = start(ListSource({"a": [10, bad, 20]}), batch_rows=3)
    with pytest.raises(RecordError, match=r"R004 bids\[0\]: row 1 .*at="):
        operator.poll()
    operator, collected, _ = start(ListSource({"a": [10, bad, 20]}), batch_rows=3, on_bad_record="drop")
    poll_to_end(operator)
    assert collected.values() == [10, 20]
    assert operator.context.counters.bad_rows == 1


def test_times_before_1970_are_fine_in_a_datetime_column() -> None:
    operator, collected, _ = start(ListSource({"a": [-5, PAUSE]}, dtype=pl.Datetime("us")))
    assert operator.poll().watermark == -6
    assert len(collected.values()) == 1


@pytest.mark.parametrize(
    ("unit", "value", "year", "guess"),
    [
        ("s", NOW_US // 1_000, "55840", 'look like milliseconds.*\n.*unit="ms"'),
        ("ms", NOW_US, "55840", 'look like microseconds.*\n.*unit="us"'),
        ("s", NOW_US * 1_000, "", 'look like nanoseconds.*\n.*unit="ns"'),
        ("us", NOW_US * 1_000, "", 'look like nanoseconds.*\n.*unit="ns"'),
    ],
)
def test_a_wrong_unit_is_found_before_it_carries_time_away(unit: str, value: int, year: str, guess: str) -> None:
    operator, collected, _ = start(ListSource({"a": [value]}), unit=unit)
    with pytest.raises(UserError, match=f"P010 bids\\[0\\]: watermark is in year {year}.*{guess}"):
        operator.poll()
    assert collected.values() == []


def test_a_single_row_from_the_far_future_can_be_dropped_but_not_all_of_them() -> None:
    operator, collected, _ = start(
        ListSource({"a": [10, NOW_US * 9, 20, PAUSE, NOW_US * 9]}), batch_rows=3, on_bad_record="drop"
    )
    assert operator.poll().watermark == 19
    assert collected.values() == [10, 20]
    operator.poll()
    with pytest.raises(UserError, match="P010"):
        operator.poll()


@pytest.mark.parametrize(
    ("unit", "value", "guess"),
    [
        ("ms", NOW_US // 1_000_000, 'look like seconds: at=1700000000 read as ms\n.*unit="s"'),
        ("us", NOW_US // 1_000, 'look like milliseconds.*\n.*unit="ms"'),
        ("ns", NOW_US, 'look like microseconds.*\n.*unit="us"'),
        ("ns", NOW_US // 1_000_000, 'look like seconds.*\n.*unit="s"'),
    ],
)
def test_a_unit_that_is_too_small_is_found_where_a_split_begins(unit: str, value: int, guess: str) -> None:
    operator, collected, _ = start(ListSource({"a": [value, value + 1]}), unit=unit, batch_rows=2)
    with pytest.raises(UserError, match=f"P010 bids\\[0\\]: all times are in 1970; timestamps {guess}"):
        operator.poll()
    assert collected.values() == []


@pytest.mark.parametrize(
    ("unit", "items"),
    [
        ("ms", [5, NOW_US // 1_000_000]),  # one row of 1970 is enough: somebody counts from zero
        ("ms", [NOW_US // 1_000]),
        ("s", [NOW_US // 1_000_000]),
        ("us", [86_400_000_000]),
    ],
)
def test_small_numbers_may_be_times(unit: str, items: list[int]) -> None:
    operator, collected, _ = start(ListSource({"a": items}), unit=unit, batch_rows=2)
    poll_to_end(operator)
    assert collected.values() == items


def test_a_split_that_goes_on_is_not_asked_for_its_unit_again() -> None:
    items = [5, NOW_US // 1_000_000]
    operator, collected, _ = start(ListSource({"a": items}), unit="ms")
    poll_to_end(operator)
    assert collected.values() == items


@pytest.mark.parametrize("on_bad_record", ["stop", "drop"])
def test_a_date_before_the_year_1_is_no_time(on_bad_record: str) -> None:
    long_ago = -(2**63) // 500  # in milliseconds: what no integer of microseconds holds
    source = ListSource({"a": [10, long_ago, 20, PAUSE]}, dtype=pl.Datetime("ms"))
    operator, collected, _ = start(source, batch_rows=3, on_bad_record=on_bad_record)
    if on_bad_record == "stop":
        with pytest.raises(RecordError, match="row 1 of the batch has no usable event time"):
            operator.poll()
        return
    assert operator.poll().watermark == 19_999
    assert len(collected.frames[0]) == 2


def test_a_time_column_of_text_is_refused() -> None:
    operator, _, _ = start(ListSource({"a": ["x"]}, dtype=pl.String()))
    with pytest.raises(UserError, match=r"P010 bids\[0\]: event time \"at\" is of type String"):
        operator.poll()
