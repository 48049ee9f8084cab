"""Column types as text, the same for people and for JSON.

`Int64`, `Datetime(us, UTC)`, `List(String)`, `Struct(x: Int64, y: Float64)`. What has no text here has no place
in a stream or in state.
"""

from collections.abc import Mapping

import polars as pl

from penstock.model.errors import UserError
from penstock.model.specs import Field, Schema

_PLAIN: dict[str, pl.DataType] = {
    str(kind): kind
    for kind in (
        pl.Boolean(), pl.Int8(), pl.Int16(), pl.Int32(), pl.Int64(), pl.UInt8(), pl.UInt16(), pl.UInt32(),
        pl.UInt64(), pl.Float32(), pl.Float64(), pl.String(), pl.Binary(), pl.Date(), pl.Time(), pl.Null(),
    )
}  # fmt: skip


def type_to_text(kind: pl.DataType) -> str:
    """The text form of a column type."""
    match kind:
        case pl.Datetime():
            return f"Datetime({kind.time_unit}, {kind.time_zone})" if kind.time_zone else f"Datetime({kind.time_unit})"
        case pl.Duration():
            return f"Duration({kind.time_unit})"
        case pl.Decimal():
            return f"Decimal({kind.precision}, {kind.scale})"
        case pl.List():
            return f"List({type_to_text(_instance(kind.inner))})"
        case pl.Struct():
            inside = ", ".join(f"{field.name}: {type_to_text(_instance(field.dtype))}" for field in kind.fields)
            return f"Struct({inside})"
        case _ if str(kind) in _PLAIN:
            return str(kind)
    raise UserError(
        "P012",
        f"columns of type {kind} are not supported",
        fix=f"cast to one of {', '.join(_PLAIN)}, Datetime, Duration, Decimal, List, Struct",
    )


def type_from_text(text: str) -> pl.DataType:
    """What `type_to_text` wrote."""
    name, _, rest = text.partition("(")
    if not rest:
        return _PLAIN[name]
    inside = _split(rest[:-1])
    match name:
        case "Datetime":
            return pl.Datetime(inside[0], inside[1] if len(inside) > 1 else None)  # type: ignore[arg-type]
        case "Duration":
            return pl.Duration(inside[0])  # type: ignore[arg-type]
        case "Decimal":
            return pl.Decimal(int(inside[0]), int(inside[1]))
        case "List":
            return pl.List(type_from_text(inside[0]))
        case "Struct":
            parts = (part.partition(": ") for part in inside)
            return pl.Struct([pl.Field(field, type_from_text(kind)) for field, _, kind in parts])
    raise ValueError(f"not a column type: {text}")


def fields(schema: Mapping[str, pl.DataType]) -> Schema:
    """A Polars schema as plain data."""
    return tuple(Field(name, type_to_text(_instance(kind))) for name, kind in schema.items())


def polars_schema(schema: Schema) -> pl.Schema:
    """Plain data as a Polars schema."""
    return pl.Schema({field.name: type_from_text(field.type) for field in schema})


def empty_frame(schema: Schema) -> pl.DataFrame:
    """No rows, the right columns."""
    return pl.DataFrame(schema=polars_schema(schema))


def _instance(kind: object) -> pl.DataType:
    return kind() if isinstance(kind, type) else kind  # type: ignore[return-value]


def _split(text: str) -> list[str]:
    """Cut at commas that are not inside brackets."""
    parts, depth, start = [], 0, 0
    for index, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            parts.append(text[start:index].strip())
            start = index + 1
    return [*parts, text[start:].strip()] if text else []
