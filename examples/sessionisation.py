"""Visits of a web site: clicks of a user that are less than half an hour apart, with what happened in each.

    penstock run examples/sessionisation.py

prints a line for each visit. Clicks may come up to a minute out of order; those that come later still are printed as
they are, with "late" in front of them.
"""

from pathlib import Path

import polars as pl

import penstock as ps

CLICKS = Path(__file__).parent / "data" / "clicks.jsonl"
CLICK = {"user": pl.String, "page": pl.String, "ts": pl.Int64}


def sessionisation(flow: ps.Flow) -> None:
    clicks = flow.read(
        ps.json_lines(CLICKS, schema=CLICK), event_time="ts", unit="s", max_delay="1m", idle_after="5m", uid="clicks"
    )
    visits = (
        clicks.key_by("user")
        .window(ps.session("30m"), late_to="late")
        .agg(
            clicks=ps.count(),
            pages=ps.count_distinct("page"),
            landing=ps.first("page"),
            exit=ps.last("page"),
            uid="visits",
        )
    )
    visits.write(ps.print(), uid="out")
    visits.side_output("late").write(ps.print(prefix="late "), uid="late")
