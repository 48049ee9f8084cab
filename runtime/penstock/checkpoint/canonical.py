"""The form of tables in savepoints: how one state of one operator becomes a table that anybody can read, and back.

    key_group, key..., namespace..., value..., expiry          rows in order of key group, then of key

Keys and values keep their names; what an operator adds for itself loses the underscores in front of its name. Each
entry of a map has a row of its own. State that belongs to no key has its columns as they are. The description of the
columns says how to go back, so a table can be read without the program and restored without this version's operators.

Owns: the form, and its bytes. Does not own: where tables lie, which sections there are.
"""

import io
from collections.abc import Mapping, Sequence
from typing import Final

import polars as pl
import pyarrow.parquet as pq

from penstock.model import schemas, specs
from penstock.model.handles import Column, Redistribution
from penstock.operators.base import Section
from penstock.state.key_groups import KEY_GROUP

KEY, NAMESPACE, VALUE, EXPIRY = "key", "namespace", "value", "expiry"
"""Roles of columns, beside `key_group`."""

MAP: Final = "map"
"""The form of maps: a row per entry."""

_MAP_KEY, _MAP_VALUE = "key", "value"
_NAMESPACES: Final[Mapping[str, str]] = {"__pane": "pane", "__start": "window_start", "__end": "window_end"}
_TIMERS: Final = "timers:"
_ENTRIES: Final = "entries"
_IN_FLIGHT: Final = "in-flight-"


def state_keys(spec: specs.OperatorSpec, state: str) -> tuple[str, ...]:
    """What a keyed state calls its key columns; none when rows are in flight, or belong to one key."""
    if state.startswith(_IN_FLIGHT):
        return ()
    match spec:
        case specs.CoGroup(join=join) | (specs.Join() as join):
            return {"left": join.left_on, "right": join.right_on}.get(state, ())
    keys: tuple[str, ...] = getattr(spec, "keys", None) or ()
    return keys


def declared(spec: specs.OperatorSpec, state: str) -> specs.StateField | None:
    """The state of a function, as its program declares it."""
    fields: Sequence[specs.StateField] = getattr(spec, "states", ())
    return next((field for field in fields if field.name == state), None)


def to_table(spec: specs.OperatorSpec, section: Section) -> tuple[pl.DataFrame, tuple[Column, ...], str]:
    """The table of a section, its columns, and its form."""
    frame, form = section.frame, ""
    if section.redistribution is not Redistribution.KEYED:
        columns = _columns(frame, dict.fromkeys(frame.columns, VALUE))
        return _renamed(frame, columns), columns, form
    keys = [key for key in state_keys(spec, section.state) if key in frame.columns]
    field = declared(spec, section.state)
    roles = {name: _role(name, section.state, keys) for name in frame.columns}
    if field is not None:
        rest = [name for name, role in roles.items() if role == VALUE]
        if field.ttl_us and len(rest) > 1:
            roles[rest[-1]] = EXPIRY
        if field.kind == MAP:
            form = MAP
            frame, roles = _exploded(frame, rest[0], roles)
    frame = _sorted(frame, [name for name, role in roles.items() if role in (KEY_GROUP, KEY)])
    columns = _columns(frame, roles)
    return _renamed(frame, columns), columns, form


def _renamed(frame: pl.DataFrame, columns: Sequence[Column]) -> pl.DataFrame:
    return frame.select(pl.col(each.internal or each.name).alias(each.name) for each in columns)


def from_table(frame: pl.DataFrame, columns: Sequence[Column], form: str) -> pl.DataFrame:
    """What `to_table` was given, as the operator knows it."""
    in_place = sorted(columns, key=lambda column: column.position)
    frame = frame.select(pl.col(each.name).alias(each.internal or each.name) for each in in_place)
    if form != MAP:
        return frame
    entry, value = (each.internal or each.name for each in in_place if each.role in (NAMESPACE, VALUE))
    others = [name for name in frame.columns if name not in (entry, value)]
    names = list(frame.columns)
    names.remove(entry)
    pair = pl.struct(pl.col(entry).alias(_MAP_KEY), pl.col(value).alias(_MAP_VALUE)).alias(_ENTRIES)
    grouped = frame.select(*others, pair).group_by(others, maintain_order=True).agg(_ENTRIES)
    return grouped.select(pl.col(_ENTRIES if name == value else name).alias(name) for name in names)


def encode(frame: pl.DataFrame) -> bytes:
    """The bytes of a table: Parquet, zstd; integers as differences, which are small where rows are sorted."""
    arrow = frame.rechunk().to_arrow(compat_level=pl.CompatLevel.oldest())
    deltas = [name for name, dtype in frame.schema.items() if dtype in (pl.Int32, pl.Int64)]
    buffer = io.BytesIO()
    pq.write_table(
        arrow,
        buffer,
        compression="zstd",
        compression_level=1,
        use_dictionary=[name for name in frame.columns if name not in deltas],
        column_encoding=dict.fromkeys(deltas, "DELTA_BINARY_PACKED"),
    )
    return buffer.getvalue()


def decode(data: bytes, columns: Sequence[Column]) -> pl.DataFrame:
    """The table of these bytes, with the types that its columns are described with."""
    frame = pl.read_parquet(io.BytesIO(data), columns=[each.name for each in columns], glob=False)
    return frame.cast({each.name: schemas.type_from_text(each.type) for each in columns})


def sorted_table(frame: pl.DataFrame, columns: Sequence[Column]) -> pl.DataFrame:
    """Rows in the order that tables have."""
    return _sorted(frame, [each.name for each in columns if each.role in (KEY_GROUP, KEY)])


def _role(name: str, state: str, keys: Sequence[str]) -> str:
    if name == KEY_GROUP:
        return KEY_GROUP
    if name in keys:
        return KEY
    return NAMESPACE if name in _NAMESPACES or state.startswith(_TIMERS) else VALUE


def _exploded(frame: pl.DataFrame, value: str, roles: dict[str, str]) -> tuple[pl.DataFrame, dict[str, str]]:
    """A row per entry of the column `value`, with the entry's name in a column in front of it."""
    entry = _free("map_key", frame.columns)
    pairs = pl.col(value).struct
    exploded = frame.explode(value).with_columns(
        pairs.field(_MAP_KEY).alias(entry), pairs.field(_MAP_VALUE).alias(value)
    )
    at = frame.columns.index(value)
    order = [*frame.columns[:at], entry, *frame.columns[at:]]
    return exploded.select(order), {name: NAMESPACE if name == entry else roles[name] for name in order}


def _sorted(frame: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Rows of a key keep their order, since that may mean something."""
    plain = [name for name in by if not frame.schema[name].is_nested()]
    return frame.sort(plain, maintain_order=True) if plain else frame


def _columns(frame: pl.DataFrame, roles: Mapping[str, str]) -> tuple[Column, ...]:
    taken = {name for name in frame.columns if not name.startswith("__")}
    columns = []
    for position, (internal, dtype) in enumerate(frame.schema.items()):
        name = _NAMESPACES.get(internal, internal.lstrip("_")) if internal.startswith("__") else internal
        if name != internal:
            name = _free(name or "column", taken)
            taken.add(name)
        columns.append(
            Column(
                name=name,
                type=schemas.type_to_text(dtype),
                role=roles[internal],
                internal="" if name == internal else internal,
                position=position,
            )
        )
    order = (KEY_GROUP, KEY, NAMESPACE, VALUE, EXPIRY)
    return tuple(sorted(columns, key=lambda column: order.index(column.role)))


def _free(name: str, taken: set[str] | Sequence[str]) -> str:
    while name in taken:
        name += "_"
    return name
