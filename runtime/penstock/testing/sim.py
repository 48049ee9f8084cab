"""`python -m penstock.testing.sim`: run seeds of the simulation, or look at one."""

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Sequence

import msgspec

from penstock.testing.campaign import Summary, planted_bug, run_seeds
from penstock.testing.episodes import Episode, run_episode
from penstock.testing.planted import PLANTED

TRACE_TAIL = 60


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0: all seeds are clean (with a planted bug: it was found)."""
    options = _parser().parse_args(arguments)
    if options.seed is not None:
        return _replay(options)
    return _campaign(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m penstock.testing.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to run (default 100)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (default 0)")
    parser.add_argument("--seed", type=int, help="run just this one, twice, and compare the traces")
    parser.add_argument("--trace", action="store_true", help="with --seed: print everything that happened")
    parser.add_argument("--planted", choices=sorted(PLANTED), help="put this bug into the engine first")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    return parser


# ---------------------------------------------------------------- many seeds


def _campaign(options: argparse.Namespace) -> int:
    summary, started, shown = Summary(), time.perf_counter(), time.perf_counter()
    seeds = range(options.first, options.first + options.seeds)
    with contextlib.closing(run_seeds(seeds, workers=options.workers, planted=options.planted)) as episodes:
        for episode in episodes:
            summary.add(episode)
            if not episode.clean and not options.json:
                _show_failure(episode, options.planted)
            if options.planted and summary.failed:
                break
            if sys.stderr.isatty() and time.perf_counter() - shown > 1:
                shown = time.perf_counter()
                progress = f"{summary.seeds}/{options.seeds} seeds, {len(summary.failed)} failed"
                print(f"\r{progress}", end="", file=sys.stderr)
    seconds = time.perf_counter() - started
    if options.json:
        _print_json(summary, seconds, options)
    else:
        _show_summary(summary, seconds, options)
    if options.planted:
        return 0 if summary.failed else 1
    return 1 if summary.failed or summary.never_met() else 0


def _show_summary(summary: Summary, seconds: float, options: argparse.Namespace) -> None:
    print(
        f"{summary.seeds} seeds in {seconds:.1f} s ({summary.seeds / seconds:.1f} seeds/s, "
        f"{options.workers} workers), {summary.virtual_us / 1e6:.0f} virtual seconds, {summary.steps} events"
    )
    print("jobs:    " + _counts(summary.jobs))
    print(f"         {summary.checkpoints} checkpoints completed, {summary.restarts} restarts")
    print("faults:  " + _counts(summary.struck))
    print("rare situations, by number of seeds:")
    for name, times in sorted(summary.marks.items()):
        print(f"  {times:6}  {name}")
    for name in summary.never_met():
        print(f"  NEVER   {name}")
    if options.planted:
        found = (
            f"found by seed {summary.failed[0].seed} after {summary.seeds} seeds" if summary.failed else "NOT FOUND"
        )
        print(f"planted bug {options.planted}: {found}")
    else:
        print(f"{len(summary.failed)} seeds failed" if summary.failed else "all seeds are clean")


def _counts(counter: "dict[str, int]") -> str:
    return ", ".join(f"{name} {times}" for name, times in sorted(counter.items())) or "none"


def _show_failure(episode: Episode, planted: str | None) -> None:
    print(f"seed {episode.seed} ({episode.job} job) FAILED")
    for oracle, text in episode.violations[:3]:
        print(f"  {oracle}: {text}")
    for fault in episode.faults:
        print(f"  fault: {fault}")
    print(f"  replay: {replay_command(episode.seed, planted)}", flush=True)


def replay_command(seed: int, planted: str | None) -> str:
    """What to type to see this seed again."""
    bug = f" --planted {planted}" if planted else ""
    return f"python -m penstock.testing.sim --seed {seed} --trace{bug}"


def _print_json(summary: Summary, seconds: float, options: argparse.Namespace) -> None:
    document = {
        "seeds": summary.seeds,
        "seconds": round(seconds, 3),
        "planted": options.planted,
        "failed": [
            {"seed": each.seed, "violations": each.violations, "faults": each.faults} for each in summary.failed
        ],
        "jobs": summary.jobs,
        "faults": summary.struck,
        "marks": summary.marks,
        "never_met": summary.never_met(),
        "checkpoints": summary.checkpoints,
        "restarts": summary.restarts,
        "events": summary.steps,
        "virtual_seconds": summary.virtual_us / 1e6,
    }
    print(msgspec.json.encode(document, order="sorted").decode())


# ---------------------------------------------------------------- one seed


def _replay(options: argparse.Namespace) -> int:
    with planted_bug(options.planted):
        episode = run_episode(options.seed, keep_trace=True)
        again = run_episode(options.seed)
    if options.json:
        print(msgspec.json.encode({"episode": episode, "same_trace": episode.digest == again.digest}).decode())
    else:
        _show_episode(episode, options)
    if episode.digest != again.digest:
        print(f"seed {episode.seed} gave two traces, {episode.digest} and {again.digest}", file=sys.stderr)
        return 1
    return 0 if episode.clean else 1


def _show_episode(episode: Episode, options: argparse.Namespace) -> None:
    lines = episode.trace if options.trace else episode.trace[-TRACE_TAIL:] if not episode.clean else []
    for line in lines:
        print(line)
    if episode.crash:
        print(episode.crash)
    if episode.clean:
        for fault in episode.faults:
            print(f"  fault: {fault}")
    else:
        _show_failure(episode, options.planted)
    print(
        f"seed {episode.seed}: {episode.job} job, {'clean' if episode.clean else 'FAILED'}; "
        f"{episode.virtual_us / 1e6:.1f} virtual seconds, {episode.steps} events, {episode.checkpoints} checkpoints, "
        f"{episode.restarts} restarts, {episode.rows} rows; trace {episode.digest}, the same twice"
    )


if __name__ == "__main__":
    sys.exit(main())
