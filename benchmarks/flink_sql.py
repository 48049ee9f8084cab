"""The stateful queries in Flink SQL. Runs under the Python of Flink's own environment, which has no Penstock.

Takes one JSON line per query and answers with the seconds it took: one JVM, warm, parallelism 1, checkpoints each
second, state on the heap (its fastest), objects reused.
"""

import json
import os
import sys
import time

from pyflink.table import EnvironmentSettings, TableEnvironment  # type: ignore[import-not-found]

BIDS = """
CREATE TEMPORARY TABLE bids (
    n BIGINT,
    auction AS 1000 + CASE WHEN RAND_INTEGER(2) > 0 THEN (n / 46 * 3 + 2) / 100 * 100
        ELSE GREATEST(n / 46 * 3 - 98, 0) + RAND_INTEGER(111) END,
    bidder AS 1000 + CASE WHEN RAND_INTEGER(4) > 0 THEN n / 4600 * 100 + 1
        ELSE GREATEST(n / 46 - 999, 0) + RAND_INTEGER(1010) END,
    price AS CAST(POWER(10, RAND() * 6) * 100 AS BIGINT),
    ts AS TO_TIMESTAMP_LTZ(1700000000000 + (n / 46 * 50 + 4 + MOD(n, 46)) / 10, 3),
    WATERMARK FOR ts AS ts
) WITH ('connector' = 'filesystem', 'path' = '{numbers}', 'format' = 'csv')
"""
"""The same bids but for the random numbers: a bid in two goes to the hot auction of its hundred, three in four come
from the hot bidder, ten events make a millisecond. Only their numbers are read, from one file that cannot be split:
Flink takes splits in any order, and would drop most rows as late."""

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
        tables.execute_sql(BIDS.format(numbers=request["numbers"]))
        tables.execute_sql(RESULTS.format(columns=columns, out=request["out"]))
        started = time.perf_counter()
        tables.execute_sql(f"INSERT INTO results {query}").wait()
        print(json.dumps({"seconds": time.perf_counter() - started}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    serve()
