"""Whether a job can go on from a savepoint, and how: decided from the manifest and the new graph alone. No I/O.

Every state of the savepoint gets a verdict, and every refusal names the flag that would allow it:

    restored   as it is
    evolved    with values converted (`evolution`), or rows cut anew for another max parallelism
    dropped    nobody takes it, and that was allowed
    refused    nothing is started
    new        the job declares it, the savepoint lacks it: it starts empty
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from penstock.checkpoint import canonical
from penstock.graph import JobGraph
from penstock.model import schemas, specs
from penstock.model.errors import UserError
from penstock.model.handles import Redistribution
from penstock.model.ids import Uid
from penstock.savepoints import evolution
from penstock.savepoints.evolution import Rules
from penstock.savepoints.manifest import SavedState, SavepointManifest
from penstock.savepoints.shapes import differences, operators_of, shapes

RESTORED, EVOLVED, DROPPED, REFUSED, NEW = "restored", "evolved", "dropped", "refused", "new"

_OF_ITSELF: Final = ("timers:", "progress:", "in-flight-")
"""States that operators of functions have without declaring them."""


class RestoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What was allowed."""

    allow_non_restored: bool = False
    """State that no operator takes is left behind."""
    allow_foreign: bool = False
    """The savepoint may be one of another job."""
    evolve: bool = False
    """Fields may be dropped, rows may be cut anew for another max parallelism."""
    map_uid: tuple[tuple[str, str], ...] = ()
    """(old, new) names of operators `uid`, states `uid.state` or fields `uid.state.field`; new empty: left behind."""

    @property
    def query(self) -> list[tuple[str, str]]:
        """As parameters of a submission."""
        flags = {name: getattr(self, name) for name in ("allow_non_restored", "allow_foreign", "evolve")}
        return [
            *((name, "true") for name, given in flags.items() if given),
            *(("map_uid", f"{old}={new}") for old, new in self.map_uid),
        ]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one state, or on the savepoint (without a state)."""

    verdict: str
    uid: str = ""
    state: str = ""
    detail: str = ""
    rows: int = 0
    size: int = 0
    code: str = ""
    fix: str = ""

    @property
    def name(self) -> str:
        """`uid.state`, or what it is about."""
        return f"{self.uid}.{self.state}" if self.state else self.uid or "savepoint"


@dataclass(frozen=True, slots=True)
class StatePlan:
    """How one state of the savepoint becomes one of the job."""

    saved: SavedState
    uid: Uid
    state: str
    spec: specs.OperatorSpec
    rules: Rules | None = None
    """Values are converted to the type that `spec` declares; None: they stay."""
    recut: bool = False
    """Key groups are computed anew."""

    @property
    def rewritten(self) -> bool:
        """Tables do not stay as they are."""
        return self.recut or self.rules is not None


@dataclass(frozen=True, slots=True)
class Report:
    """What would happen."""

    findings: tuple[Finding, ...]
    plans: tuple[StatePlan, ...]

    @property
    def refused(self) -> list[Finding]:
        """Why it cannot happen."""
        return [finding for finding in self.findings if finding.verdict == REFUSED]

    def require(self, where: str) -> None:
        """UserError with the first refusal and how many more there are."""
        refused = self.refused
        if refused:
            first, more = refused[0], len(refused) - 1
            others = f" (and {more} more: {', '.join(each.name for each in refused[1:6])})" if more else ""
            raise UserError(first.code, f"{first.name}: {first.detail}{others}", where=where, fix=first.fix)


def restore_report(manifest: SavepointManifest, graph: JobGraph, options: RestoreOptions) -> Report:
    """The verdict on every state."""
    return _Check(manifest, graph, options).report()


class _Check:
    def __init__(self, manifest: SavepointManifest, graph: JobGraph, options: RestoreOptions) -> None:
        self._manifest, self._graph, self._options = manifest, graph, options
        self._operators = {operator.uid: operator for operator, _ in operators_of(graph)}
        self._shapes: Mapping[Uid, Any] = shapes(graph)
        self._saved = {operator.uid: operator for operator in manifest.operators}
        self._map = dict(options.map_uid)
        self._findings: list[Finding] = []
        self._plans: list[StatePlan] = []

    def report(self) -> Report:
        self._check_whole()
        for state in self._manifest.states:
            self._check_state(state)
        taken = {(plan.uid, plan.state) for plan in self._plans}
        for uid, operator in self._operators.items():
            for field in getattr(operator.spec, "states", ()):
                if (uid, field.name) not in taken and not self._is_refused(uid, field.name):
                    self._findings.append(Finding(verdict=NEW, uid=uid, state=field.name, detail="starts empty"))
        return Report(tuple(self._findings), tuple(self._plans))

    def _is_refused(self, uid: str, state: str) -> bool:
        return any(each.verdict == REFUSED and (each.uid, each.state) == (uid, state) for each in self._findings)

    # ------------------------------------------------------------ the savepoint as a whole

    def _check_whole(self) -> None:
        saved, graph = self._manifest, self._graph
        if saved.job_name and saved.job_name != graph.name and not self._options.allow_foreign:
            self._refuse_whole(
                "S003",
                f'it belongs to a job called "{saved.job_name}" ({saved.job}), this one is "{graph.name}"',
                "--allow-foreign, if it is the right one",
            )
        if saved.max_parallelism != graph.max_parallelism and not self._options.evolve:
            self._refuse_whole(
                "S009",
                f"it has {saved.max_parallelism} key groups, the job {graph.max_parallelism}",
                f"set max_parallelism to {saved.max_parallelism}, or --evolve to compute key groups anew",
            )
        known = {name for state in saved.states for name in (state.uid, state.name)}
        known |= {f"{state.name}.{field}" for state in saved.states for field in _fields(state)}
        for old in self._map:
            if old not in known | self._saved.keys():
                self._refuse_whole(
                    "S025",
                    f'--map-uid names "{old}", which the savepoint does not have',
                    "it has: " + ", ".join(sorted(known)[:20]),
                )

    def _refuse_whole(self, code: str, detail: str, fix: str) -> None:
        self._findings.append(Finding(verdict=REFUSED, detail=detail, code=code, fix=fix))

    # ------------------------------------------------------------ one state

    def _check_state(self, state: SavedState) -> None:
        target = self._target(state)
        if target is None:
            self._find(state, DROPPED, "left behind, as --map-uid says")
            return
        uid, name = target
        operator = self._operators.get(uid)
        if operator is None:
            self._homeless(state, f'no operator of the job has the uid "{uid}"')
            return
        if not self._fits(state, operator):
            return
        field = canonical.declared(operator.spec, name)
        declares = isinstance(operator.spec, specs.Process | specs.CoProcess)
        if field is None and declares and not name.startswith(_OF_ITSELF):
            self._homeless(state, f'the function of "{uid}" declares no state "{name}"')
            return
        rules = self._rules(state, field) if field is not None else None
        if rules is _REFUSED_RULES:
            return
        recut = self._recut(state, uid, name, operator)
        if recut is None:
            return
        plan = StatePlan(state, uid, name, operator.spec, rules, recut)
        self._plans.append(plan)
        moved = f"from {state.name}" if (state.uid, state.state) != (uid, name) else ""
        details = [*([moved] if moved else ()), *(["key groups are computed anew"] if recut else ())]
        details += [change.text for change in _changes(state, field, rules)] if rules and field else []
        verdict = EVOLVED if plan.rewritten else RESTORED
        self._find(state, verdict, "; ".join(details), uid=uid, name=name)

    def _target(self, state: SavedState) -> tuple[Uid, str] | None:
        """Operator and state that it is for; None: left behind."""
        if (whole := self._map.get(state.name)) is not None:
            uid, _, name = whole.rpartition(".")
            return (Uid(uid), name) if whole else None
        uid = self._map.get(state.uid, state.uid)
        return (Uid(uid), state.state) if uid else None

    def _fits(self, state: SavedState, operator: specs.Operator) -> bool:
        """Whether the operator is one that can read state of this shape."""
        saved = self._saved.get(state.uid)
        if saved is None:
            return self._keys_fit(state, operator)
        kind = type(operator.spec).__name__
        found = [f"{saved.kind} -> {kind}"] if saved.kind != kind else []
        found = found or list(differences(saved.shape, msgspec.to_builtins(self._shapes[operator.uid])))
        if found:
            shown = ", ".join(found[:4]) + (f" and {len(found) - 4} more" if len(found) > 4 else "")
            self._refuse(
                state,
                "S022",
                f'its operator "{operator.uid}" has changed: {shown}',
                f'keep it as it was; or start it without its state: --map-uid "{state.uid}="',
            )
        return not found

    def _keys_fit(self, state: SavedState, operator: specs.Operator) -> bool:
        """A savepoint that somebody has built says nothing of operators; but other keys have other key groups."""
        keys = [column.type for column in state.columns if column.role == canonical.KEY]
        wanted = self._shapes[operator.uid].get("keys")
        if wanted is None or state.redistribution is not Redistribution.KEYED or keys == wanted:
            return True
        self._refuse(
            state,
            "S022",
            f"its keys are {', '.join(keys) or 'none'}, those of the operator {', '.join(wanted) or 'none'}",
            "build it with keys of these types",
        )
        return False

    def _rules(self, state: SavedState, field: specs.StateField) -> Rules | None:
        if state.redistribution is not Redistribution.KEYED or " " in field.kind or field.kind == "broadcast":
            return None
        if state.kind != field.kind:
            self._refuse(
                state,
                "S023",
                f"it was a {state.kind} state, and is declared as a {field.kind} state",
                f'declare it as it was, or leave it behind: --map-uid "{state.name}="',
            )
            return _REFUSED_RULES
        renamed = {}
        for old, new in self._map.items():
            prefix, _, name = old.rpartition(".")
            if prefix == state.name and name in _fields(state):
                renamed[name] = new.rpartition(".")[2]
        rules = Rules(renamed, field.field_defaults)
        found = list(_changes(state, field, rules))
        impossible = [change.text for change in found if not change.possible]
        dropping = [change.text for change in found if change.drops]
        if impossible:
            self._refuse(
                state,
                "S005",
                f"{', '.join(impossible)} has no migration",
                f'declare the old type, or leave the state behind: --map-uid "{state.name}="',
            )
            return _REFUSED_RULES
        if dropping and not self._options.evolve:
            self._refuse(
                state,
                "S026",
                ", ".join(dropping),
                "--evolve, if what it holds is not needed any more; --map-uid "
                f'"{state.name}.OLD={state.name}.NEW" if it is called another now',
            )
            return _REFUSED_RULES
        return rules if found else None

    def _recut(self, state: SavedState, uid: Uid, name: str, operator: specs.Operator) -> bool | None:
        """Whether rows are cut anew; None: they cannot be."""
        if self._manifest.max_parallelism == self._graph.max_parallelism or not self._options.evolve:
            return False
        if state.redistribution is not Redistribution.KEYED:
            return any(column.name == "first_group" for column in state.columns)
        keys = [column for column in state.columns if column.role == canonical.KEY]
        if len(keys) != len(canonical.state_keys(operator.spec, name)):
            self._refuse(
                state,
                "S009",
                "its keys are not known, so that it cannot be cut anew",
                f"set max_parallelism to {self._manifest.max_parallelism}",
            )
            return None
        return True

    # ------------------------------------------------------------ verdicts

    def _homeless(self, state: SavedState, detail: str) -> None:
        if self._options.allow_non_restored:
            self._find(state, DROPPED, detail)
            return
        near = ", ".join(sorted(self._operators))
        self._refuse(
            state,
            "S004",
            f"{detail}; it has {state.rows} rows, {state.size} bytes",
            f"--map-uid {state.uid}=NEW (the job has {near}), or --allow-non-restored to leave it behind",
        )

    def _refuse(self, state: SavedState, code: str, detail: str, fix: str) -> None:
        self._find(state, REFUSED, detail, code=code, fix=fix)

    def _find(
        self,
        state: SavedState,
        verdict: str,
        detail: str,
        *,
        uid: str = "",
        name: str = "",
        code: str = "",
        fix: str = "",
    ) -> None:
        self._findings.append(
            Finding(
                verdict=verdict,
                uid=uid or state.uid,
                state=name or state.state,
                detail=detail,
                rows=state.rows,
                size=state.size,
                code=code,
                fix=fix,
            )
        )


_REFUSED_RULES: Final = Rules({"": ""})


def value_type_of(state: SavedState) -> str:
    """The type of its values, as a program declares it."""
    values = [column for column in state.columns if column.role == canonical.VALUE]
    if state.form != canonical.MAP:
        return values[0].type
    entry = next(column for column in state.columns if column.role == canonical.NAMESPACE)
    return f"List(Struct(key: {entry.type}, value: {values[0].type}))"


def _changes(state: SavedState, field: specs.StateField, rules: Rules | None) -> Iterator[evolution.Change]:
    old, new = (schemas.type_from_text(text) for text in (value_type_of(state), field.type))
    return evolution.changes(old, new, rules or Rules())


def _fields(state: SavedState) -> list[str]:
    """Names of the fields of the records that it holds."""
    values = [column for column in state.columns if column.role == canonical.VALUE]
    if len(values) != 1 or not values[0].type.startswith("Struct("):
        return []
    return [each.name for each in schemas.type_from_text(values[0].type).fields]  # type: ignore[attr-defined]
