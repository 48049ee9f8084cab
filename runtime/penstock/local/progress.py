"""What people see while a job runs: a live table on a terminal, a line now and then elsewhere, and a summary."""

import sys
from typing import Protocol, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.local import figures
from penstock.model.views import JobView, VertexView

_LINE_US = 2_000_000
_BAR = 5
_COLOURS = {"running": "green", "finished": "green", "stopped": "cyan", "failed": "red", "restarting": "yellow"}


class Progress(Protocol):
    """Told about a job while it runs."""

    def update(self, view: JobView, now_us: int) -> None:
        """How far it is; several times a second."""
        ...

    def printed(self, text: str) -> None:
        """What slots have printed."""
        ...

    def note(self, text: str) -> None:
        """Something that is worth a line of its own."""
        ...

    def close(self) -> None:
        """Nothing more comes."""
        ...


def choose_progress(*, live: bool | None = None) -> Progress:
    """A live table when somebody watches a terminal."""
    live = sys.stdout.isatty() if live is None else live
    return LiveProgress(Console()) if live else LineProgress(sys.stderr)


class Failures:
    """Why a job had to start again, in full, and once: who watches must not wait for its end to read it."""

    def __init__(self) -> None:
        self._told = ""

    def new(self, view: JobView) -> str | None:
        """The lines of a failure that were not shown yet."""
        if view.state != "restarting" or view.reason == self._told or "\n" not in view.reason:
            return None
        self._told = view.reason
        return view.reason


class SilentProgress:
    """Nothing; what slots print goes to the given stream."""

    def __init__(self, output: TextIO) -> None:
        self._output = output

    def update(self, view: JobView, now_us: int) -> None:
        """Ignored."""

    def printed(self, text: str) -> None:
        """Passed on."""
        self._output.write(text)
        self._output.flush()

    def note(self, text: str) -> None:
        """Ignored."""

    def close(self) -> None:
        """Nothing to do."""


class LineProgress:
    """One line every two seconds, and one for each change of state."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._rates = figures.Rates()
        self._failures = Failures()
        self._last: tuple[str, int] = ("", 0)

    def update(self, view: JobView, now_us: int) -> None:
        """Print when it is time to."""
        if failure := self._failures.new(view):
            self.note(failure)
        rate = self._rates.update("read", figures.rows_read(view), now_us)
        state, printed_us = self._last
        if view.state != state or now_us - printed_us >= _LINE_US:
            self._last = (view.state, now_us)
            self.note(progress_line(view, rate, now_us))

    def printed(self, text: str) -> None:
        """To the standard output, as the user's program means it."""
        sys.stdout.write(text)
        sys.stdout.flush()

    def note(self, text: str) -> None:
        """A line."""
        print(text, file=self._stream, flush=True)

    def close(self) -> None:
        """Nothing to do."""


class LiveProgress:
    """A table that is redrawn in place; prints and notes scroll above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rates = figures.Rates()
        self._failures = Failures()
        self._live = Live(console=console, refresh_per_second=8, transient=True)
        self._live.start()

    def update(self, view: JobView, now_us: int) -> None:
        """Redraw."""
        if failure := self._failures.new(view):
            self.note(failure)
        self._live.update(progress_table(view, self._rates, now_us))

    def printed(self, text: str) -> None:
        """Above the table."""
        self._console.print(Text(text), end="")

    def note(self, text: str) -> None:
        """Above the table."""
        self._console.print(Text(text))

    def close(self) -> None:
        """Remove the table."""
        self._live.stop()


def progress_line(view: JobView, rate: float | None, now_us: int) -> str:
    """The whole job in one line."""
    at_rate = "" if rate is None else f" ({figures.rows(rate)}/s)"
    parts = [
        f"{view.name} {view.state}",
        figures.duration(figures.running_us(view, now_us)),
        f"{figures.rows(figures.rows_read(view))} rows read{at_rate}",
        _checkpoint_text(view),
    ]
    if view.restarts:
        parts.append(figures.restarts(view.restarts))
    if view.reason:
        parts.append(view.reason.splitlines()[0])
    return " | ".join(parts)


def progress_table(view: JobView, rates: figures.Rates, now_us: int) -> RenderableType:
    """The whole job as a table: a row per operator."""
    colour = _COLOURS.get(view.state, "yellow")
    title = Text.assemble(
        (view.name, "bold"),
        "  ",
        (view.state, colour),
        f"  {figures.duration(figures.running_us(view, now_us))}",
        f"  attempt {view.attempt}, {figures.restarts(view.restarts)}",
        f"  {_checkpoint_text(view)}",
    )
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("operator", "x", "rows in", "/s", "rows out", "/s", "watermark", "busy", "pressure"):
        right = "/s" in heading or "rows" in heading
        # On a narrow terminal the names give way, not the bars.
        least = _BAR + 5 if heading in ("busy", "pressure") else None
        table.add_column(heading, justify="right" if right else "left", no_wrap=True, min_width=least)
    for vertex in view.vertices:
        for cells in _operator_rows(vertex, rates, now_us):
            table.add_row(*cells)
    parts: list[RenderableType] = [title, table]
    if view.reason:
        parts.append(Text(view.reason, style="yellow"))
    return Group(*parts)


def _operator_rows(vertex: VertexView, rates: figures.Rates, now_us: int) -> list[tuple[RenderableType, ...]]:
    lines: list[tuple[RenderableType, ...]] = []
    for index, operator in enumerate(vertex.operators):
        rate_in = rates.update(f"{operator.uid}:in", operator.rows_in, now_us)
        rate_out = rates.update(f"{operator.uid}:out", operator.rows_out, now_us)
        of_vertex = (
            figures.watermark(vertex.watermark_us, now_us),
            _bar(vertex.busy, "green"),
            Text("held", "yellow") if vertex.held else _bar(vertex.backpressured, "red"),
        )
        lines.append(
            (
                Text(operator.name if index == 0 else f"  {operator.name}"),
                str(vertex.parallelism) if index == 0 else "",
                figures.rows(operator.rows_in),
                figures.rate(rate_in),
                figures.rows(operator.rows_out),
                figures.rate(rate_out),
                *(of_vertex if index == 0 else ("", "", "")),
            )
        )
    return lines


def _bar(share: float, colour: str) -> Text:
    filled = round(max(0.0, min(1.0, share)) * _BAR)
    return Text.assemble(("█" * filled, colour), ("░" * (_BAR - filled), "dim"), f" {share:4.0%}")


def _checkpoint_text(view: JobView) -> str:
    text = f"checkpoints {view.checkpoints_completed} done"
    if view.checkpoints_failed:
        text += f", {view.checkpoints_failed} failed"
    if (last := view.last_checkpoint) is not None and last.duration_us is not None:
        text += f" (last {figures.duration(last.duration_us)}, {figures.size(last.size)})"
    return text


def summary(view: JobView, now_us: int) -> str:
    """What is left to say when the job has ended."""
    took = figures.running_us(view, now_us)
    read = figures.rows_read(view)
    rate = read * 1_000_000 / took if took else 0.0
    lines = [
        f"{view.name} {view.state} after {figures.duration(took)}: "
        f"{read:,} rows read ({figures.rows(rate)}/s), {_checkpoint_text(view)}, {figures.restarts(view.restarts)}"
    ]
    if view.reason and view.state == "failed":
        lines.append(view.reason)
    lines += [f"warning: {warning}" for warning in view.warnings]
    return "\n".join(lines)
