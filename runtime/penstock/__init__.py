"""Stream processing in Python: `import penstock as ps`.

Names are loaded when they are first used: a JobManager imports parts of this package, and must pay for neither
the expressions nor the connectors that only programs need.
"""
# Users write `ps.sum`, never `from penstock import *`: names may be those of builtins.
# ruff: noqa: A004

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from narwhals import (
        all_horizontal,
        any_horizontal,
        coalesce,
        col,
        concat_str,
        lit,
        max_horizontal,
        mean_horizontal,
        min_horizontal,
        sum_horizontal,
        when,
    )

    from penstock.api import (
        DataStream,
        Flow,
        KeyedStream,
        WindowAssigner,
        WindowedStream,
        bounded,
        count_window,
        evictor,
        global_window,
        punctuated,
        session,
        sliding,
        trigger,
        tumbling,
    )
    from penstock.api.aggregates import (
        MergeableAggregate,
        approx_count_distinct,
        collect_list,
        count,
        count_distinct,
        first,
        last,
        max_by,
        mean,
        min_by,
        quantile,
        std,
        var,
    )
    from penstock.api.aggregates import all_ as all
    from penstock.api.aggregates import any_ as any
    from penstock.api.aggregates import max_ as max
    from penstock.api.aggregates import min_ as min
    from penstock.api.aggregates import sum_ as sum
    from penstock.api.connected import ConnectedStreams
    from penstock.api.joins import as_of, interval, lookup
    from penstock.connectors import (
        choice,
        collect,
        csv,
        discard,
        generate,
        items,
        json_lines,
        nexmark,
        now,
        parquet,
        print,
        sequence,
        socket_lines,
        timestamps,
        uniform,
    )
    from penstock.model.errors import PenstockError, UserError
    from penstock.operators.contexts import Context, KeyedContext, ProcessContext
    from penstock.operators.operator_states import BroadcastState, OperatorListState, UnionListState
    from penstock.operators.user_functions import (
        BroadcastProcessFunction,
        CoProcessFunction,
        KeyedProcessFunction,
        ProcessFunction,
    )
    from penstock.operators.user_states import AggregatingState, ListState, MapState, ReducingState, ValueState
    from penstock.operators.watermarks import WatermarkGenerator
    from penstock.state.ttl import ttl

_HOMES = {
    "narwhals": (
        "all_horizontal", "any_horizontal", "coalesce", "col", "concat_str", "lit", "max_horizontal",
        "mean_horizontal", "min_horizontal", "sum_horizontal", "when",
    ),
    "penstock.api": ("DataStream", "Flow", "KeyedStream", "WindowAssigner", "WindowedStream", "bounded",
        "count_window", "evictor", "global_window", "punctuated", "session", "sliding", "trigger", "tumbling"),
    "penstock.api.aggregates": (
        "MergeableAggregate", "all", "any", "approx_count_distinct", "collect_list", "count", "count_distinct",
        "first", "last", "max", "max_by", "mean", "min", "min_by", "quantile", "std", "sum", "var",
    ),
    "penstock.api.connected": ("ConnectedStreams",),
    "penstock.api.joins": ("as_of", "interval", "lookup"),
    "penstock.connectors": (
        "choice", "collect", "csv", "discard", "generate", "items", "json_lines", "nexmark", "now", "parquet",
        "print", "sequence", "socket_lines", "timestamps", "uniform",
    ),
    "penstock.model.errors": ("PenstockError", "UserError"),
    "penstock.operators.contexts": ("Context", "KeyedContext", "ProcessContext"),
    "penstock.operators.operator_states": ("BroadcastState", "OperatorListState", "UnionListState"),
    "penstock.operators.user_functions": ("BroadcastProcessFunction", "CoProcessFunction", "KeyedProcessFunction",
        "ProcessFunction"),
    "penstock.operators.user_states": ("AggregatingState", "ListState", "MapState", "ReducingState", "ValueState"),
    "penstock.operators.watermarks": ("WatermarkGenerator",),
    "penstock.state.ttl": ("ttl",),
}  # fmt: skip
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}
_SHADOWS_A_BUILTIN = frozenset({"all", "any", "max", "min", "sum"})

__all__ = [
    "AggregatingState",
    "BroadcastProcessFunction",
    "BroadcastState",
    "CoProcessFunction",
    "ConnectedStreams",
    "Context",
    "DataStream",
    "Flow",
    "KeyedContext",
    "KeyedProcessFunction",
    "KeyedStream",
    "ListState",
    "MapState",
    "MergeableAggregate",
    "OperatorListState",
    "PenstockError",
    "ProcessContext",
    "ProcessFunction",
    "ReducingState",
    "UnionListState",
    "UserError",
    "ValueState",
    "WatermarkGenerator",
    "WindowAssigner",
    "WindowedStream",
    "all",
    "all_horizontal",
    "any",
    "any_horizontal",
    "approx_count_distinct",
    "as_of",
    "bounded",
    "choice",
    "coalesce",
    "col",
    "collect",
    "collect_list",
    "concat_str",
    "count",
    "count_distinct",
    "count_window",
    "csv",
    "discard",
    "evictor",
    "first",
    "generate",
    "global_window",
    "interval",
    "items",
    "json_lines",
    "last",
    "lit",
    "lookup",
    "max",
    "max_by",
    "max_horizontal",
    "mean",
    "mean_horizontal",
    "min",
    "min_by",
    "min_horizontal",
    "nexmark",
    "now",
    "parquet",
    "print",
    "punctuated",
    "quantile",
    "sequence",
    "session",
    "sliding",
    "socket_lines",
    "std",
    "sum",
    "sum_horizontal",
    "timestamps",
    "trigger",
    "ttl",
    "tumbling",
    "uniform",
    "var",
    "when",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    module = importlib.import_module(home)
    inside = f"{name}_" if home == "penstock.api.aggregates" and name in _SHADOWS_A_BUILTIN else name
    value = getattr(module, inside)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
