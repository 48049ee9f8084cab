"""Payments judged by rules that may change while the job runs.

    penstock run examples/fraud_rules.py

Rules go to every subtask; payments stay with their card. A payment is judged by the rules that are there, and the last
payments of each card are judged again by every rule that comes later: what is found does not depend on who is first.
With `watch=True` for the rules the job goes on, and takes up rules from files that are added.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl

import penstock as ps

DATA = Path(__file__).parent / "data"
PAYMENT = {"payment": pl.Int64, "card": pl.String, "country": pl.String, "euros": pl.Float64, "ts": pl.Int64}
RULE = {"rule": pl.String, "above": pl.Float64, "country": pl.String}
ALERT = {"card": pl.String, "payment": pl.Int64, "euros": pl.Float64, "rule": pl.String}
REMEMBERED = 20
"""Payments of a card that a new rule looks at."""


@dataclass
class Payment:
    payment: int
    country: str
    euros: float


@dataclass
class Rule:
    above: float
    country: str | None

    def finds(self, payment: Payment) -> bool:
        return payment.euros > self.above and self.country in (None, payment.country)


class Judge(ps.BroadcastProcessFunction):
    rules = ps.BroadcastState(str, Rule)
    recent = ps.ListState(Payment)

    def process(
        self, ctx: ps.KeyedContext, payment: int, country: str, euros: float
    ) -> Iterator[tuple[str, int, float, str]]:
        made = Payment(payment, country, euros)
        self.recent.update([*self.recent, made][-REMEMBERED:])
        for name, rule in self.rules.items():
            if rule.finds(made):
                yield ctx.key, payment, euros, name

    def process_broadcast(self, ctx: ps.KeyedContext, rule: str, above: float, country: str | None) -> None:
        added = self.rules[rule] = Rule(above, country)

        def judge_again(ctx: ps.KeyedContext) -> list[tuple[str, int, float, str]]:
            return [(ctx.key, made.payment, made.euros, rule) for made in self.recent if added.finds(made)]

        ctx.for_each_key(self.recent, judge_again)


def fraud_rules(flow: ps.Flow) -> None:
    payments = flow.read(
        ps.json_lines(DATA / "payments.jsonl", schema=PAYMENT), event_time="ts", unit="s", uid="payments"
    )
    rules = flow.read(ps.json_lines(DATA / "rules.jsonl", schema=RULE), uid="rules")
    alerts = payments.key_by("card").connect(rules.broadcast()).process(Judge(), output=ALERT, uid="judge")
    alerts.write(ps.print(), uid="alerts")
