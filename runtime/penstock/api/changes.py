"""Updating streams in a program: which verbs take them, and what becomes of their keys.

A stream whose rows change earlier ones says so: `stream.changes` names the key columns, whose row is replaced by the
next with the same keys. Without keys (None) a delete takes back one equal row. Verbs that keep this right pass it
on; all others refuse, by name.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import polars as pl

from penstock.api import expressions
from penstock.api.building import Options
from penstock.model.changes import CHANGE, NAMES
from penstock.model.errors import UserError
from penstock.model.specs import Changes, Expression, Hash, Retract, Select

if TYPE_CHECKING:
    from penstock.api.streams import DataStream


def wire_schema(schema: pl.Schema, changes: Changes | None) -> pl.Schema:
    """The columns that travel: those of the stream, and what each row does."""
    return schema if changes is None else pl.Schema({CHANGE: pl.Int8(), **schema})


def change_column() -> Expression:
    """The change of a row as it is, for a select."""
    return Expression(name=CHANGE, text=CHANGE, polars=pl.col(CHANGE).meta.serialize())


def refused(verb: str, changes: Changes, where: str) -> UserError:
    """The verb takes streams that only insert."""
    by = f"by {', '.join(changes.keys)}" if changes.keys else "as a whole" if changes.keys == () else "row by row"
    return UserError(
        "P030",
        f"{verb}: the stream updates earlier rows ({by}), and {verb} takes rows that stay",
        where=where,
        fix=f"as_changelog() before {verb} makes each change a row of its own, or aggregate in windows instead",
    )


def retracted(stream: "DataStream", where: str) -> "DataStream":
    """The same stream with every update as a delete of the old row and an insert of the new one."""
    changes = stream.changes
    if changes is None or not changes.updates or changes.keys is None:
        return stream
    keyed = stream._spread(Hash(keys=changes.keys)) if changes.keys else stream
    options = Options(parallelism=None if changes.keys else 1)
    spec = Retract(keys=changes.keys)
    kept = Changes(keys=changes.keys, updates=False)
    return keyed._add("retract", spec, stream.schema, options, where=where, changes=kept, takes_changes=True)


def through_select(
    stream: "DataStream", made: Iterable[Expression], where: str
) -> "tuple[DataStream, Changes | None, tuple[Expression, ...]]":
    """What to select from, the changes of the result, and what else must be selected."""
    changes = stream.changes
    if changes is None:
        return stream, None, ()
    if changes.keys is None:
        return stream, changes, (change_column(),)
    names = {source: each.name for each in made if (source := expressions.renamed_column(each)) is not None}
    if all(key in names for key in changes.keys):
        kept = Changes(keys=tuple(names[key] for key in changes.keys), updates=changes.updates)
        return stream, kept, (change_column(),)
    return retracted(stream, where), Changes(keys=None, updates=False), (change_column(),)


def through_with_columns(
    stream: "DataStream", made: Iterable[Expression], where: str
) -> "tuple[DataStream, Changes | None]":
    """What to add columns to, and the changes of the result: keys that are replaced are none any more."""
    changes = stream.changes
    if changes is None or changes.keys is None or not {each.name for each in made} & set(changes.keys):
        return stream, changes
    return retracted(stream, where), Changes(keys=None, updates=False)


def through_filter(stream: "DataStream", predicate: Expression, where: str) -> "DataStream":
    """What to filter: an update whose old row passed and whose new one does not is a delete."""
    changes = stream.changes
    if changes is None or changes.keys is None or not changes.updates:
        return stream
    expr = expressions.deserialize(predicate)
    by_key = not expr.meta.has_multiple_outputs() and set(expr.meta.root_names()) <= set(changes.keys)
    return stream if by_key else retracted(stream, where)


def changelog(stream: "DataStream", column: str, *, where: str) -> "DataStream":
    """Every change as a row of its own, with a column that says what it did."""
    if column in stream.schema:
        raise UserError(
            "P020",
            f'as_changelog: there is a column "{column}" already',
            where=where,
            fix='name it otherwise: as_changelog("what")',
        )
    if stream.changes is None:
        return stream.with_columns(pl.lit("insert").alias(column))
    columns = tuple(expressions.serialize(name, pl.col(name)) for name in stream.schema)
    spec = Select(expressions=(*columns, _change_names(column)))
    schema = pl.Schema({**stream.schema, column: pl.String()})
    return stream._add("as_changelog", spec, schema, Options(), where=where, takes_changes=True)


def _change_names(column: str) -> Expression:
    """`insert`, `update` or `delete`, as a column of text."""
    change = pl.col(CHANGE)
    text = pl.coalesce(*(pl.when(change == code).then(pl.lit(name)) for code, name in NAMES.items()))
    return Expression(name=column, text=column, polars=text.alias(column).meta.serialize())
