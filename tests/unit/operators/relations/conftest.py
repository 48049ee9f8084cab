"""Running an operator over several phases, each after a restore and at a parallelism of its own."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl
import pytest

from penstock.model.clocks import MAX_WATERMARK
from penstock.model.handles import Redistribution
from penstock.model.ids import CheckpointId
from penstock.operators.base import Operator, Section
from penstock.state.key_groups import group_range, key_groups, owner, slice_groups

GROUPS = 16

Step = int | tuple[int, pl.DataFrame]
"""A watermark, or rows of a port."""

Phase = tuple[Sequence[Step], int]
"""What happens, and at which parallelism."""


def routed(frame: pl.DataFrame, keys: Sequence[str] | None, index: int, parallelism: int) -> pl.DataFrame:
    """The rows that subtask `index` gets; without keys all of them."""
    if keys is None:
        return frame
    mine = [owner(int(group), parallelism, GROUPS) == index for group in key_groups(frame, keys, GROUPS)]
    return frame.filter(pl.Series(mine, dtype=pl.Boolean))


def redistributed(written: Sequence[Sequence[Section]], index: int, parallelism: int) -> dict[str, list[pl.DataFrame]]:
    """What a restore gives to one subtask: its key groups of keyed states, all of union states."""
    restored: dict[str, list[pl.DataFrame]] = {}
    for section in (section for sections in written for section in sections):
        frame = section.frame
        if section.redistribution is Redistribution.KEYED:
            assert frame.columns[0] == "key_group"
            assert frame["key_group"].is_sorted()
            frame = slice_groups(frame, group_range(index, parallelism, GROUPS))
        restored.setdefault(section.state, []).append(frame)
    return restored


@pytest.fixture(scope="session")
def run_phases(start: Callable[..., Any]) -> Callable[..., list[pl.DataFrame]]:
    """All frames that came out: each phase goes on from a snapshot of the one before, the last ends the input."""

    def run(
        make: Callable[[], Operator], phases: Sequence[Phase], keys: Mapping[int, Sequence[str] | None]
    ) -> list[pl.DataFrame]:
        written: list[Sequence[Section]] = []
        emitted: list[pl.DataFrame] = []
        for position, (steps, parallelism) in enumerate([*phases, ([MAX_WATERMARK], 2)]):
            operators = [make() for _ in range(parallelism)]
            outputs = [
                start(operator, index=index, parallelism=parallelism) for index, operator in enumerate(operators)
            ]
            if position:
                for index, operator in enumerate(operators):
                    operator.restore(redistributed(written, index, parallelism))
            for step in steps:
                for index, operator in enumerate(operators):
                    if isinstance(step, int):
                        operator.on_watermark(step)
                    elif (mine := routed(step[1], keys[step[0]], index, parallelism)).height:
                        operator.on_batch(mine, step[0])
            for operator in operators:
                operator.on_barrier()
            snapshots = [operator.snapshot(CheckpointId(position)) for operator in operators]
            if position == len(phases):
                for operator in operators:
                    operator.on_end()
            emitted += [frame for output in outputs for frame in output.frames]
            # What happens after the barrier is lost, and must not show in the snapshot.
            for index, operator in enumerate(operators):
                for step in steps:
                    if (
                        not isinstance(step, int)
                        and (mine := routed(step[1], keys[step[0]], index, parallelism)).height
                    ):
                        operator.on_batch(mine, step[0])
            written = [snapshot() for snapshot in snapshots]
        return emitted

    return run
