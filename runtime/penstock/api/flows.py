"""A program's way in: `flow.read(...)` begins a stream, `flow.run()` runs what was built."""

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
import polars as pl

from penstock.api import checks, connections, places, row_types, times, watermarks, windows
from penstock.api.building import GraphBuilder, Options
from penstock.api.streams import DataStream
from penstock.config import installed_versions
from penstock.graph import JobGraph, plan
from penstock.model import specs
from penstock.model.durations import format_duration
from penstock.model.errors import UserError
from penstock.model.settings import JobSettings, with_values

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
        self._aligned: dict[str, tuple[int, str]] = {}
        """Groups of sources with the bound that they keep, and where it was given first."""

    def configure(self, values: Mapping[str, Any]) -> None:
        """Change settings of the job, before anything is read: `flow.configure({"source.on_bad_record": "drop"})`.

        Among them `checkpoint.interval`, `state.backend`, `state.memory_budget`, `restart.budget`; what is given to
        `penstock run` or `run` goes before what is said here.
        """
        self.settings = with_values(self.settings, values, where=places.caller())

    def read(
        self,
        source: Any,
        *,
        schema: Any = None,
        event_time: str | None = None,
        unit: str | None = None,
        max_delay: windows.Duration | None = None,
        watermark: watermarks.Watermark | None = None,
        idle_after: windows.Duration | None = None,
        align_within: windows.Duration | None = None,
        align_group: str | None = None,
        time: TimeKind | None = None,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> DataStream:
        """Begin a stream.

        `event_time` names the column that says when a row happened: a Datetime, or an integer in `unit`s since
        1970; rows may be out of order by `max_delay`, or `watermark` says how far time has come: `ps.bounded`,
        `ps.punctuated` or a `ps.WatermarkGenerator`. With `time="ingestion"` the source adds a column (called
        `event_time`, or `ingested_at`) with the time it read the row; with `time="processing"` windows go by the
        clock. A part of the source without rows for `idle_after` does not hold the others back. A part that is ahead
        of the slowest by more than `align_within` is not read on; sources with the same `align_group` are aligned with
        each other.
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
            watermarks=_watermarks(kind, row_time, max_delay, watermark, columns, where),
            idle_after_us=None
            if idle_after is None
            else windows.duration(idle_after, what="read: idle_after", where=where),
            alignment=self._alignment(kind, align_within, align_group, where),
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

    def _alignment(
        self, kind: str, within: windows.Duration | None, group: str | None, where: str
    ) -> specs.Alignment | None:
        if within is None and group is None:
            return None
        if within is None or kind != "event" or (group is not None and (not group or "#" in group)):
            raise UserError(
                "P051",
                f"read: align_within={within!r}, align_group={group!r} with the time {kind!r} cannot be",
                where=where,
                fix='sources of event time are aligned: read(..., event_time="ts", align_within="10s", '
                'align_group="any text without #")',
            )
        within_us = windows.duration(within, what="read: align_within", where=where)
        if within_us <= 0:
            raise UserError(
                "P011", f'read: align_within="{within}" is not longer than nothing', where=where, fix='"10s"'
            )
        if group is not None:
            first_us, first_where = self._aligned.setdefault(group, (within_us, where))
            if first_us != within_us:
                raise UserError(
                    "P051",
                    f'read: the sources of group "{group}" keep within {format_duration(first_us)} ({first_where}); '
                    f"this one would keep within {format_duration(within_us)}",
                    where=where,
                    fix="give all of them the same align_within",
                )
        return specs.Alignment(within_us=within_us, group=group or "")

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


def _watermarks(
    kind: str,
    event_time: specs.EventTime | None,
    max_delay: windows.Duration | None,
    given: watermarks.Watermark | None,
    columns: pl.Schema,
    where: str,
) -> specs.WatermarkStrategy:
    """How far time has come: as `watermark` says, or `max_delay` behind the latest row."""
    if given is None:
        delay_us = 0 if max_delay is None else windows.duration(max_delay, what="read: max_delay", where=where)
        return specs.BoundedDelay(delay_us=delay_us)
    if max_delay is not None:
        raise UserError(
            "P050",
            "read: max_delay and watermark both say how far time has come",
            where=where,
            fix="give one of the two: max_delay is short for watermark=ps.bounded(...)",
        )
    if kind != "event" or event_time is None:
        raise UserError(
            "P050",
            f"read: a watermark strategy is for event time, and the time of this stream is {kind!r}",
            where=where,
            fix='name the column with event_time="column", or leave out watermark=',
        )
    return watermarks.strategy(given, event_time, columns, where=where)


def _identity(source: Any) -> str:
    """What a source was asked to read, as far as its definition says before it is resolved."""
    connector = source.as_source().connector
    return msgspec.json.encode(connector, order="sorted").decode()


def _script_name() -> str:
    """A flow that a script or notebook makes is called after it."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(main).stem.replace("_", "-") if main else "flow"
