"""The three songs that were played most in the last hour, every half hour.

    penstock run examples/trending.py

Plays are counted per song in sliding windows; of the counts that end together the first three are picked.
"""

from pathlib import Path

import polars as pl

import penstock as ps

PLAYS = Path(__file__).parent / "data" / "plays.jsonl"
PLAY = {"song": pl.String, "ts": pl.Int64}


def trending(flow: ps.Flow) -> None:
    plays = flow.read(ps.json_lines(PLAYS, schema=PLAY), event_time="ts", unit="s", max_delay="1m", uid="plays")
    counts = plays.key_by("song").window(ps.sliding("1h", every="30m")).agg(plays=ps.count(), uid="counts")
    # The time of a count is the end of its window: those of one moment share a tumbling window.
    counts = counts.select("song", "plays", until="window_end")
    best = counts.top_n(
        3, by=["plays", "song"], descending=[True, False], rank="rank", within=ps.tumbling("30m"), uid="best"
    )
    best.select("until", "rank", "song", "plays").write(ps.print(), uid="top")
