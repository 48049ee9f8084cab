"""Words of a text stream, counted in windows of 5 seconds.

In one terminal: `nc -lk 9999`. In another: `penstock run examples/word_count.py`. Then type into the first.
"""

import os

import penstock as ps
from penstock import col


def word_count(flow: ps.Flow) -> None:
    host, port = os.environ.get("LINES_FROM", "localhost:9999").rsplit(":", 1)
    lines = flow.read(ps.socket_lines(host, int(port)), time="processing", uid="lines")
    words = lines.select(word=col("line").str.to_lowercase().str.replace_all(r"\W+", " ").str.split(" "))
    counts = (
        words.explode("word")
        .filter(col("word") != "")
        .key_by("word")
        .window(ps.tumbling("5s"))
        .agg(count=ps.count(), uid="counts")
    )
    counts.write(ps.print(), uid="printed")
