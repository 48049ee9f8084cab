"""What a reader may see at any time, and what it must have seen in the end. Plain Polars: no word of the engine's."""

from dataclasses import dataclass
from typing import Protocol

import polars as pl


class Oracle(Protocol):
    """Judges the rows that are visible."""

    @property
    def columns(self) -> list[str]:
        """What is read of each row."""
        ...

    def complaints(self, rows: pl.DataFrame) -> list[str]:
        """What no reader should see."""
        ...

    def missing(self, rows: pl.DataFrame) -> list[str]:
        """What is wrong when nothing more will come."""
        ...


@dataclass(frozen=True, slots=True)
class EqualRows:
    """These rows, each once; none is there twice."""

    expected: pl.DataFrame

    @property
    def columns(self) -> list[str]:
        return self.expected.columns

    def complaints(self, rows: pl.DataFrame) -> list[str]:
        found = _duplicates(rows)
        wrong = rows.cast(dict(self.expected.schema)).join(
            self.expected, on=self.expected.columns, how="anti", nulls_equal=True
        )
        if wrong.height:
            found.append(f"{wrong.height} rows are in no fault-free result: {wrong.head(3).rows()}")
        return found

    def missing(self, rows: pl.DataFrame) -> list[str]:
        if rows.height == self.expected.height:
            return []
        return [f"{rows.height} rows are visible, expected are {self.expected.height}"]


BOUNDS = ["key", "start", "end"]


@dataclass(frozen=True, slots=True)
class GrowingSessions:
    """Changes of sessions (key, start, end, rows, total, change), and rows that came too late for any.

    Which changes are shown on the way depends on when what comes. But each session of the result grows from parts of
    itself: bounds are inserted once, and deleted at most once; in between the number of rows only grows. What is left
    standing are the sessions of all rows that were not too late.
    """

    sessions: pl.DataFrame
    too_late: pl.DataFrame
    """With the columns of a change too: key, start; change is "late"."""

    @property
    def columns(self) -> list[str]:
        return [*self.sessions.columns, "change"]

    def complaints(self, rows: pl.DataFrame) -> list[str]:
        changes, late = rows.filter(pl.col("change") != "late"), rows.filter(pl.col("change") == "late")
        found = _duplicates(rows)
        if (strange := late.join(self.too_late, on=["key", "start"], how="anti")).height:
            found.append(f"{strange.height} rows were not late: {strange.head(3).rows()}")
        whole = changes.sort("start").join_asof(
            self.sessions.sort("start"), on="start", by="key", suffix="_whole", check_sortedness=False
        )
        outside = whole.filter(
            pl.col("end_whole").is_null()
            | (pl.col("end") > pl.col("end_whole"))
            | (pl.col("rows") > pl.col("rows_whole"))
        )
        if outside.height:
            found.append(f"{outside.height} sessions are part of none: {outside.head(3).rows()}")
        once = changes.filter(pl.col("change") != "update").select(*BOUNDS, "change")
        if twice := int(once.is_duplicated().sum()):
            found.append(f"{twice} sessions were inserted or deleted more than once")
        return found

    def missing(self, rows: pl.DataFrame) -> list[str]:
        late, changes = rows.filter(pl.col("change") == "late"), rows.filter(pl.col("change") != "late")
        inserted, deleted = (changes.filter(pl.col("change") == change) for change in ("insert", "delete"))
        newest = changes.sort("rows").unique(BOUNDS, keep="last")
        standing = newest.join(deleted, on=BOUNDS, how="anti").select(self.sessions.columns)
        found = [] if late.height == self.too_late.height else [f"{late.height} of {self.too_late.height} late rows"]
        if newest.height != inserted.height:
            found.append(f"{newest.height} sessions changed, and {inserted.height} were inserted")
        for what, left, right in (("missing", self.sessions, standing), ("wrong", standing, self.sessions)):
            odd = left.join(right, on=self.sessions.columns, how="anti")
            if odd.height:
                found.append(f"{odd.height} sessions are {what}: {odd.head(3).rows()}")
        return found


def _duplicates(rows: pl.DataFrame) -> list[str]:
    twice = int(rows.is_duplicated().sum())
    return [f"{twice} rows are there more than once"] if twice else []
