"""What each operator of a job does, as plain data that crosses processes as JSON.

The client builds these from the user's program; a slot turns each into a running operator. User functions
and expressions are opaque bytes here: only a slot opens them, never the JobManager.
"""

import msgspec

from penstock.model.function_specs import CoProcess as CoProcess
from penstock.model.function_specs import Process as Process
from penstock.model.function_specs import ProcessInput as ProcessInput
from penstock.model.function_specs import StateField as StateField
from penstock.model.ids import Uid
from penstock.model.spec_base import Connector as Connector
from penstock.model.spec_base import EventTime as EventTime
from penstock.model.spec_base import Expression as Expression
from penstock.model.spec_base import Field as Field
from penstock.model.spec_base import Function as Function
from penstock.model.spec_base import Schema as Schema
from penstock.model.spec_base import Spec as Spec
from penstock.model.watermark_specs import Alignment as Alignment
from penstock.model.watermark_specs import BoundedDelay as BoundedDelay
from penstock.model.watermark_specs import Generated as Generated
from penstock.model.watermark_specs import Punctuated as Punctuated
from penstock.model.watermark_specs import WatermarkStrategy as WatermarkStrategy

# ---------------------------------------------------------------- sources and sinks


class Source(Spec, frozen=True, kw_only=True):
    """Reads splits; the head of a chain."""

    connector: Connector
    columns: tuple[str, ...] | None = None
    """Only these are needed downstream; None: all."""
    predicates: tuple[Expression, ...] = ()
    """Rows for which one of these is not true are filtered out further on: the source may leave them out."""
    event_time: EventTime | None = None
    time_kind: str = "none"
    """event | ingestion | processing | none."""
    watermarks: WatermarkStrategy = BoundedDelay()
    idle_after_us: int | None = None
    alignment: Alignment | None = None
    ingestion_column: str | None = None


class Sink(Spec, frozen=True, kw_only=True):
    """Writes rows out; the tail of a chain."""

    connector: Connector


# ---------------------------------------------------------------- stateless


class Select(Spec, frozen=True, kw_only=True):
    """Only these columns remain."""

    expressions: tuple[Expression, ...]


class WithColumns(Spec, frozen=True, kw_only=True):
    """These columns are added or replaced."""

    expressions: tuple[Expression, ...]


class Filter(Spec, frozen=True, kw_only=True):
    """Rows for which the expression is true remain."""

    predicate: Expression


class Explode(Spec, frozen=True, kw_only=True):
    """One row per element of the list columns."""

    columns: tuple[str, ...]


class Fused(Spec, frozen=True, kw_only=True):
    """Adjacent Select, WithColumns, Filter and Explode, run as one operator."""

    steps: tuple[Select | WithColumns | Filter | Explode, ...]


class Union(Spec, frozen=True, kw_only=True):
    """Rows of all inputs, in the column order of the first."""

    columns: tuple[str, ...]


class Map(Spec, frozen=True, kw_only=True):
    """A user function per record: one row out for each row in (`flat`: any number)."""

    function: Function
    flat: bool = False
    output: Schema
    on_error: str = "stop"
    """stop | dead_letter | drop: what happens to a row whose function fails."""


class MapBatches(Spec, frozen=True, kw_only=True):
    """A user function per batch: `pl.DataFrame -> pl.DataFrame`."""

    function: Function
    output: Schema
    on_error: str = "stop"


class MapAsync(Spec, frozen=True, kw_only=True):
    """An asynchronous user function per record; rows whose calls are under way are its state."""

    function: Function
    output: Schema
    capacity: int
    timeout_us: int
    ordered: bool
    retries: int = 0
    backoff_us: int = 0
    on_error: str = "stop"


# ---------------------------------------------------------------- keyed


class Tumbling(Spec, frozen=True, kw_only=True):
    """Windows of `size_us`, side by side."""

    size_us: int
    offset_us: int = 0


