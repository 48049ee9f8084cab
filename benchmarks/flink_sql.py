"""The stateful queries in Flink SQL. Runs under the Python of Flink's own environment, which has no Penstock.

Takes one JSON line per query and answers with the seconds it took: one JVM, warm, parallelism 1, checkpoints each
second, state on the heap (its fastest), objects reused.
"""

import json
import os
import sys
import time

from pyflink.table import EnvironmentSettings, TableEnvironment

BIDS = """
CREATE TEMPORARY TABLE bids (
    auction BIGINT, bidder BIGINT, price BIGINT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts
) WITH ('connector' = 'filesystem', 'path' = '{files}', 'format' = 'csv')
"""
RESULTS = (
    "CREATE TEMPORARY TABLE results ({columns}) WITH ('connector' = 'filesystem', 'path' = '{out}', 'format' = 'csv')"
)

TUMBLING = "TABLE(TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '10' SECOND))"
SLIDING = "TABLE(HOP(TABLE bids, DESCRIPTOR(ts), INTERVAL '2' SECOND, INTERVAL '10' SECOND))"
FIRST_OF_WINDOW = "ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY {order}) AS place"

QUERIES = {
    "q5": (
        "window_end TIMESTAMP(3), auction BIGINT, bids BIGINT",
        f"""
        SELECT window_end, auction, bids FROM (
            SELECT *, {FIRST_OF_WINDOW.format(order="bids DESC, auction DESC")} FROM (
                SELECT window_start, window_end, auction, COUNT(*) AS bids FROM {SLIDING}
                GROUP BY window_start, window_end, auction
            )
        ) WHERE place <= 1
        """,
    ),
    "q7": (
        "window_start TIMESTAMP(3), price BIGINT, auction BIGINT, bidder BIGINT",
        f"""
        SELECT window_start, price, auction, bidder FROM (
            SELECT *, {FIRST_OF_WINDOW.format(order="price DESC")} FROM {TUMBLING}
        ) WHERE place <= 1
        """,
    ),
    "q12": (
        "bidder BIGINT, window_start TIMESTAMP(3), bids BIGINT",
        f"""
        SELECT bidder, window_start, COUNT(*) FROM {TUMBLING} GROUP BY bidder, window_start, window_end
        """,
    ),
    "source": ("auction BIGINT", "SELECT auction FROM bids WHERE price < 0"),
}
"""Name -> columns of the result, and the query; `source` does nothing but read."""


def serve() -> None:
    """Answer queries until the input ends."""
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    for key, value in {
        "parallelism.default": "1",
        "execution.checkpointing.interval": "1 s",
        "pipeline.object-reuse": "true",
        "table.local-time-zone": "UTC",
    }.items():
        tables.get_config().set(key, value)
    for line in sys.stdin:
        request = json.loads(line)
        columns, query = QUERIES[request["query"]]
        tables.execute_sql("DROP TEMPORARY TABLE IF EXISTS bids")
        tables.execute_sql("DROP TEMPORARY TABLE IF EXISTS results")
        tables.execute_sql(BIDS.format(files=request["files"]))
        tables.execute_sql(RESULTS.format(columns=columns, out=request["out"]))
        started = time.perf_counter()
        tables.execute_sql(f"INSERT INTO results {query}").wait()
        print(json.dumps({"seconds": time.perf_counter() - started}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    serve()
