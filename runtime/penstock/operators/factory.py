"""From the description of an operator to one that runs. The only place where user functions are opened."""

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
from penstock.operators.process import ProcessOperator
from penstock.operators.running import RunningAggregate
from penstock.operators.sessions import SessionAggregate
from penstock.operators.sinks import SinkOperator
from penstock.operators.sources import SourceOperator
from penstock.operators.top_n import RunningTopN, WindowTopN
from penstock.operators.user_errors import place
from penstock.operators.windows import WindowAggregate


def make_operator(description: specs.Operator, context: OperatorContext) -> Operator:
    """The operator, not yet open."""
    match description.spec:
        case specs.Source() as spec:
            return SourceOperator(spec, registry.make_source(spec.connector))
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
        case specs.Process() as spec:
            return ProcessOperator(spec, load_function(spec.function, context), description.side_outputs)
        case specs.WindowAggregate() as spec:
            return WindowAggregate(spec)
        case specs.SessionAggregate() as spec:
            return SessionAggregate(spec)
        case specs.BufferedWindow() as spec:
            return BufferedWindows(spec, lambda function: load_function(function, context))
        case specs.Combine() as spec:
            return Combine(spec)
        case specs.RunningAggregate() as spec:
            return RunningAggregate(spec)
        case specs.Retract() as spec:
            return Retract(spec)
        case specs.Join() as spec:
            return make_join(spec)
        case specs.Lookup() as spec:
            return LookupJoin(spec, load_function(spec.function, context))
        case specs.CoGroup() as spec:
            return CoGroupOperator(spec, load_function(spec.function, context))
        case specs.Deduplicate() as spec:
            return DeduplicateOperator(spec)
        case specs.TopN(within=within) as spec:
            return RunningTopN(spec) if within is None else WindowTopN(spec, within)


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
