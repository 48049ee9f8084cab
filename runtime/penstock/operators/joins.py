"""The join that a spec describes."""

from penstock.model import specs
from penstock.operators.base import Operator
from penstock.operators.broadcast_join import BroadcastJoin
from penstock.operators.interval_join import IntervalJoin
from penstock.operators.regular_join import RegularJoin
from penstock.operators.temporal_join import TemporalJoin
from penstock.operators.window_join import WindowJoin


def make_join(spec: specs.Join) -> Operator:
    """By how rows match in time."""
    match spec.match:
        case specs.WindowMatch() as match:
            return WindowJoin(spec, match)
        case specs.IntervalMatch() as match:
            return IntervalJoin(spec, match)
        case specs.AsOfMatch() as match:
            return TemporalJoin(spec, match)
        case specs.EverMatch() as match:
            return RegularJoin(spec, match)
        case specs.BroadcastMatch():
            return BroadcastJoin(spec)
