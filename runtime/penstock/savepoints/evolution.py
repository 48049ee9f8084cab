"""How the values of a state may change from one version of a program to the next.

same type                     as it is
wider number, finer time      converted
new field of a record         its default, else null
field that is gone            dropped, with `--evolve`
field that is called another  renamed, with `--map-uid`
anything else                 refused
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl

from penstock.model import schemas

_SIGNED: Final = (pl.Int8, pl.Int16, pl.Int32, pl.Int64)
_UNSIGNED: Final = (pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64)
_UNITS: Final = ("ms", "us", "ns")


@dataclass(frozen=True, slots=True)
class Rules:
    """What is asked for beside the types."""

    renamed: Mapping[str, str] = field(default_factory=dict)
    """Fields of the record that a state holds: old name -> new name."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Of its new fields."""


@dataclass(frozen=True, slots=True)
class Change:
    """One difference."""

    text: str
    drops: bool = False
    possible: bool = True


def changes(old: pl.DataType, new: pl.DataType, rules: Rules, place: str = "") -> Iterator[Change]:
    """What has to happen to values of type `old`; nothing when they are of type `new`."""
    if old == new and not rules.renamed:
        return
    match old, new:
        case pl.Struct(), pl.Struct():
            yield from _record_changes(old, new, rules, place)
        case pl.List(), pl.List():
            yield from changes(_type(old.inner), _type(new.inner), rules, place)
        case _ if old == new:
            return
        case _:
            text = f"{place + ': ' if place else ''}{schemas.type_to_text(old)} -> {schemas.type_to_text(new)}"
            yield Change(text, possible=_is_wider(old, new))


def converted(value: pl.Expr, old: pl.DataType, new: pl.DataType, rules: Rules) -> pl.Expr:
    """Values of type `old` as values of type `new`."""
    if old == new and not rules.renamed:
        return value
    match old, new:
        case pl.Struct(), pl.Struct():
            back = {name: before for before, name in rules.renamed.items()}
            had = {each.name: _type(each.dtype) for each in old.fields}
            inner = Rules()
            parts = []
            for each in new.fields:
                before, dtype = back.get(each.name, each.name), _type(each.dtype)
                if before in had:
                    part = converted(value.struct.field(before), had[before], dtype, inner)
                else:
                    part = pl.lit(rules.defaults.get(each.name), dtype)
                parts.append(part.alias(each.name))
            return pl.when(value.is_not_null()).then(pl.struct(parts))
        case pl.List(), pl.List():
            return value.list.eval(converted(pl.element(), _type(old.inner), _type(new.inner), rules))
    return value.cast(new)


def _record_changes(old: pl.Struct, new: pl.Struct, rules: Rules, place: str) -> Iterator[Change]:
    had = {rules.renamed.get(each.name, each.name): each for each in old.fields}
    wanted = {each.name: _type(each.dtype) for each in new.fields}
    for name, each in had.items():
        inside = f"{place}.{each.name}" if place else each.name
        if name not in wanted:
            yield Change(f"{inside} is dropped", drops=True)
            continue
        if name != each.name:
            yield Change(f"{inside} becomes {name}")
        yield from changes(_type(each.dtype), wanted[name], Rules(), inside)
    for name in wanted.keys() - had.keys():
        default = rules.defaults.get(name)
        yield Change(f"{place + '.' if place else ''}{name} is new: {'null' if default is None else default!r}")


def _is_wider(old: pl.DataType, new: pl.DataType) -> bool:
    """Whether every value of the old type is one of the new type."""
    match old, new:
        case pl.Null(), _:
            return True
        case (pl.Datetime(), pl.Datetime()) | (pl.Duration(), pl.Duration()):
            zones = [getattr(each, "time_zone", None) for each in (old, new)]
            units = [_UNITS.index(each.time_unit) for each in (old, new)]  # type: ignore[attr-defined]
            return zones[0] == zones[1] and units[1] >= units[0]
        case pl.Date(), pl.Datetime():
            return new.time_zone is None
        case pl.Decimal(), pl.Decimal():
            whole = new.precision - new.scale >= old.precision - old.scale
            return new.scale >= old.scale and whole
        case pl.Float32(), pl.Float64():
            return True
    signed, unsigned = _bits(old, _SIGNED), _bits(old, _UNSIGNED)
    bits = signed or unsigned
    if new == pl.Float64:
        return 0 < bits <= 32
    if signed:
        return _bits(new, _SIGNED) >= signed
    return bool(unsigned) and (_bits(new, _UNSIGNED) >= unsigned or _bits(new, _SIGNED) > unsigned)


def _bits(dtype: pl.DataType, kinds: tuple[type[pl.DataType], ...]) -> int:
    return next((8 << number for number, kind in enumerate(kinds) if dtype == kind), 0)


def _type(kind: Any) -> pl.DataType:
    dtype: pl.DataType = kind() if isinstance(kind, type) else kind
    return dtype
