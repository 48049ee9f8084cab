"""Programs that the tests of the embedded cluster run."""

import os

import penstock as ps
from penstock import col


def evens(flow: ps.Flow) -> None:
    rows = flow.read(ps.items([{"n": n} for n in range(100)]), uid="numbers")
    rows.filter(col("n") % 2 == 0).write(ps.collect(), uid="out")


def drip(flow: ps.Flow) -> None:
    """Four seconds of rows, a few at a time."""
    rows = flow.read(ps.generate({"n": ps.sequence()}, rows=2_000, rate=500), uid="numbers")
    rows.rebalance().filter(col("n") >= 0).write(ps.collect(), uid="out")


def endless(flow: ps.Flow) -> None:
    rows = flow.read(ps.generate({"n": ps.sequence()}, rate=500), uid="numbers")
    rows.filter(col("n") >= 0).write(ps.collect(), uid="out")


def drip_for_ever(flow: ps.Flow) -> None:
    rows = flow.read(ps.generate({"n": ps.sequence()}, rate=500), uid="numbers")
    rows.rebalance().filter(col("n") >= 0).write(ps.discard(), uid="out")


def printing(flow: ps.Flow) -> None:
    flow.read(ps.items([{"word": "hello"}]), uid="words").write(ps.print(), uid="out")


def suicidal(flow: ps.Flow) -> None:
    def leave(n: int) -> dict[str, int]:
        os._exit(3)

    numbers = flow.read(ps.items([{"n": 1}]), uid="numbers")
    numbers.map(leave, output={"n": int}).write(ps.discard(), uid="out")


def spinning(flow: ps.Flow) -> None:
    def spin(n: int) -> dict[str, int]:
        while True:
            pass

    numbers = flow.read(ps.items([{"n": 1}]), uid="numbers")
    numbers.map(spin, output={"n": int}).write(ps.discard(), uid="out")


def mistaken(flow: ps.Flow) -> None:
    flow.read(ps.items([{"price": 1}]), uid="numbers").filter(col("prize") > 1).write(ps.discard(), uid="out")
