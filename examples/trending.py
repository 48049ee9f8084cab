"""The three songs that were played most in the last hour, every ten minutes.

Plays are counted per song in sliding windows; a window of all songs then ranks what belongs together.
"""

import polars as pl

import penstock as ps
from penstock import col

PLAY = {"song": pl.String, "ts": pl.Int64}


def best_three(ranked: pl.DataFrame) -> pl.DataFrame:
    rows = ranked.explode("songs", "plays").sort("window_end", "plays", "songs", descending=[False, True, False])
    top = rows.group_by("window_end", maintain_order=True).head(3)
    return top.select("window_end", song="songs", plays="plays")


def trending(flow: ps.Flow) -> None:
    plays = flow.read(ps.json_lines("plays", schema=PLAY), event_time="ts", unit="s", max_delay="1m", uid="plays")
    counts = plays.key_by("song").window(ps.sliding("1h", every="10m")).agg(plays=ps.count(), uid="counts")
    together = counts.window(ps.tumbling("10m")).agg(
        songs=ps.collect_list("song"), plays=ps.collect_list("plays"), uid="together"
    )
    output = {"window_end": pl.Int64, "song": pl.String, "plays": pl.Int64}
    top = together.select("window_end", "songs", "plays").map_batches(best_three, output=output)
    top.filter(col("plays") > 0).write(ps.parquet("trending"), uid="top")
