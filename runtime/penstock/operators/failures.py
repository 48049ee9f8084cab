"""Rows whose function fails: stop the job, put them aside with their error, or drop them.

Owns: the policy of one operator, and its dead letters. Each failed row is counted as a bad row of its operator.
A function's own code is tried once per row; what it had changed before it raised (state, timers, side outputs) stays.
"""

import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl

from penstock.model.errors import PenstockError
from penstock.operators.base import OperatorContext, Output
from penstock.operators.user_errors import FunctionFailed, user_code

STOP, DEAD_LETTER, DROP = POLICIES = ("stop", "dead_letter", "drop")
DEAD_LETTERS = "dead_letters"
"""The side output."""

DEAD_LETTER_SCHEMA = pl.Schema(
    {
        "time": pl.Datetime("us", "UTC"),
        "operator": pl.String(),
        "function": pl.String(),
        "error": pl.String(),
        "message": pl.String(),
        "row": pl.String(),
    }
)
"""The same for every operator, so that the dead letters of a whole job can go to one sink. `row` is JSON."""

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

CurrentRow = Callable[[], Mapping[str, object] | None]


class Failures:
    """What one operator does with them."""

    def __init__(
        self, policy: str, context: OperatorContext, output: Output, *, tells: Callable[[], bool] = lambda: True
    ) -> None:
        """`tells` is asked whether a failed row is to be counted and put aside here, or another subtask does so."""
        self._policy, self._context, self._output, self._tells = policy, context, output, tells
        self._letters: list[tuple[Any, ...]] = []

    @property
    def tolerated(self) -> bool:
        """Whether the job goes on after one."""
        return self._policy != STOP

    def run(self, step: Callable[[], None], function: str, shown: CurrentRow, whole: CurrentRow | None = None) -> None:
        """Run user code that calls a function row by row and can be gone on with after the row that failed."""
        while True:
            try:
                with user_code(self._context, function, shown):
                    step()
            except PenstockError as failure:
                self.take(failure, function, whole or shown)
            else:
                break
        self.flush()

    def run_frame(self, call: Callable[[pl.DataFrame], None], frame: pl.DataFrame, function: str) -> None:
        """Call with a frame. One that fails is called with its halves, down to the rows that fail alone."""
        waiting = [frame]
        while waiting:
            part = waiting.pop()
            try:
                with user_code(self._context, function, lambda part=part: {"rows": part.height}):  # type: ignore[misc]
                    call(part)
            except PenstockError as failure:
                if part.height == 1 or not self.tolerated:
                    self.take(failure, function, lambda part=part: part.row(0, named=True))  # type: ignore[misc]
                else:
                    half = part.height // 2
                    waiting += part[half:], part[:half]
        self.flush()

    def take(self, failure: PenstockError, function: str, row: CurrentRow) -> None:
        """Put the row aside, or raise."""
        if not self.tolerated or not (isinstance(failure, FunctionFailed) or failure.code == "P014"):
            raise failure
        if not self._tells():
            return
        self._context.counters.bad_rows += 1
        values = row()
        if self._policy == DEAD_LETTER:
            error = failure.__cause__ or failure
            now = _EPOCH + datetime.timedelta(microseconds=self._context.clock.now_us())
            letter = (now, self._context.uid, function, _type_name(error), str(error), _as_json(values))
            self._letters.append(letter)

    def flush(self) -> None:
        """Let the dead letters go."""
        if self._letters:
            frame = pl.DataFrame(self._letters, schema=DEAD_LETTER_SCHEMA, orient="row")
            self._letters = []
            self._output.emit_side(DEAD_LETTERS, frame)


def _type_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _as_json(row: Mapping[str, object] | None) -> str | None:
    return None if row is None else json.dumps(row, default=_plain, ensure_ascii=False)


def _plain(value: object) -> object:
    match value:
        case datetime.datetime() | datetime.date() | datetime.time():
            return value.isoformat()
        case bytes():
            return value.hex()
        case pl.Series():
            return value.to_list()
        case Sequence():
            return list(value)
    return str(value)