class Sliding(Spec, frozen=True, kw_only=True):
    """Windows of `size_us`, one every `slide_us`."""

    size_us: int
    slide_us: int
    offset_us: int = 0


class CustomParts(msgspec.Struct, frozen=True, kw_only=True):
    """An aggregate of the user's own, as expressions: rows -> partial columns -> fewer of them -> the result."""

    input: str
    """The column that `fold` reads."""
    fold: tuple[Expression, ...]
    merge: tuple[Expression, ...]
    """The same columns as `fold`, from such columns."""
    finish: Expression


class Aggregate(msgspec.Struct, frozen=True, kw_only=True):
    """One output column of a window: a mergeable function over an input expression."""

    name: str
    function: str
    """count | sum | min | max | mean | var | std | first | last | min_by | max_by | any | all |
    count_distinct | approx_count_distinct | collect_list | quantile | custom."""
    input: Expression | None = None
    by: Expression | None = None
    """For min_by and max_by: what is compared."""
    share: float = 0.5
    """For quantile: which."""
    custom: CustomParts | None = None
    output_type: str = ""


class WindowAggregate(Spec, frozen=True, kw_only=True):
    """Partial results per (key, pane), merged and emitted when the watermark passes the window's end."""

    keys: tuple[str, ...]
    assigner: Tumbling | Sliding
    aggregates: tuple[Aggregate, ...]
    event_time: EventTime | None
    """None: processing time."""
    input_is_partial: bool = False
    """Rows come from a Combine of the same keys and aggregates."""
    allowed_lateness_us: int = 0
    """How long after its end a window still takes rows; each time it changes, its results are emitted again."""
    late_to: str = ""
    """The side output for rows that are later than that; none: they are dropped. Counted in both cases."""
    output: Schema


class SessionAggregate(Spec, frozen=True, kw_only=True):
    """Windows that end when no row came for a while: partial results per (key, session), merged as sessions meet."""

    keys: tuple[str, ...]
    gap_us: int = 0
    gap: Expression | None = None
    """Microseconds, for each row its own; None: `gap_us` for all."""
    aggregates: tuple[Aggregate, ...]
    event_time: EventTime | None
    """None: processing time."""
    allowed_lateness_us: int = 0
    late_to: str = ""
    output: Schema


class GlobalWindow(Spec, frozen=True, kw_only=True):
    """One window for all rows of a key; it ends with the input."""


class SessionWindow(Spec, frozen=True, kw_only=True):
    """Windows that end when no row came for a while."""

    gap_us: int = 0
    gap: Expression | None = None


class CustomWindow(Spec, frozen=True, kw_only=True):
    """A user's `WindowAssigner`."""

    function: Function


class Trigger(msgspec.Struct, frozen=True, kw_only=True):
    """When a window fires."""

    kind: str = "event_time"
    """event_time | processing_time | count | every | delta | custom."""
    count: int = 0
    interval_us: int = 0
    clock: bool = False
    """For every: by the clock."""
    input: Expression | None = None
    """For delta: what is compared with its value when the window fired last."""
    threshold: float = 0.0
    function: Function | None = None
    purging: bool = False
    """Rows are forgotten when they have been fired."""


