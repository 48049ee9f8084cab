"""What `make bench` runs: python -m benchmarks [--only NAME] [--cases q3,q8] [--scale 0.1] [--json] [--peer flink]."""

import argparse
import os
import sys
from collections.abc import Callable, Iterator

from benchmarks.figures import Figure, Table

Bench = Callable[..., Iterator[Figure]]


def main() -> None:
    """Exits with 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--only", choices=[*NAMES, "spark"], help="one benchmark instead of all")
    parser.add_argument("--cases", help="only these of its cases: nexmark has one per query, as in q3,q8")
    parser.add_argument("--scale", type=float, default=1.0, help="of the state, for the benchmarks that have much")
    parser.add_argument("--json", action="store_true", help="one JSON object per figure and line")
    parser.add_argument("--peer", choices=["flink"], help="compare with another engine instead of with the reference")
    parser.add_argument(
        "--repeats", type=int, default=int(os.environ.get("REPEATS", "5")), help="a figure is the median of so many"
    )
    options = parser.parse_args()
    if options.cases and (options.only not in WITH_CASES or options.peer):
        parser.error(f"--cases goes with --only {' or '.join(WITH_CASES)}")
    cases = options.cases.split(",") if options.cases else None
    missed = 0
    table = None if options.json else Table()
    for name in [options.only] if options.only else NAMES:
        for figure in _figures(name, options.peer, options.repeats, cases, options.scale):
            missed += figure.holds is False
            if table is None:
                print(figure.as_json(), flush=True)
            else:
                table.add(figure)
    sys.stdout.flush()
    os._exit(1 if missed else 0)  # interpreter exit after Polars and Arrow were used may abort


NAMES = ["nexmark", "process", "aggregates", "latency", "memory", "unaligned", "state", "checkpoints", "rescale"]
WITH_CASES = ("spark", "nexmark", "aggregates", "state", "checkpoints", "rescale")


def _figures(name: str, peer: str | None, repeats: int, cases: list[str] | None, scale: float) -> Iterator[Figure]:
    # Each imported when it is its turn: one that cannot run here must not stop the others.
    if peer == "flink":
        from benchmarks import flink

        return flink.run(repeats=repeats) if name == "nexmark" else iter(())
    if name == "nexmark":
        from benchmarks import nexmark

        return nexmark.run(repeats=repeats, cases=cases)
    if name == "spark":
        from benchmarks import spark  # needs PySpark: only when it is asked for

        return spark.run(repeats=repeats, cases=cases, rows=int(spark.ROWS * scale))
    if name == "process":
        from benchmarks import process

        return process.run(repeats=repeats)
    if name == "aggregates":
        from benchmarks import aggregates

        return aggregates.run(repeats=repeats, cases=cases)
    if name == "latency":
        from benchmarks import latency

        return latency.run()
    if name == "unaligned":
        from benchmarks import unaligned

        return unaligned.run()
    if name == "state":
        from benchmarks import state

        return state.run(repeats=repeats, cases=cases, scale=scale)
    if name == "checkpoints":
        from benchmarks import checkpoints

        return checkpoints.run(repeats=repeats, cases=cases, scale=scale)
    if name == "rescale":
        from benchmarks import rescaling

        return rescaling.run(cases=cases, scale=scale)
    from benchmarks import memory

    return memory.run()


if __name__ == "__main__":
    main()
