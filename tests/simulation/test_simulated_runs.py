"""Jobs that are ended on the way and started again, and the answers that their runs have to give together."""

from collections import Counter

from penstock.testing import run_episode
from penstock.testing.answers import ExactRows, SumsPerKey, Together

ROWS = ExactRows([("a", 1), ("a", 1), ("b", 2)])


def test_rows_are_right_when_each_is_there_as_often_as_expected() -> None:
    assert ROWS.missing(Counter({("a", 1): 2, ("b", 2): 1})) is None
    assert ROWS.missing(Counter({("a", 1): 1})) == "2 rows are missing, the first 1 times ('a', 1)"
    assert ROWS.too_much(Counter({("a", 1): 2}), ("a", 1)) is None
    assert ROWS.too_much(Counter({("a", 1): 3}), ("a", 1)) == "row ('a', 1) is visible 3 times, expected 2"
    assert ROWS.too_much(Counter({("c", 1): 1}), ("c", 1)) == "row ('c', 1) is visible 1 times, expected 0"


def test_windows_of_the_clock_are_right_when_they_add_up() -> None:
    sums = SumsPerKey({1: [10, 20, 30]})
    early, late = (1, 0, 5, 1, 10), (1, 5, 10, 2, 50)
    assert sums.missing(Counter([early, late])) is None
    assert sums.missing(Counter([early])) is not None
    assert sums.too_much(Counter([early, late]), late) is None
    assert sums.too_much(Counter([early, late, late]), late) == "5 values of key 1 are visible, expected 3"


def test_two_pipelines_are_judged_each_by_its_own_answer() -> None:
    both = Together({2: ROWS, 1: ExactRows([("x",)])})
    assert both.missing(Counter({("a", 1): 2, ("b", 2): 1, ("x",): 1})) is None
    assert both.missing(Counter({("a", 1): 2, ("b", 2): 1})) == "1 rows are missing, the first 1 times ('x',)"
    assert both.too_much(Counter({("x",): 2}), ("x",)) is not None


def test_some_jobs_are_stopped_and_some_cancelled_and_all_give_their_answer() -> None:
    marks: Counter[str] = Counter()
    for seed in range(30, 60):
        episode = run_episode(seed)
        assert episode.clean, (seed, episode.violations[:2], episode.faults)
        marks.update(episode.marks.keys())
    assert marks["stopped, to go on from a checkpoint"]
    assert marks["cancelled, to go on from a checkpoint"]
    assert marks["split discovered"]