class Evictor(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows a window keeps when it fires."""

    kind: str
    """count | time | where."""
    count: int = 0
    size_us: int = 0
    keep: Expression | None = None
    after: bool = False
    """Only after the function has seen them."""


class BufferedWindow(Spec, frozen=True, kw_only=True):
    """Windows that keep their rows: for triggers, evictors and functions that need all of them."""

    keys: tuple[str, ...]
    assigner: Tumbling | Sliding | GlobalWindow | SessionWindow | CustomWindow
    trigger: Trigger
    evictor: Evictor | None = None
    aggregates: tuple[Aggregate, ...] = ()
    reduce: Function | None = None
    apply: Function | None = None
    """One of the three."""
    event_time: EventTime | None
    allowed_lateness_us: int = 0
    late_to: str = ""
    updating: bool = False
    """A window that fires again updates its result; else each firing gives results of its own."""
    output: Schema


class ApplyResults(Spec, frozen=True, kw_only=True):
    """A function over the aggregates of each window, as they leave it."""

    keys: tuple[str, ...]
    function: Function
    made: Schema
    """Columns that the function gives."""
    output: Schema


class Combine(Spec, frozen=True, kw_only=True):
    """Stateless pre-aggregation before an exchange: partial columns per (key, pane); empty at a barrier."""

    keys: tuple[str, ...]
    assigner: Tumbling | Sliding
    aggregates: tuple[Aggregate, ...]
    event_time: EventTime


# ---------------------------------------------------------------- updating


class TimeToLive(msgspec.Struct, frozen=True, kw_only=True):
    """State that was not written for this long is forgotten."""

    us: int
    event_time: EventTime | None = None
    """None: by the clock."""


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of a stream change earlier ones; each says how in the column `__change`."""

    keys: tuple[str, ...] | None = None
    """A row replaces the one before that has the same keys; None: a delete takes back one row of equal values."""
    updates: bool = True
    """False: an update comes as a delete of the old row and an insert of the new one."""


class Retract(Spec, frozen=True, kw_only=True):
    """Each update becomes a delete of the old row and an insert of the new one."""

    keys: tuple[str, ...]


SUBTRACTED = frozenset({"count", "sum", "mean", "var", "std"})
"""Aggregates from which a row can be taken back by its values alone."""


class RunningAggregate(Spec, frozen=True, kw_only=True):
    """One result per key over all rows so far, emitted again when it changes."""

    keys: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]
    event_time: EventTime | None = None
    """What orders rows for first and last; None: as they come."""
    ttl: TimeToLive | None = None
    updating: bool = False
    """The input takes rows back."""
    output: Schema


# ---------------------------------------------------------------- joins


class JoinColumn(msgspec.Struct, frozen=True, kw_only=True):
    """A column of a join's result: of one side; of both sides where they are equal; of neither for window bounds."""

    name: str
    left: str | None = None
    right: str | None = None


class WindowMatch(Spec, frozen=True, kw_only=True):
    """Rows of the same window match."""

    assigner: Tumbling | Sliding


class IntervalMatch(Spec, frozen=True, kw_only=True):
    """A right row matches when it is from `lower_us` to `upper_us` later than the left one."""

    lower_us: int
    upper_us: int


class AsOfMatch(Spec, frozen=True, kw_only=True):
    """A left row matches the right row that was the latest at its time, unless that was too long ago."""

    max_age_us: int | None = None


class EverMatch(Spec, frozen=True, kw_only=True):
    """Rows match whenever they came, unless one has expired."""

    left_ttl: TimeToLive | None = None
    right_ttl: TimeToLive | None = None
    left_changes: bool = False
    """Rows of the left side come with `__change`, as inserts and deletes."""
    right_changes: bool = False
    changes: bool = False
    """Rows of the result come with `__change`."""


class BroadcastMatch(Spec, frozen=True, kw_only=True):
    """A left row matches the right rows that were there before it; every subtask has all of them."""


class Join(Spec, frozen=True, kw_only=True):
    """Rows of two inputs with equal keys, if they also match in time."""

    left_on: tuple[str, ...]
    right_on: tuple[str, ...]
    how: str
    """inner | left | right | full | semi | anti."""
    match: WindowMatch | IntervalMatch | AsOfMatch | EverMatch | BroadcastMatch
    columns: tuple[JoinColumn, ...]
    left_time: EventTime | None = None
    right_time: EventTime | None = None
    output: Schema


class LoopHead(Spec, frozen=True, kw_only=True):
    """Where a loop begins: rows of its input (port 0), and rows that were fed back (port 1)."""

    columns: tuple[str, ...]


class LoopTail(Spec, frozen=True, kw_only=True):
    """Where a loop ends: rows go back to the head, subtask i to subtask i."""

    head: Uid
    columns: tuple[str, ...]


