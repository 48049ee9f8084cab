"""The task side of a sink: rows are staged with a checkpoint, and become visible when that is in the journal.

Owns: which committables wait for which checkpoint. They are state: a restore commits them again, since nobody
knows whether the earlier attempt did.
Invariant: a committable is given up only after `commit` has returned, or after a later attempt has recovered it.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import msgspec
import polars as pl

from penstock.connectors.base import PacedSink, Sink, SinkContext, Stage
from penstock.model.handles import Redistribution
from penstock.model.ids import CheckpointId
from penstock.operators.base import Operator, OperatorContext, Output, Section, Snapshot

COMMITTABLES = "committables"
MakeSink = Callable[[SinkContext], Sink]


class _Output:
    """What was written between two barriers: rows until they are staged, then committables."""

    def __init__(self, stage: Stage) -> None:
        self._stage: Stage | None = stage
        self._committables: list[dict[str, Any]] = []

    def committables(self) -> list[dict[str, Any]]:
        """Staged the first time that it goes well."""
        if self._stage is not None:
            self._committables = self._stage()
            self._stage = None  # and its rows with it
        return self._committables


class SinkOperator(Operator):
    """Drives a two-phase sink."""

    def __init__(self, make_sink: MakeSink) -> None:
        self._make_sink = make_sink
        self._closing = ExitStack()
        self._paced: PacedSink | None = None
        self._recovered = False
        self._waiting: dict[CheckpointId, _Output] = {}

    def open(self, context: OperatorContext, output: Output) -> None:
        """Make the sink; it recovers when it is known whether there is something to restore."""
        super().open(context, output)
        self._sink = self._make_sink(
            SinkContext(
                job=context.job,
                attempt=context.attempt,
                uid=context.uid,
                subtask=context.subtask,
                clock=context.clock,
            )
        )
        self._closing.callback(self._sink.close)
        self._paced = self._sink if isinstance(self._sink, PacedSink) else None

    def restore(self, sections: Mapping[str, Sequence[pl.DataFrame]]) -> None:
        """Make visible what the checkpoint holds, before anything new is written."""
        texts = [text for frame in sections.get(COMMITTABLES, ()) for text in frame.get_column("committable")]
        self._recover([msgspec.json.decode(text) for text in texts])

    def on_batch(self, frame: pl.DataFrame, port: int = 0) -> None:
        """Take rows."""
        self._ready().write(frame)

    def ready_in_us(self) -> int:
        """As the sink says."""
        return self._paced.ready_in_us() if self._paced is not None else 0

    def snapshot(self, checkpoint: CheckpointId) -> Snapshot:
        """Set apart what was written; it waits for the checkpoint together with what waits already.

        Staging is part of taking the snapshot, in the background. What could not be staged for one checkpoint is
        staged for the next.
        """
        if (stage := self._ready().prepare(checkpoint)) is not None:
            self._waiting[checkpoint] = _Output(stage)
        waiting = tuple(self._waiting.values())

        def sections() -> Sequence[Section]:
            texts = [msgspec.json.encode(each).decode() for output in waiting for each in output.committables()]
            if not texts:
                return ()
            frame = pl.DataFrame({"committable": texts}, schema={"committable": pl.String})
            # Every subtask gets all of them: each removes what its own earlier attempts left staged, so whatever
            # the checkpoint holds must be visible by then, also when another subtask staged it.
            return (Section(COMMITTABLES, Redistribution.UNION, frame),)

        return sections

    def on_committed(self, checkpoint: CheckpointId) -> None:
        """Make visible what waited for this checkpoint or an earlier one. Nothing waits twice."""
        for waiting in sorted(each for each in self._waiting if each <= checkpoint):
            self._ready().commit(self._waiting[waiting].committables())
            del self._waiting[waiting]

    def close(self) -> None:
        """Rows that wait are abandoned."""
        self._closing.close()

    def _ready(self) -> Sink:
        """The sink, after it has cleaned up what earlier attempts left."""
        if not self._recovered:
            self._recover([])
        return self._sink

    def _recover(self, committables: list[dict[str, Any]]) -> None:
        self._sink.recover(committables)
        self._recovered = True
