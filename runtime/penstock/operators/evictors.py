"""Which rows a window keeps when it fires: masks over the rows of all windows that fire together."""

import numpy as np
import polars as pl
from polars.exceptions import PolarsError

from penstock.model import specs
from penstock.operators.expressions import Column, expression_error
from penstock.operators.window_cells import Mask, Numbers, ranks


class WindowEvictor:
    """Runs one `Evictor`."""

    def __init__(self, spec: specs.Evictor, uid: str) -> None:
        self._spec, self._uid = spec, uid
        self._keep = Column.of(spec.keep) if spec.keep is not None else None

    @property
    def after(self) -> bool:
        """Rows are looked at when the function has seen them."""
        return self._spec.after

    def kept(self, rows: pl.DataFrame, numbers: Numbers, times: Numbers) -> Mask:
        """Rows that stay; they are in the order in which they came, `numbers` says whose window each is in."""
        if self._keep is not None:
            try:
                return rows.select(self._keep.expression).to_series().fill_null(False).to_numpy()
            except PolarsError as error:
                raise expression_error(error, rows, [self._keep], self._uid) from error
        if self._spec.kind == "count":
            behind = ranks(numbers[::-1])[::-1]
            return behind < self._spec.count
        latest = np.full(int(numbers.max(initial=-1)) + 1, np.iinfo(np.int64).min)
        np.maximum.at(latest, numbers, times)
        return times > latest[numbers] - self._spec.size_us
