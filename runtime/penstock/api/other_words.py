"""What verbs are called in other systems: who looks for one of those is told ours."""

from typing import TYPE_CHECKING, Any

from penstock.api import checks

_OURS = {
    "addSink": "write(sink)",
    "add_sink": "write(sink)",
    "alias": 'select(new=col("old"))',
    "apply": "map, or map_batches",
    "assign_timestamps_and_watermarks": 'flow.read(..., event_time="ts", max_delay="5s")',
    "broadcastJoin": "join(other.broadcast(), on=...)",
    "count": "agg(n=ps.count())",
    "drop": 'select(pl.exclude("column"))',
    "dropDuplicates": 'deduplicate("id")',
    "drop_duplicates": 'deduplicate("id")',
    "executeAndCollect": "write(ps.collect())",
    "execute_and_collect": "write(ps.collect())",
    "flatMap": "flat_map",
    "groupBy": "key_by",
    "group_by": "key_by",
    "groupby": "key_by",
    "inspect": "write(ps.print())",
    "keyBy": "key_by",
    "key_on": "key_by",
    "limit": "top_n(n, by=...)",
    "mapPartitions": "map_batches",
    "max": 'agg(most=ps.max("column"))',
    "mean": 'agg(mean=ps.mean("column"))',
    "min": 'agg(least=ps.min("column"))',
    "orderBy": "top_n(n, by=...)",
    "output": "write(sink)",
    "print": "write(ps.print())",
    "rename": 'select(new=col("old"))',
    "show": "write(ps.print())",
    "sink_to": "write(sink)",
    "sort": "top_n(n, by=...)",
    "sum": 'agg(total=ps.sum("column"))',
    "uid": 'uid="..." in the verb',
    "unionAll": "union",
    "unique": 'deduplicate("id")',
    "where": "filter",
    "withColumn": "with_columns",
    "withColumns": "with_columns",
    "withWatermark": 'flow.read(..., event_time="ts", max_delay="5s")',
    "writeStream": "write(sink)",
    "write_stream": "write(sink)",
}


class Verbs:
    """Base of what has verbs."""

    if not TYPE_CHECKING:  # type checkers know which there are

        def __getattr__(self, name: str) -> Any:
            verbs = (verb for verb in dir(type(self)) if not verb.startswith("_"))
            ours = None if name.startswith("_") else _OURS.get(name) or checks.nearest(name, verbs)
            raise AttributeError(
                f"a {type(self).__name__} has no verb {name}" + (f"; did you mean {ours}?" if ours else "")
            )
