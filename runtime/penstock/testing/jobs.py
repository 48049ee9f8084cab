"""Small jobs with known answers, for the simulation. Everything about a job is drawn from one source of chance."""

import random
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from penstock.api import Flow
from penstock.graph import JobGraph
from penstock.model.settings import (
    CheckpointSettings,
    ExchangeSettings,
    JobSettings,
    RescaleSettings,
    RestartSettings,
    SourceSettings,
)
from penstock.testing.answers import Answer, Row
from penstock.testing.endpoints import SourceInput, SplitInput
from penstock.testing.program_inputs import SCHEMA, SECOND_US, Program
from penstock.testing.programs import PROGRAMS
from penstock.testing.world import WALL_START_US

SPAN_US = 20 * SECOND_US
MAX_DELAY_US = SECOND_US
MAX_PARALLELISM = 16
FIRST_US = WALL_START_US - WALL_START_US % SECOND_US

SLOWEST_READ_US = 2_500_000
IDLE_AFTER_SECONDS = 4
"""Longer than any batch of a split lets wait for itself: only a split that has fallen silent is idle."""

SILENT_FROM_US = FIRST_US + SECOND_US
PAST_SILENCE_US = FIRST_US + 4 * SECOND_US
"""A window that begins here can only fire when time goes on without the silent split."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How somebody ends the job before it ends by itself; it is then started again from where it was."""

    how: str
    """stop | cancel | savepoint."""
    after_us: int
    past_silence: bool = False
    """Not before a window past the silence of a split is visible."""

    def may_come(self, visible: "Counter[Row]") -> bool:
        """Whether what has to be seen before has been seen."""
        return not self.past_silence or any(row[1] >= PAST_SILENCE_US for row in visible)


@dataclass(frozen=True, slots=True)
class Rescale:
    """Somebody wants another parallelism."""

    after_us: int
    parallelism: int


@dataclass(frozen=True, slots=True)
class Job:
    """A job graph, its input, and what must come out of it."""

    kind: str
    graph: JobGraph
    sources: dict[str, SourceInput]
    answer: Answer
    ending: Ending | None
    savepoints_us: tuple[int, ...]
    """When somebody wants one, in each run."""
    again: JobGraph
    """What goes on after the ending; not always at the same parallelism."""


def draw_rescales(rng: random.Random) -> list[Rescale]:
    """None for most jobs; else some, early enough to meet the faults."""
    if rng.random() < 0.6:
        return []
    count = rng.randint(1, 5)
    return [Rescale(rng.randrange(200_000, 5_000_000), rng.choice((1, 2, 3, 4, 5))) for _ in range(count)]


def draw_job(rng: random.Random, alignments: random.Random, savepoints: random.Random) -> Job:
    """A job, its parameters and its input. Whether sources wait for each other, and savepoints, are drawn apart."""
    kind = rng.choice(list(PROGRAMS))
    program = PROGRAMS[kind]
    sources = [_draw_source(rng, f"source-{number}", program) for number in range(program.sources)]
    flow = Flow(f"sim-{kind}", settings=_draw_settings(rng))
    alignment = _draw_alignment(alignments)
    streams = [
        flow.read(source, time="processing", uid=source.name)
        if program.time == "processing"
        else flow.read(
            source,
            event_time="ts",
            unit="us",
            max_delay=MAX_DELAY_US / SECOND_US,
            idle_after=IDLE_AFTER_SECONDS if program.falls_silent else None,
            uid=source.name,
            **alignment,
        )
        for source in sources
    ]
    inputs = [[row for split in source.splits for row in split.rows.rows()] for source in sources]
    answer = program.build(streams, inputs, rng.choice((1, 2, 4)))
    graph = flow.plan(parallelism=rng.choice((1, 2, 2, 3)), max_parallelism=MAX_PARALLELISM)
    ending = _draw_ending(rng, program)
    if ending is not None and ending.how == "stop" and savepoints.random() < 0.5:
        ending = replace(ending, how="savepoint")
    return Job(
        kind,
        graph,
        {source.name: source for source in sources},
        answer,
        ending,
        _draw_savepoints(savepoints),
        flow.plan(parallelism=savepoints.choice((1, 2, 2, 3)), max_parallelism=MAX_PARALLELISM),
    )


