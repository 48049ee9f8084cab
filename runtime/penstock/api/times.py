"""The time of a stream's rows: which column it is, and where it was lost if it was."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import polars as pl

from penstock.model import specs
from penstock.model.errors import UserError
from penstock.model.ids import Uid

_UNITS = ("s", "ms", "us", "ns")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTime:
    """Time of a stream: an event-time (or ingestion-time) column, the clock, or none."""

    kind: str
    """event | ingestion | processing | none."""
    event_time: specs.EventTime | None = None
    lost: str = ""
    """Why there is no event time any more, with the place."""
    keep: str = ""
    """What to do about it."""

    def through(self, kept: bool, *, verb: str, where: str, new_name: str | None = None) -> "StreamTime":
        """The time after a verb that does or does not keep the event-time column."""
        if self.event_time is None:
            return self
        column = self.event_time.column
        if not kept:
            return StreamTime(
                kind="none",
                lost=f'{verb} at {where} dropped the event-time column "{column}"',
                keep=f'keep "{column}" unchanged in that {verb}',
            )
        event_time = specs.EventTime(
            column=new_name or column, unit=self.event_time.unit, offset_us=self.event_time.offset_us
        )
        return replace(self, event_time=event_time)

    def through_select(self, sources: Mapping[str, str | None], *, where: str) -> "StreamTime":
        """The time after a select: which column each of its columns is, if it is one as it stands."""
        if self.event_time is None:
            return self
        column = self.event_time.column
        names = [name for name, source in sources.items() if source == column]
        new_name = column if column in names else next(iter(names), None)
        return self.through(bool(names), verb="select", where=where, new_name=new_name)

    def for_window(self, *, where: str) -> specs.EventTime | None:
        """The time that a window goes by; None: the clock's."""
        if self.event_time is None and self.kind != "processing":
            raise UserError(
                "P021",
                f"window: the stream has no event time: {self.lost or 'its source was read without one'}",
                where=where,
                fix=self.keep
                or 'read with event_time="column", or with time="ingestion" or time="processing" to go by the clock',
            )
        return self.event_time


@dataclass(frozen=True, slots=True)
class SideStream:
    """What a side output of an operator carries."""

    schema: pl.Schema
    time: StreamTime
    source: Uid | None = None
    """The operator that it leaves, if that is not the stream's own."""


def column_time(column: str, unit: str | None, schema: pl.Schema, *, where: str) -> specs.EventTime:
    """Event time from a column of Datetime, or of integers in `unit`s since 1970."""
    kind = schema[column]
    if isinstance(kind, pl.Datetime):
        if unit is not None and unit != kind.time_unit:
            raise UserError(
                "P010",
                f'read: unit="{unit}", but the event-time column "{column}" is {kind}',
                where=where,
                fix="leave out unit: a Datetime column knows its own",
            )
        return specs.EventTime(column=column, unit=kind.time_unit)
    if not kind.is_integer():
        raise UserError(
            "P010",
            f'read: the event-time column "{column}" is {kind}; it must be a Datetime or an integer',
            where=where,
            fix=f'declare what it is: schema={{"{column}": datetime, ...}}, or {{"{column}": int, ...}} with unit="s"',
        )
    if unit not in _UNITS:
        raise UserError(
            "P010",
            f'read: the event-time column "{column}" is {kind}, so its unit must be given; got {unit!r}',
            where=where,
            fix='unit="s", "ms", "us" or "ns": what one step of the number means',
        )
    return specs.EventTime(column=column, unit=unit)
