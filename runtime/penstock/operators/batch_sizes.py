"""How many rows to take at once: as many as cost about what they may, whatever is measured. Pure.

Small batches bring a barrier and the first row through soon, large ones cost less per row. So a batch grows while full
ones cost little, and shrinks at once when one cost too much: rows that a kernel handles come by the ten thousand, rows
of a function that takes a millisecond for each come by the dozen.

What a batch costs is taken for a fixed part and one per row, fitted to the last batches. Where the fixed part alone is
too much (a call over the network for each batch), smaller batches would only make rows dearer: then the rows' part is
allowed as much as the fixed one, and little more than half is lost.
"""

_MEMORY = 0.8
"""Weight of what was measured before, against one more batch."""

_CHANGE_MOST = 4
"""One bad moment of the machine must not undo all growth; a function that is really slow is met again at once."""

_LEAST_SPREAD = 1e-2
"""Batches whose sizes differ less (variance to squared mean) do not tell the two parts apart."""

_PROBE = 1.25
"""So much larger or smaller a batch is tried where the two parts cannot be told apart."""


class BatchSize:
    """Rows per batch of one reader."""

    def __init__(self, most: int, *, target: float, first: int) -> None:
        """Up to `most` rows, `first` to begin with; a batch may cost `target`."""
        self.rows = min(first, most)
        self._most, self._target = most, target
        self._weight = self._sum_rows = self._sum_cost = self._sum_squares = self._sum_products = 0.0

    def measured(self, rows: int, cost: float) -> None:
        """A batch of so many rows has cost this."""
        self._weight = self._weight * _MEMORY + 1
        self._sum_rows = self._sum_rows * _MEMORY + rows
        self._sum_cost = self._sum_cost * _MEMORY + cost
        self._sum_squares = self._sum_squares * _MEMORY + rows * rows
        self._sum_products = self._sum_products * _MEMORY + rows * cost
        if cost > self._target:
            wanted = max(self._affordable(), self.rows / _CHANGE_MOST)
        elif rows >= self.rows:
            cheap = cost <= self._target / _CHANGE_MOST
            wanted = self.rows * _CHANGE_MOST if cheap else max(self._affordable(), self.rows)
        else:
            return
        self.rows = int(max(1, min(wanted, self.rows * _CHANGE_MOST, self._most)))

    def _affordable(self) -> float:
        """Rows of which a batch costs the target; or twice its fixed part, where that is more."""
        mean_rows, mean_cost = self._sum_rows / self._weight, self._sum_cost / self._weight
        spread = self._sum_squares / self._weight - mean_rows**2
        per_row = mean_cost / mean_rows
        if spread > _LEAST_SPREAD * mean_rows**2:
            fitted = (self._sum_products / self._weight - mean_rows * mean_cost) / spread
            per_row = min(max(fitted, 0.0), per_row)
        elif mean_cost <= self._target or self.rows == 1:
            return self.rows * _PROBE + 1
        else:
            return min(mean_rows / _PROBE, self._target / per_row)
        fixed = mean_cost - per_row * mean_rows
        return max(self._target - fixed, fixed) / per_row if per_row > 0 else self._most
