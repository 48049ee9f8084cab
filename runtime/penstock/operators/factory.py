"""From the description of an operator to one that runs. The only place where user functions are opened."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle

from penstock.connectors import registry
from penstock.model import specs
from penstock.model.errors import UserError
from penstock.operators.async_calls import AsyncOperator
from penstock.operators.base import Operator, OperatorContext
from penstock.operators.buffered_windows import BufferedWindows
from penstock.operators.changes import Retract
from penstock.operators.co_group import CoGroupOperator
from penstock.operators.combine import Combine
from penstock.operators.deduplicate import DeduplicateOperator
from penstock.operators.expressions import Expressions, Union
from penstock.operators.functions import MapBatchesOperator, MapOperator
from penstock.operators.joins import make_join
from penstock.operators.lookup_join import LookupJoin
from penstock.operators.looping import LoopEnd
from penstock.operators.parts import InParts
from penstock.operators.process import ProcessOperator
from penstock.operators.running import RunningAggregate
from penstock.operators.sessions import SessionAggregate
from penstock.operators.sinks import SinkOperator
from penstock.operators.sources import SourceOperator
from penstock.operators.top_n import RunningTopN, WindowTopN
from penstock.operators.updating_aggregate import UpdatingAggregate
from penstock.operators.updating_top_n import UpdatingTopN
from penstock.operators.user_errors import place
from penstock.operators.window_results import WindowResults
from penstock.operators.windows import WindowAggregate


def make_operator(description: specs.Operator, context: OperatorContext) -> Operator:
    """The operator, not yet open."""
    match description.spec:
        case specs.Source() as spec:
            return SourceOperator(spec, registry.make_source(spec.connector), load_function)
        case specs.Sink(connector=connector):
            return SinkOperator(lambda sink: registry.make_sink(connector, description.output, sink))
        case specs.Select() | specs.WithColumns() | specs.Filter() | specs.Explode() | specs.Fused() as spec:
            return Expressions(spec)
        case specs.Union() as spec:
            return Union(spec)
        case specs.LoopHead() | specs.LoopTail() as spec:
            return LoopEnd(spec)
        case specs.Map() as spec:
            return MapOperator(spec, load_function(spec.function, context))
        case specs.MapAsync() as spec:
            return AsyncOperator(spec, load_function(spec.function, context))
        case specs.MapBatches() as spec:
            return MapBatchesOperator(spec, load_function(spec.function, context))
        case specs.Process() | specs.CoProcess() as spec:
            return ProcessOperator(spec, load_function(spec.function, context), description.side_outputs)
        case (
            specs.WindowAggregate()
            | specs.SessionAggregate()
            | specs.BufferedWindow()
            | specs.RunningAggregate()
            | specs.Retract()
            | specs.Join()
            | specs.CoGroup()
            | specs.Deduplicate()
            | specs.TopN()
        ) as spec:
            return _make_keyed(spec, context)
        case specs.ApplyResults() as spec:
            return WindowResults(spec, load_function(spec.function, context))
        case specs.Combine() as spec:
            return Combine(spec)
        case specs.Lookup() as spec:
            return LookupJoin(spec, load_function(spec.function, context))


def _make_keyed(spec: specs.BuiltIn, context: OperatorContext) -> Operator:
    """Operators that keep rows or results by key: in parts, where they can be and it is worth while."""
    match spec:
        case specs.WindowAggregate(keys=keys):
            by_clock, merges = spec.event_time is None, not spec.allowed_lateness_us
            return _in_parts(lambda: WindowAggregate(spec), context, [keys], merges=merges, whole=by_clock)
        case specs.SessionAggregate(keys=keys):
            return _in_parts(lambda: SessionAggregate(spec), context, [keys], whole=spec.event_time is None)
        case specs.BufferedWindow(keys=keys, trigger=trigger):
            by_clock = spec.event_time is None or trigger.clock or trigger.kind in ("processing_time", "custom")
            load = functools.cache(lambda function: load_function(function, context))
            return _in_parts(lambda: BufferedWindows(spec, load), context, [keys], whole=by_clock)
        case specs.RunningAggregate(keys=keys, ttl=ttl):
            if spec.updating:
                return UpdatingAggregate(spec)
            return _in_parts(lambda: RunningAggregate(spec), context, [keys], timed=ttl is not None)
        case specs.Retract():
            return Retract(spec)
        case specs.Join(match=specs.BroadcastMatch()):
            return make_join(spec)
        case specs.Join(left_on=left, right_on=right, match=match):
            merges = isinstance(match, specs.WindowMatch)
            timed = not isinstance(match, specs.EverMatch) or (match.left_ttl or match.right_ttl) is not None
            return _in_parts(lambda: make_join(spec), context, [left, right], merges=merges, timed=timed)
        case specs.CoGroup(join=join):
            function = load_function(spec.function, context)
            keys_of_sides = [join.left_on, join.right_on]
            return _in_parts(lambda: CoGroupOperator(spec, function), context, keys_of_sides, merges=True)
        case specs.Deduplicate(keys=keys, ttl=ttl):
            timed = ttl is not None or spec.by_event_time
            return _in_parts(lambda: DeduplicateOperator(spec), context, [keys], timed=timed)
        case specs.TopN(keys=keys, within=None, ttl=ttl):
            if spec.updating:
                return UpdatingTopN(spec)
            return _in_parts(lambda: RunningTopN(spec), context, [keys], timed=ttl is not None)
        case specs.TopN(keys=keys, within=within):
            assert within is not None, "the other case"
            return _in_parts(lambda: WindowTopN(spec, within), context, [keys], merges=True)


def _in_parts(
    make: Callable[[], Operator],
    context: OperatorContext,
    keys: Sequence[Sequence[str]],
    *,
    merges: bool = False,
    timed: bool = True,
    whole: bool = False,
) -> Operator:
    """What cannot be cut, by keys that it does not have or because the clock drives it, stays whole."""
    if whole or not all(keys) or (context.state.backend == "memory" and not merges):
        return make()
    return InParts(make, keys, merges=merges, timed=timed)


def load_function(function: specs.Function, context: OperatorContext) -> Any:
    """A user's function or object, out of the bytes that came with the job."""
    try:
        return cloudpickle.loads(function.pickled)
    except ImportError as error:
        raise UserError(
            "P001",
            f"{function.name} needs a module that this slot does not have: {error}",
            where=place(context),
            fix="install it where TaskManagers run (requirements or image), or keep it beside the program",
        ) from error
    except Exception as error:
        raise UserError(
            "P001",
            f"{function.name} cannot be opened here: {type(error).__name__}: {error}",
            where=place(context),
            fix="submit with the Python and library versions that the TaskManagers run",
        ) from error
