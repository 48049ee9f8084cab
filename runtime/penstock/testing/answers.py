"""What must come out of a job, as it can be said before the job runs.

Most jobs have one right answer, row for row. Windows that follow the clock have many: only what they add up to is
known.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any, Protocol

Row = tuple[Any, ...]


class Answer(Protocol):
    """Judges rows as they become visible, and when all is over."""

    def too_much(self, visible: "Counter[Row]", row: Row) -> str | None:
        """What is wrong now that `row` is visible too."""
        ...

    def missing(self, visible: "Counter[Row]") -> str | None:
        """What is wrong when nothing more will come."""
        ...


class ExactRows:
    """These rows, each so many times."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._expected = Counter(rows)

    def too_much(self, visible: "Counter[Row]", row: Row) -> str | None:
        """A row that is not expected, or not that often."""
        if visible[row] <= self._expected[row]:
            return None
        return f"row {row} is visible {visible[row]} times, expected {self._expected[row]}"

    def missing(self, visible: "Counter[Row]") -> str | None:
        """A row that never came."""
        if not (missing := self._expected - visible):
            return None
        row, times = next(iter(sorted(missing.items(), key=repr)))
        return f"{missing.total()} rows are missing, the first {times} times {row}"


class SumsPerKey:
    """Rows (key, start, end, count, sum) in any windows, that add up to these counts and sums."""

    def __init__(self, values: dict[int, list[int]]) -> None:
        self._expected = {key: (len(each), sum(each)) for key, each in values.items()}

    def too_much(self, visible: "Counter[Row]", row: Row) -> str | None:
        """Values that were counted twice."""
        count, _ = _added_up(visible).get(row[0], (0, 0))
        wanted, _ = self._expected.get(row[0], (0, 0))
        return f"{count} values of key {row[0]} are visible, expected {wanted}" if count > wanted else None

    def missing(self, visible: "Counter[Row]") -> str | None:
        """Values that never came, or came changed."""
        found = _added_up(visible)
        return None if found == self._expected else f"counts and sums are {found}, expected {self._expected}"


def _added_up(visible: "Counter[Row]") -> dict[int, tuple[int, int]]:
    sums: dict[int, tuple[int, int]] = {}
    for (key, _, _, count, total), times in visible.items():
        before = sums.get(key, (0, 0))
        sums[key] = (before[0] + count * times, before[1] + total * times)
    return sums


class StandingRows:
    """Rows (key, start, end, count, ..., change) of a changelog of windows that grow: those left standing are these.

    Bounds come once, and go once; in between the count of their rows only grows. So the order in which changes
    became visible need not be known.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        self._expected = set(rows)

    def too_much(self, visible: "Counter[Row]", row: Row) -> str | None:
        """A change that came twice."""
        return f"change {row} is visible {visible[row]} times" if visible[row] > 1 else None

    def missing(self, visible: "Counter[Row]") -> str | None:
        """Rows that stand and should not, or the other way round."""
        bounds = {change: Counter(row[:3] for row in visible if row[-1] == change) for change in ("insert", "delete")}
        if any(times > 1 for each in bounds.values() for times in each.values()):
            return "the same window was inserted, or deleted, more than once"
        newest: dict[Row, Row] = {}
        for row in sorted(visible, key=lambda row: row[3]):
            newest[row[:3]] = row[:-1]
        if missed := newest.keys() ^ bounds["insert"].keys():
            return f"{len(missed)} windows changed that were never inserted, the first {min(missed)}"
        standing = {row for window, row in newest.items() if window not in bounds["delete"]}
        if not (wrong := standing ^ self._expected):
            return None
        first = min(wrong)
        return f"{len(wrong)} rows stand wrongly or are missing, the first {first}: {first in standing} instead"


class Together:
    """Several answers, told apart by the number of columns of their rows."""

    def __init__(self, parts: dict[int, Answer]) -> None:
        self._parts = parts

    def too_much(self, visible: "Counter[Row]", row: Row) -> str | None:
        """As its part says."""
        return self._parts[len(row)].too_much(_of_width(visible, len(row)), row)

    def missing(self, visible: "Counter[Row]") -> str | None:
        """As the first part says that misses something."""
        told = (part.missing(_of_width(visible, width)) for width, part in self._parts.items())
        return next((text for text in told if text is not None), None)


def _of_width(visible: "Counter[Row]", width: int) -> "Counter[Row]":
    return Counter({row: times for row, times in visible.items() if len(row) == width})