# ---------------------------------------------------------------- chance


def _draw_ending(rng: random.Random, program: Program) -> Ending | None:
    if not program.endless and rng.random() < 0.75:
        return None
    after_us = rng.randrange(200_000, 4_000_000)
    return Ending(rng.choice(("stop", "stop", "cancel")), after_us, past_silence=program.falls_silent)


def _draw_savepoints(rng: random.Random) -> tuple[int, ...]:
    return tuple(rng.randrange(100_000, 4_000_000) for _ in range(rng.choice((0, 0, 0, 1, 2))))


def _draw_alignment(rng: random.Random) -> dict[str, Any]:
    """Sources that wait for each other, each for itself, or not at all: the answer is the same."""
    within = rng.choice((None, None, 3, 10))
    return {} if within is None else {"align_within": within, "align_group": rng.choice((None, "all"))}


def _draw_source(rng: random.Random, name: str, program: Program) -> SourceInput:
    keys = rng.choice((1, 3, 12))
    if program.falls_silent:
        silent = _draw_split(rng, keys, rows=rng.choice((1, 5)), span_us=SILENT_FROM_US - FIRST_US)
        others = [_draw_split(rng, keys, rows=rng.choice((50, 100))) for _ in range(rng.randint(1, 2))]
        return SourceInput(name, (silent, *others), SCHEMA, endless=True)
    splits = [_draw_split(rng, keys) for _ in range(rng.randint(1, 4))]
    if program.grows:
        return SourceInput(name, tuple(splits), SCHEMA, grows_every_us=rng.choice((100_000, 800_000)))
    return SourceInput(name, tuple(splits), SCHEMA)


def _draw_split(rng: random.Random, keys: int, *, rows: int | None = None, span_us: int = SPAN_US) -> SplitInput:
    rows = rows or rng.choice((1, 20, 50, 100))
    times = sorted(FIRST_US + rng.randrange(span_us) for _ in range(rows))
    shaken = sorted(times, key=lambda time: time + rng.randrange(MAX_DELAY_US))
    drawn = [(rng.randrange(keys), time, rng.randrange(-20, 100), f"name-{rng.randrange(keys)}") for time in shaken]
    return SplitInput(
        rows=pl.DataFrame(drawn, schema=SCHEMA, orient="row"),
        batch_rows=rng.choice((1, 3, 10, 50)),
        row_us=rng.choice((100_000, 1_000_000, SLOWEST_READ_US)) // rows,
    )


def _draw_settings(rng: random.Random) -> JobSettings:
    return JobSettings(
        checkpoint=CheckpointSettings(
            interval_us=rng.choice((50_000, 150_000, 400_000)),
            timeout_us=rng.choice((150_000, 600_000, 2_000_000)),
            alignment_timeout_us=rng.choice((None, 0, 5_000, 50_000)),
            min_pause_us=rng.choice((0, 20_000)),
            retained=(retained := rng.choice((1, 2, 3))),
            tolerated_failures=rng.choice((0, 2, 1000)),
            inline_bytes=4_096 if retained == 2 else 0,
        ),
        restart=RestartSettings(
            first_delay_us=rng.choice((10_000, 100_000)),
            max_delay_us=500_000,
            budget=10_000,
            slot_wait_us=rng.choice((200_000, 2_000_000)),
        ),
        exchange=ExchangeSettings(
            batch_rows=rng.choice((1, 4, 20, 50)),
            batch_timeout_us=rng.choice((500, 5_000)),
            channel_bytes=rng.choice((64, 400, 4_000, 100_000)),
        ),
        rescale=RescaleSettings(slot_wait_us=1_000_000),
        source=SourceSettings(batch_rows=rng.choice((2, 1000)), discovery_interval_us=rng.choice((50_000, 500_000))),
    )
