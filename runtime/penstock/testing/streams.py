"""`run_stream`: a whole program in this process, in virtual time, with the engine's own operators and checkpoints."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import polars as pl

from penstock.api import row_types
from penstock.api.flows import DEFAULT_MAX_PARALLELISM, Flow
from penstock.api.programs import load_program
from penstock.api.streams import DataStream
from penstock.graph import JobGraph
from penstock.model import schemas, specs
from penstock.model.counters import OperatorMetrics
from penstock.model.errors import PenstockError, UserError
from penstock.model.settings import JobSettings
from penstock.savepoints.manifest import open_savepoint
from penstock.storage import MemoryStore
from penstock.testing.inputs import Input, as_input, columns_of, steps_of
from penstock.testing.runs import Leftover, Run
from penstock.testing.scripted import Capture, Captured, Director, ScriptedInput, operators
from penstock.testing.world import Exhausted, World

RESULT = "result"
"""What the only stream that a function returns is called."""
_RETURNED = "returned: "
"""Before the names of streams that a function returns: operators in it may have the same."""
_FLOW = "flow"
_LIMIT_US = 1_000 * 365 * 86_400_000_000
_GRACE_US = 5_000
"""After the job has ended: time in which sinks hear of it."""

Built = DataStream | Mapping[str, DataStream] | Sequence[DataStream] | None


class StreamFailedError(PenstockError):
    """The job under test failed; `code` and the text are those of the failure."""


@dataclass(frozen=True, slots=True)
class StreamResult:
    """What came out."""

    frames: dict[str, pl.DataFrame]
    """Rows by sink, as committed."""
    written: dict[str, list["pl.DataFrame | int"]]
    """Rows in the batches in which they came, with the watermarks (microseconds) in between."""
    restarts: int
    checkpoints: int
    counters: dict[str, OperatorMetrics] = field(default_factory=dict)
    """By operator, over all restarts: `late_rows`, `bad_rows`, `rows_in`, `rows_out`."""

    def __getitem__(self, name: str) -> pl.DataFrame:
        self._require(name)
        return self.frames[name]

    @property
    def frame(self) -> pl.DataFrame:
        """Rows of the only sink."""
        if len(self.frames) != 1:
            raise UserError("T002", f"which sink? there are: {', '.join(self.frames)}", fix='result["name"]')
        return next(iter(self.frames.values()))

    def rows(self, name: str | None = None) -> list[tuple[Any, ...]]:
        """Rows as tuples."""
        return (self.frame if name is None else self[name]).rows()

    def events(self, name: str | None = None) -> list["pl.DataFrame | int"]:
        """Rows and watermarks of a sink, in their order."""
        if name is None:
            return self.written[self._only()]
        self._require(name)
        return self.written[name]

    def watermarks(self, name: str | None = None) -> list[int]:
        """How far event time had come behind the rows of a sink, in microseconds, without the end of time."""
        return [event for event in self.events(name) if isinstance(event, int)]

    def table(
        self, name: str | None = None, *, keys: Sequence[str] | None = None, column: str = "change"
    ) -> pl.DataFrame:
        """What a changelog has come to: the rows that are left after all inserts, updates and deletes.

        `keys`: the columns of which an update has the new row; None: deletes take back equal rows.
        """
        frame = self.frame if name is None else self[name]
        columns = [each for each in frame.columns if each != column]
        left: dict[Any, list[Any]] = {}
        for change, row in zip(frame.get_column(column), frame.select(columns).iter_rows(named=True), strict=True):
            key = tuple(str(row[each]) for each in (columns if keys is None else keys))
            match change:
                case "update":
                    left[key] = [row]
                case "delete":
                    left[key].pop()
                case _:
                    left.setdefault(key, []).append(row)
        rows = [row for each in left.values() for row in each]
        return pl.DataFrame(rows, schema=frame.select(columns).schema)

    @property
    def late_rows(self) -> int:
        """Rows that came too late for their window, counted by all operators."""
        return sum(counter.late_rows for counter in self.counters.values())

    def _only(self) -> str:
        if len(self.frames) != 1:
            raise UserError("T002", f"which sink? there are: {', '.join(self.frames)}", fix='result.events("name")')
        return next(iter(self.frames))

    def _require(self, name: str) -> None:
        if name not in self.frames:
            there = ", ".join(self.frames) or "none"
            raise UserError("T002", f'no sink "{name}"; there are: {there}', fix="sinks are named by their uid")


def run_stream(
    program: str | Callable[..., Any],
    inputs: Mapping[str, Any] | None = None,
    *,
    parallelism: int = 1,
    max_parallelism: int = DEFAULT_MAX_PARALLELISM,
    checkpoint_every: int = 4,
    crash_after: int | Sequence[int] = (),
    restore_parallelism: int | Sequence[int] = (),
    savepoint_after: int | Sequence[int] = (),
    start_from: str | None = None,
    settings: JobSettings | None = None,
    seed: int = 0,
    max_steps: int = 2_000_000,
) -> StreamResult:
    """Run a program, or a function that makes streams of streams, on the given inputs, until they have ended.

    `program`: a function of `flow` (or `"file.py:function"`), whose sources are replaced by the inputs of the same
    uid or name and whose sinks are caught by uid; or a function whose parameters are streams, named like the inputs,
    and which returns a stream (`"result"`), several, or several by name.
    `inputs`: name -> list of rows and signals, or `source(...)`.
    `checkpoint_every`: batches between two checkpoints (0: only where the script says so).
    `crash_after`: rows read since the start, or since the last restore, after which all slots die; several in turn.
    `restore_parallelism`: at which parallelism the job goes on after each of these.
    `savepoint_after`: the same, but the job is stopped with a savepoint, and goes on from that alone.
    `start_from`: the folder of a savepoint that the first run starts from, of whatever job.
    `seed`: another one lets messages overtake each other in other ways; the same one repeats the run.
    """
    world = World(seed, max_steps=max_steps)
    director = Director(
        checkpoint_every=checkpoint_every,
        crash_after=_several(crash_after),
        stop_after=_several(savepoint_after),
        parallelisms=_several(restore_parallelism),
        rng=world.stream("crashes"),
    )
    build = _Building(program, inputs or {}, _settings(settings))
    captured = Captured()
    graph = build.graph(parallelism, max_parallelism)
    make = operators(build.scripts, director, captured)
    before = Leftover(None, MemoryStore(), open_savepoint(start_from)) if start_from else None
    checkpoints = 0
    try:
        while True:
            run = _start(world, graph, make, director, captured, before)
            crash = _until_end(world, run, director)
            checkpoints += run.checkpoints
            if crash is None:
                break
            before = run.end(crash.savepoint)
            captured.run += 1
            if crash.parallelism is not None:
                graph = build.graph(crash.parallelism, max_parallelism)
        _check(run)
        run.end()
    finally:
        world.close()
    counters = {each.uid: each for each in (run.manifest.counters if run.manifest else ())}
    return _result(graph, captured, counters, restarts=captured.run, checkpoints=checkpoints)


# ---------------------------------------------------------------- running


@dataclass(slots=True)
class _Crash:
    parallelism: int | None
    savepoint: str = ""
    """The job was stopped with this one instead."""


def _start(
    world: World, graph: JobGraph, make: Any, director: Director, captured: Captured, before: Leftover | None
) -> Run:
    director.on_start()
    return Run(world, graph, make, number=captured.run, before=before)


def _until_end(world: World, run: Run, director: Director) -> _Crash | None:
    """Let the job run until it has ended (None) or crashes."""
    crashes: list[_Crash] = []
    stops: list[_Crash] = []
    completed = run.checkpoints

    def stop(parallelism: int | None) -> None:
        stops.append(_Crash(parallelism, f"memory://savepoint-{run.number}"))
        run.request_stop(stops[0].savepoint)

    director.request_stop = stop
    director.request_checkpoint = run.request_checkpoint
    director.request_crash = lambda delay_us, parallelism: world.after(
        delay_us, "", lambda: crashes.append(_Crash(parallelism))
    )

    def over() -> bool:
        nonlocal completed
        while completed < run.checkpoints:
            completed += 1
            director.on_checkpoint()
        return run.ended or bool(crashes)

    try:
        ended = world.run(until=over, limit_us=_LIMIT_US)
    except Exhausted as error:
        raise StreamFailedError("T003", f"the job does not end: {error}", fix="raise max_steps=") from None
    if not ended:
        raise StreamFailedError("T003", "the job has not ended, and nothing happens any more")
    if crashes and not run.ended:
        return crashes[0]
    if stops and run.outcome is not None and run.outcome.outcome == "stopped":
        return stops[0]
    world.run(until=lambda: False, limit_us=world.now_us + _GRACE_US)
    return None


def _check(run: Run) -> None:
    if run.error is not None:
        raise run.error
    if run.failure is not None:
        raise StreamFailedError(run.failure.code, run.failure.reason)
    if run.outcome is None or run.outcome.outcome != "finished":
        code, _, reason = (run.outcome.reason if run.outcome else "").partition(" ")
        raise StreamFailedError(code or "T003", reason or "the job has not finished")


def _result(
    graph: JobGraph, captured: Captured, counters: dict[str, OperatorMetrics], *, restarts: int, checkpoints: int
) -> StreamResult:
    frames: dict[str, pl.DataFrame] = {}
    written: dict[str, list[pl.DataFrame | int]] = {}
    for vertex in graph.vertices:
        for link in vertex.chain:
            if isinstance(link.operator.spec, specs.Sink):
                uid = link.operator.uid
                schema = schemas.polars_schema(link.operator.output)
                name = uid.removeprefix(_RETURNED)
                written[name] = captured.events(uid)
                batches = [event for event in written[name] if isinstance(event, pl.DataFrame)]
                frames[name] = pl.concat([schema.to_frame(), *batches])
    return StreamResult(frames, written, restarts, checkpoints, counters)


def _settings(given: JobSettings | None) -> JobSettings:
    """Checkpoints come when the script says so, and the first failure is the result of the test."""
    settings = given or JobSettings()
    return msgspec.structs.replace(
        settings,
        checkpoint=msgspec.structs.replace(settings.checkpoint, interval_us=0),
        restart=msgspec.structs.replace(settings.restart, budget=0),
    )


def _several(given: int | Sequence[int]) -> Sequence[int]:
    return (given,) if isinstance(given, int) else tuple(given)


# ---------------------------------------------------------------- building


class _Building:
    """The program under test, and its inputs as sources."""

    def __init__(self, program: str | Callable[..., Any], inputs: Mapping[str, Any], settings: JobSettings) -> None:
        self._program: Callable[..., Any] = load_program(program) if isinstance(program, str) else program
        self._inputs = {name: as_input(name, given) for name, given in inputs.items()}
        self._settings = settings
        self.scripts: dict[str, ScriptedInput] = {}

    def graph(self, parallelism: int, max_parallelism: int) -> JobGraph:
        """Built anew for each parallelism."""
        flow = _TestedFlow(self._settings, self._inputs, self.scripts)
        parameters = inspect.signature(self._program).parameters.values()
        names = [each.name for each in parameters if each.default is each.empty]
        if names == [_FLOW]:
            self._program(flow)
            unread = [name for name in self._inputs if name not in flow.replaced]
            if unread:
                raise UserError(
                    "T001",
                    f'run_stream: no source has the uid or name "{unread[0]}"; there are: {", ".join(flow.sources)}',
                    fix="name the source that the input replaces: flow.read(..., uid=...)",
                )
        else:
            self._call(flow, names)
        return flow.plan(parallelism=parallelism, max_parallelism=max_parallelism, settings=_settings(flow.settings))

    def _call(self, flow: "_TestedFlow", names: Sequence[str]) -> None:
        wanted = [name for name in names if name != _FLOW]
        if set(wanted) != set(self._inputs):
            raise UserError(
                "T001",
                f"run_stream: the function takes {', '.join(wanted) or 'no streams'}; "
                f"the inputs are {', '.join(self._inputs) or 'none'}",
                fix="give one input for each parameter, of the same name",
            )
        streams: dict[str, Any] = {name: flow.open(name) for name in wanted}
        built: Built = self._program(**streams, **({_FLOW: flow} if _FLOW in names else {}))
        for name, stream in _named(built).items():
            stream.write(Capture(), uid=f"{_RETURNED}{name}")


def _named(built: Built) -> dict[str, DataStream]:
    match built:
        case DataStream():
            return {RESULT: built}
        case Mapping():
            return dict(built)
        case None:
            return {}
    return {f"{RESULT}-{number}": stream for number, stream in enumerate(built)}


class _TestedFlow(Flow):
    """A flow whose sources may be replaced."""

    def __init__(self, settings: JobSettings, inputs: Mapping[str, Input], scripts: dict[str, ScriptedInput]) -> None:
        super().__init__("test", settings=settings)
        self._inputs, self._scripts = inputs, scripts
        self.replaced: set[str] = set()
        self.sources: list[str] = []

    def read(self, source: Any, *, uid: str | None = None, name: str | None = None, **options: Any) -> DataStream:
        """The input of this name in place of the source; other sources as they are."""
        called = next((each for each in (uid, name) if each in self._inputs), None)
        self.sources.append(uid or name or "(unnamed)")
        if called is None:
            return super().read(source, uid=uid, name=name, **options)
        self.replaced.add(called)
        given = self._inputs[called]
        declared = row_types.schema_of(options.pop("schema"), where="") if options.get("schema") is not None else None
        if declared is None and given.schema is None:
            declared = source.as_source().schema
        script = self._script(called, given, declared, tells_time=False)
        return super().read(script, uid=uid, name=name, **options)

    def open(self, name: str) -> DataStream:
        """An input as a stream, read as the input says."""
        given = self._inputs[name]
        script = self._script(name, given, None, tells_time=given.max_delay is None and given.watermark is None)
        names = ("event_time", "unit", "time", "idle_after", "max_delay", "watermark", "align_within", "align_group")
        options = {key: getattr(given, key) for key in names}
        return super().read(script, uid=name, **{key: each for key, each in options.items() if each is not None})

    def _script(self, name: str, given: Input, declared: pl.Schema | None, *, tells_time: bool) -> ScriptedInput:
        schema = columns_of(name, given, declared)
        splits = tuple(tuple(steps_of(name, split, schema, given.batch_rows)) for split in given.splits)
        self._scripts[name] = ScriptedInput(name, schema, splits, tells_time)
        return self._scripts[name]
