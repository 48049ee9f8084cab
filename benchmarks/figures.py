"""What a benchmark comes to: figures with their goals, for people as a table and for machines as JSON lines."""

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Literal

COLUMNS = ("bench", "case", "metric", "value", "goal", "holds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured value. Without a goal it is there to be read, and neither holds nor fails."""

    bench: str
    case: str
    metric: str
    value: float
    better: Literal["lower", "higher"] = "lower"
    goal: float | None = None

    @property
    def holds(self) -> bool | None:
        """Whether the goal is met."""
        if self.goal is None:
            return None
        return self.value <= self.goal if self.better == "lower" else self.value >= self.goal

    def as_json(self) -> str:
        """One line."""
        value = None if math.isnan(self.value) else float(f"{self.value:.6g}")
        return json.dumps({**asdict(self), "value": value, "holds": self.holds})

    def as_row(self) -> tuple[str, ...]:
        """Cells of the table, as in `COLUMNS`."""
        goal = "" if self.goal is None else f"{'<=' if self.better == 'lower' else '>='} {_readable(self.goal)}"
        holds = {None: "", True: "yes", False: "NO"}[self.holds]
        return self.bench, self.case, self.metric, _readable(self.value), goal, holds


class Table:
    """Prints figures as they come, in columns of fixed width: a run takes minutes, and each line is news."""

    WIDTHS = (8, 16, 32, 12, 10, 5)

    def __init__(self) -> None:
        self._print(COLUMNS)
        print("-" * (sum(self.WIDTHS) + 2 * len(self.WIDTHS)), flush=True)

    def add(self, figure: Figure) -> None:
        """One line."""
        self._print(figure.as_row())

    def _print(self, cells: Iterable[str]) -> None:
        padded = (
            cell.rjust(width) if name in ("value", "goal") else cell.ljust(width)
            for name, cell, width in zip(COLUMNS, cells, self.WIDTHS, strict=True)
        )
        print("  ".join(padded).rstrip(), flush=True)


def interleaved(runs: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Run each in turn, `repeats` times round: what disturbs the machine disturbs all of them."""
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            taken[name].append(run())
    return taken


def median_ratio(values: list[float], reference: list[float]) -> float:
    """Median over the rounds of value to reference of the same round."""
    return statistics.median(value / base for value, base in zip(values, reference, strict=True))


def _readable(value: float) -> str:
    if math.isnan(value):
        return "-"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
