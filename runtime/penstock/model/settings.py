"""Settings that travel with a job. One frozen tree, every default here, with its reason."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from penstock.model.durations import parse_duration
from penstock.model.errors import UserError


class _Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class CheckpointSettings(_Settings, frozen=True, kw_only=True):
    """When checkpoints are taken and when they are given up."""

    interval_us: int = 10_000_000
    """Time between the starts of two checkpoints; 0: none but the last."""

    timeout_us: int = 600_000_000
    """A checkpoint older than this is given up; the job keeps running."""

    alignment_timeout_us: int | None = 30_000_000
    """When a checkpoint is not complete after this, its barriers overtake the rows that wait in queues, and those
    rows become part of it. 0: always; None: never. Overtaking costs bytes, so a queue that moves gets its chance."""

    min_pause_us: int = 0
    """Least time between the end of one and the start of the next."""

    inline_bytes: int = 4_096
    """State of a subtask that is no larger travels in its acknowledgement and lies in the manifest, not in an object
    of its own: most would hold a few positions, and each would cost a flush to disk or a paid request."""

    retained: int = 3
    """Completed checkpoints that are kept. One would leave nothing if its object were lost."""

    tolerated_failures: int = 3
    """Checkpoints in a row that may fail before the job restarts; one slow upload is no reason to stop."""


class RestartSettings(_Settings, frozen=True, kw_only=True):
    """How often and how fast a failed region is started again."""

    first_delay_us: int = 100_000
    max_delay_us: int = 30_000_000
    factor: float = 2.0
    """The delay grows by this after each failure in a row."""

    reset_after_us: int = 60_000_000
    """A run this long without failure forgets the ones before."""

    budget: int = 20
    """Failures in a row before the job is FAILED. The window of forgetting is `reset_after_us`."""

    same_failures: int = 3
    """A program that fails so often in a row in the same function, in the same way, on the same row, before its
    first checkpoint, does not work: the job is FAILED. Later, another service may be the cause."""

    slot_wait_us: int = 10_000_000
    """How long to wait for lost slots to come back before the job is packed on those that are left."""


class ExchangeSettings(_Settings, frozen=True, kw_only=True):
    """Batches on their way between subtasks."""

    batch_rows: int = 32_768
    """A batch leaves when it has this many rows."""

    batch_timeout_us: int = 10_000
    """... or when its first row has waited this long; when input pauses it leaves at once."""

    channel_bytes: int = 2 * 1024 * 1024
    """What a sender may have on the way to one receiver before it waits: memory per channel is bounded by
    this plus one batch."""

    loop_bytes: int = 256 * 1024 * 1024
    """What may wait at the head of a loop, per subtask. Rows that are fed back cannot be held off, or the loop would
    wait for itself; so a loop that makes more rows than it ends is an error."""


class SourceSettings(_Settings, frozen=True, kw_only=True):
    """How sources read."""

    batch_rows: int = 131_072
    """Most rows of a batch. A task takes fewer when its batches take longer than a tenth of a second, and more
    again when they do not. Kernels are within 10 % from 8 K rows on; plumbing is not: with twice as many rows as 64 K
    a windowed query took 5-10 % less time."""

    split_bytes: int = 64 * 1024 * 1024
    """Files larger than this are cut into several splits. A file that a checkpoint knows stays cut as it was."""

    discovery_interval_us: int = 1_000_000
    """How often a watched directory is listed."""

    max_future_us: int = 366 * 86_400_000_000
    """An event time further ahead of the clock than this is an error: the unit is wrong, or the row."""

    check_unit: bool = True
    """Event times in 1970 that would be of this century in a larger unit are an error, when a source begins so."""

    on_bad_record: Literal["stop", "drop"] = "stop"
    """stop | drop: what to do with a row that cannot be parsed or has no event time."""


class StateSettings(_Settings, frozen=True, kw_only=True):
    """Where keyed state of process functions is kept."""

    backend: Literal["memory", "rocksdb", "auto"] = "memory"
    """memory | rocksdb | auto: memory, and RocksDB as soon as the state takes half of the budget."""

    memory_budget: int = 512 * 1024 * 1024
    """Bytes of memory that a slot may take with its state in RocksDB: cached rows, block cache, write buffers and
    what the process needs besides."""


class RescaleSettings(_Settings, frozen=True, kw_only=True):
    """Another parallelism for a job that runs."""

    slot_wait_us: int = 300_000_000
    """How long missing slots are waited for; the job runs on at its size meanwhile. A new node takes minutes."""


class JobSettings(_Settings, frozen=True, kw_only=True):
    """All of it."""

    checkpoint: CheckpointSettings = CheckpointSettings()
    restart: RestartSettings = RestartSettings()
    exchange: ExchangeSettings = ExchangeSettings()
    source: SourceSettings = SourceSettings()
    state: StateSettings = StateSettings()
    rescale: RescaleSettings = RescaleSettings()


def with_texts(settings: JobSettings, texts: Mapping[str, str], *, where: str) -> JobSettings:
    """As `with_values`, with values from a command line: `5` is a number, `true` is true, all else is text."""
    values: dict[str, Any] = {}
    for name, text in texts.items():
        try:
            values[name] = msgspec.json.decode(text)
        except msgspec.DecodeError:
            values[name] = text
    return with_values(settings, values, where=where)


def with_values(settings: JobSettings, values: Mapping[str, Any], *, where: str) -> JobSettings:
    """The same settings but for some, by name: `{"source.on_bad_record": "drop", "checkpoint.interval": "1s"}`.

    A field that counts microseconds may be given without its `_us`, as a duration.
    """
    sections: dict[str, dict[str, Any]] = msgspec.to_builtins(settings)
    for name, value in values.items():
        section, _, field = name.partition(".")
        known = sections.get(section, {})
        if field in known:
            known[field] = value
        elif f"{field}_us" in known:
            known[f"{field}_us"] = parse_duration(value, what=name)
        else:
            names = [
                f"{section}.{each.removesuffix('_us')}" for section, fields in sections.items() for each in fields
            ]
            raise UserError("P018", f'there is no setting "{name}"', where=where, fix=f"one of {', '.join(names)}")
        try:
            msgspec.convert(sections, JobSettings)
        except msgspec.ValidationError as error:
            said = str(error).partition(" - at")[0]
            raise UserError("P018", f"setting {name}={value!r}: {said}", where=where) from None
    return msgspec.convert(sections, JobSettings)
