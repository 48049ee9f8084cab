"""A program's way in: `flow.read(...)` begins a stream, `flow.run()` runs what was built."""

import importlib
import sys
from pathlib import Path
from typing import Any, Literal

import msgspec
import polars as pl

from penstock.api import checks, connections, places, row_types, times, windows
from penstock.api.building import GraphBuilder, Options
from penstock.api.streams import DataStream
from penstock.config import installed_versions
from penstock.graph import JobGraph, plan
from penstock.model import specs
from penstock.model.errors import UserError
from penstock.model.settings import JobSettings

INGESTION_COLUMN = "ingested_at"
DEFAULT_MAX_PARALLELISM = 128
TimeKind = Literal["event", "ingestion", "processing"]


class Flow:
    """Collects the operators of one program. Nothing runs until `run`, or until a cluster gets its graph."""

    def __init__(self, name: str | None = None, *, settings: JobSettings | None = None) -> None:
        self.name = name or _script_name()
        self.settings = settings or JobSettings()
        self._builder = GraphBuilder(self.name)
        self._bounded = True

    def read(
        self,
        source: Any,
        *,
        schema: Any = None,
        event_time: str | None = None,
        unit: str | None = None,
        max_delay: windows.Duration = "0s",
        idle_after: windows.Duration | None = None,
        time: TimeKind | None = None,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> DataStream:
        """Begin a stream.

        `event_time` names the column that says when a row happened: a Datetime, or an integer in `unit`s since
        1970; rows may be out of order by `max_delay`. With `time="ingestion"` the source adds a column (called
        `event_time`, or `ingested_at`) with the time it read the row; with `time="processing"` windows go by the
        clock. A part of the source without rows for `idle_after` does not hold the others back.
        """
        where = places.caller()
        given = row_types.schema_of(schema, where=where) if schema is not None else None
        definition, columns = connections.resolved_source(source, given, self.settings.source, where=where)
        kind = time or ("event" if event_time is not None else "none")
        row_time, columns = _row_time(kind, event_time, unit, columns, where)
        spec = specs.Source(
            connector=definition.connector,
            event_time=row_time,
            time_kind=kind,
            max_delay_us=windows.duration(max_delay, what="read: max_delay", where=where),
            idle_after_us=None
            if idle_after is None
            else windows.duration(idle_after, what="read: idle_after", where=where),
            ingestion_column=row_time.column if row_time is not None and kind == "ingestion" else None,
        )
        self._bounded = self._bounded and definition.bounded
        uid_ = self._builder.add(
            "read",
            spec,
            (),
            columns,
            Options(uid=uid, name=name, parallelism=parallelism),
            where=where,
            default_name=definition.connector.kind,
            # As written, not as resolved: files that come and go must not change the uid.
            identity=_identity(source),
        )
        stream_time = times.StreamTime(kind=kind, event_time=row_time)
        return DataStream(self._builder, uid_, columns, stream_time)

    def plan(
        self,
        *,
        parallelism: int = 1,
        max_parallelism: int = DEFAULT_MAX_PARALLELISM,
        settings: JobSettings | None = None,
    ) -> JobGraph:
        """The job graph of the program: checked, fused, chained, ready to be submitted."""
        checks.require_parallelism(parallelism, where="")
        graph = plan(
            self._builder.logical(),
            parallelism=parallelism,
            max_parallelism=max_parallelism,
            settings=settings or self.settings,
            bounded=self._bounded,
            versions=installed_versions(),
        )
        return msgspec.structs.replace(graph, warnings=(*graph.warnings, *self._builder.collected_warnings()))

    def run(
        self,
        *,
        parallelism: int = 1,
        checkpoint_interval: windows.Duration | None = None,
        state_dir: str | Path | None = None,
        resume: str | None = None,
        **settings: Any,
    ) -> Any:
        """Run the program here, on a cluster of its own in processes of this machine, until it ends."""
        # The embedded cluster is a layer above: it is looked up when it is needed, not imported.
        local: Any = importlib.import_module("penstock.local")
        return local.run_flow(
            self,
            parallelism=parallelism,
            checkpoint_interval=checkpoint_interval,
            state_dir=state_dir,
            resume=resume,
            **settings,
        )


def _row_time(
    kind: str, event_time: str | None, unit: str | None, columns: pl.Schema, where: str
) -> tuple[specs.EventTime | None, pl.Schema]:
    """Which column is the time of a row, and the columns with the one that ingestion adds."""
    match kind:
        case "none":
            return None, columns
        case "event" if event_time is not None:
            checks.require_columns([event_time], columns, what="read: event_time", where=where)
            return times.column_time(event_time, unit, columns, where=where), columns
        case "event":
            raise UserError("P021", 'read: time="event" needs a column', where=where, fix='add event_time="column"')
        case "ingestion":
            column = event_time or INGESTION_COLUMN
            if column in columns:
                raise UserError(
                    "P021",
                    f'read: ingestion time would be the column "{column}", and there is a column "{column}" already',
                    where=where,
                    fix="give the new column another name with event_time=",
                )
            return specs.EventTime(column=column), pl.Schema({**columns, column: pl.Datetime("us")})
        case "processing" if event_time is None:
            return None, columns
        case "processing":
            raise UserError(
                "P021",
                f'read: time="processing" goes by the clock, event_time="{event_time}" by a column',
                where=where,
                fix="give one of the two",
            )
    raise UserError(
        "P021",
        f"read: time={kind!r} is not known",
        where=where,
        fix='time="event", "ingestion" or "processing"',
    )


def _identity(source: Any) -> str:
    """What a source was asked to read, as far as its definition says before it is resolved."""
    connector = source.as_source().connector
    return msgspec.json.encode(connector, order="sorted").decode()


def _script_name() -> str:
    """A flow that a script or notebook makes is called after it."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(main).stem.replace("_", "-") if main else "flow"
