"""Figures that functions keep: over subtasks, over restarts, and as Prometheus reads them."""

import pytest

from penstock.jobmanager.metrics import render
from penstock.model.counters import OperatorMetrics, total
from penstock.model.errors import UserError
from penstock.model.views import ClusterView, JobView, OperatorView, VertexView
from penstock.operators.contexts import Context
from penstock.operators.user_metrics import UserMetrics


def counted(subtask: int) -> OperatorMetrics:
    metrics = UserMetrics()
    ctx = Context(metrics=metrics)
    ctx.counter("calls").inc()
    ctx.counter("calls").inc(subtask)
    ctx.gauge("depth").set(3)
    ctx.gauge("slowest", across="max").set(subtask)
    seconds = ctx.histogram("seconds", bounds=(0.1, 1))
    for value in (0.05, 0.1, 0.5, 7):
        seconds.observe(value)
    return OperatorMetrics(uid="op", user=metrics.read())


def test_subtasks_add_up_and_gauges_as_they_were_declared() -> None:
    summed = {metric.name: metric for metric in total([counted(1), counted(5)])["op"].user}
    assert {name: metric.value for name, metric in summed.items()} == {
        "calls": 8,
        "depth": 6,
        "slowest": 5,
        "seconds": 2 * 7.65,
    }
    assert summed["seconds"].counts == (4, 6, 8)


def test_gauges_describe_the_present_only() -> None:
    assert [metric.name for metric in counted(1).without_present().user] == ["calls", "seconds"]


def test_a_histogram_whose_bounds_have_changed_starts_anew() -> None:
    metrics = UserMetrics()
    metrics.histogram("seconds", (5.0,)).observe(1)
    changed = OperatorMetrics(uid="op", user=metrics.read())
    [metric] = [each for each in total([counted(1), changed])["op"].user if each.name == "seconds"]
    assert metric.counts == (1, 1)


def test_wrong_declarations_are_refused() -> None:
    ctx = Context()
    ctx.counter("calls")
    with pytest.raises(UserError, match=r'P016 .*"calls" is a counter already'):
        ctx.gauge("calls")
    with pytest.raises(UserError, match="P016"):
        ctx.gauge("depth", across="mean")
    with pytest.raises(UserError, match=r"P016 .*bounds must rise"):
        ctx.histogram("seconds", bounds=(1, 1))


def test_prometheus_gets_each_kind_as_it_wants_it() -> None:
    operator = OperatorView(uid="op", name="op", user=counted(1).user)
    vertex = VertexView(id="v", parallelism=1, operators=(operator,))
    job = JobView(
        id="j", name="j", state="running", attempt=1, restarts=0, parallelism=1, submitted_us=0, vertices=(vertex,)
    )
    text = render(ClusterView(processes=(), slots_total=1, slots_free=0, jobs=(job,)))
    labels = 'job="j",vertex="v",operator="op",name='
    assert f'penstock_user_counter_total{{{labels}"calls"}} 2\n' in text
    assert f'penstock_user_gauge{{{labels}"depth"}} 3\n' in text
    assert text.count("# TYPE penstock_user_histogram histogram") == 1
    assert f'penstock_user_histogram_bucket{{{labels}"seconds",le="+Inf"}} 4\n' in text
    assert f'penstock_user_histogram_sum{{{labels}"seconds"}} 7.65\n' in text
