"""What Prometheus reads at /metrics."""

from prometheus_client import Counter, Gauge, Histogram

looks = Histogram(
    "penstock_operator_look_seconds",
    "Time to look at one object and act upon it",
    ["kind"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
errors = Counter("penstock_operator_errors_total", "Looks that were cut short", ["type"])
objects = Gauge("penstock_operator_flowjobs", "FlowJobs that are watched")
leading = Gauge("penstock_operator_leading", "1: this replica leads")
full_pass_age = Gauge("penstock_operator_full_pass_age_seconds", "Since everything was listed last")
queue = Gauge("penstock_operator_queue", "Objects that are due")
api_calls = Gauge("penstock_operator_api_calls", "Calls of the Kubernetes API since the start")
