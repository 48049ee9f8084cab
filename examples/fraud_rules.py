"""Payments judged by rules that change while the job runs.

Rules are a small stream that goes to every subtask; payments are not moved. A payment is judged by the rules that
have come so far.
"""

import polars as pl

import penstock as ps
from penstock import col

PAYMENT = {"card": pl.String, "country": pl.String, "euros": pl.Float64, "ts": pl.Int64}
RULE = {"rule": pl.String, "country": pl.String, "above": pl.Float64}


def fraud_rules(flow: ps.Flow) -> None:
    payments = flow.read(ps.json_lines("payments", schema=PAYMENT), event_time="ts", unit="s", uid="payments")
    rules = flow.read(ps.json_lines("rules", schema=RULE, watch=True), uid="rules")
    matched = payments.join(rules.broadcast(), on="country", uid="judged")
    alerts = matched.filter(col("euros") > col("above")).select("card", "country", "euros", "rule", "ts")
    alerts.write(ps.parquet("alerts"), uid="alerts")