class Lookup(Spec, frozen=True, kw_only=True):
    """Rows beside what a user's function knows about their key."""

    on: tuple[str, ...]
    how: str
    """inner | left."""
    columns: tuple[JoinColumn, ...]
    function: Function
    per_batch: bool = False
    """The function takes a frame of keys, and gives a frame of keys and columns."""
    made: Schema
    """Columns that the function gives."""
    capacity: int
    cache_rows: int
    cache_us: int | None = None
    """None: an answer is good until it makes room for others."""
    output: Schema


class CoGroup(Spec, frozen=True, kw_only=True):
    """A user's function over the rows of both sides of a key in a window."""

    join: Join
    left: Schema
    right: Schema
    function: Function
    made: Schema
    """Columns that the function gives."""
    output: Schema


# ---------------------------------------------------------------- relations


class Deduplicate(Spec, frozen=True, kw_only=True):
    """One row per key: the first, or the last."""

    keys: tuple[str, ...]
    keep: str
    """first | last."""
    by_event_time: bool = False
    """Else as they come."""
    event_time: EventTime | None = None
    ttl: TimeToLive | None = None


class TopN(Spec, frozen=True, kw_only=True):
    """The first rows of each key in an order: of all so far, or of each window."""

    keys: tuple[str, ...]
    n: int
    by: tuple[str, ...]
    descending: tuple[bool, ...]
    rank: str | None = None
    """Column for the place of a row, from 1 on."""
    within: Tumbling | Sliding | None = None
    event_time: EventTime | None = None
    ttl: TimeToLive | None = None
    updating: bool = False
    """The input takes rows back."""
    output: Schema


BuiltIn = (
    WindowAggregate | SessionAggregate | BufferedWindow | RunningAggregate | Retract | Join | CoGroup | Deduplicate
    | TopN
)  # fmt: skip
"""Keep state by key that is not declared by a user."""

OperatorSpec = (
    Source | Sink | Select | WithColumns | Filter | Explode | Fused | Union | Map | MapBatches | MapAsync
    | WindowAggregate | Combine | Process | CoProcess | Retract | RunningAggregate | SessionAggregate | Join
    | LoopHead | LoopTail | BufferedWindow | ApplyResults | Lookup | CoGroup | Deduplicate | TopN
)  # fmt: skip


MAIN_OUTPUT = ""
"""Edges that name no output read this one."""


class SideOutput(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that leave an operator beside its main output: late ones, failed ones, whatever a function sorts out."""

    name: str
    schema: Schema


class Operator(msgspec.Struct, frozen=True, kw_only=True):
    """An operator of a job graph: its identity, its work and the columns it gives."""

    uid: Uid
    name: str
    spec: OperatorSpec
    output: Schema = ()
    changes: Changes | None = None
    """Its main output updates earlier rows; None: it only inserts."""
    side_outputs: tuple[SideOutput, ...] = ()
    """The job graph only has those that somebody reads."""
    place: str = ""
    """File and line of the user's program that made it."""

    def schema_of(self, output: str) -> Schema:
        """Columns of the main output, or of the side output of that name."""
        if output == MAIN_OUTPUT:
            return self.output
        return next(side.schema for side in self.side_outputs if side.name == output)


# ---------------------------------------------------------------- exchange


class Forward(Spec, frozen=True, kw_only=True):
    """Subtask i to subtask i."""


class Rebalance(Spec, frozen=True, kw_only=True):
    """Batches round robin."""


class Hash(Spec, frozen=True, kw_only=True):
    """By key group of these columns."""

    keys: tuple[str, ...]


class Broadcast(Spec, frozen=True, kw_only=True):
    """Every row to every subtask."""


class Feedback(Spec, frozen=True, kw_only=True):
    """From the tail of a loop to its head: rows to the subtask of the same index, everything else to all of them."""


Partitioning = Forward | Rebalance | Hash | Broadcast | Feedback
