"""Mistakes in a program, said the way that helps: what is wrong, where, what there is, and the nearest name."""

import difflib
from collections.abc import Iterable, Mapping, Sequence

import polars as pl

from penstock.model.errors import UserError
from penstock.state import key_groups


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The name that was probably meant."""
    known = list(names)
    folded = {known_name.casefold(): known_name for known_name in known}
    close = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.6)
    return folded[close[0]] if close else None


def unknown_column(
    name: str, schema: Mapping[str, object], *, what: str, where: str, or_text: bool = False
) -> UserError:
    """`name` is not one of the columns that there are; `or_text`: it may have been meant as a text."""
    guess = nearest(name, schema)
    fix = f'did you mean "{guess}"?' if guess else "use one of the columns above, or add it with with_columns"
    return UserError(
        "P020",
        f'{what}: there is no column "{name}"; the columns are {listing(schema)}',
        where=where,
        fix=f'{fix} A text is written lit("{name}")' if or_text else fix,
    )


def unknown_side_output(name: str, names: Iterable[str], *, where: str) -> UserError:
    """The operator has no side output `name`."""
    known = list(names)
    guess = nearest(name, known)
    fix = 'only operators that were told so have one: window(..., late_to="late")'
    if known:
        fix = f'did you mean "{guess}"?' if guess else "use one of those"
    return UserError(
        "P024",
        f'side_output: the operator has no side output "{name}"; it has {listing(known)}',
        where=where,
        fix=fix,
    )


def require_columns(names: Iterable[str], schema: Mapping[str, object], *, what: str, where: str) -> None:
    """Every name is a column."""
    for name in names:
        if name not in schema:
            raise unknown_column(name, schema, what=what, where=where)


def require_same_columns(first: pl.Schema, other: pl.Schema, stream: str, *, verb: str = "union", where: str) -> None:
    """A stream that meets the first has the same columns."""
    for column in first:
        if column not in other:
            raise unknown_column(column, other, what=f"{verb}: {stream}", where=where)
        if first[column] != other[column]:
            raise UserError(
                "P020",
                f'{verb}: column "{column}" is {first[column]} here and {other[column]} in {stream}',
                where=where,
                fix=f'cast one of them: with_columns(col("{column}").cast(...))',
            )
    for column in other:
        if column not in first:
            raise UserError(
                "P020",
                f'{verb}: {stream} has a column "{column}" more; the columns are {listing(first)}',
                where=where,
                fix="select the same columns from both streams",
            )


def require_hashable(keys: Sequence[str], schema: pl.Schema, *, where: str) -> None:
    """Every key column has a type that has a key group: the hash itself is asked."""
    try:
        key_groups.key_groups(schema.to_frame().select(keys), keys, max_parallelism=1)
    except UserError as error:
        raise UserError(error.code, f"key_by: {error.what}", where=where, fix=error.fix) from None
    if key_groups.KEY_GROUP in keys:
        raise UserError(
            "P005",
            f'key_by: a key cannot be called "{key_groups.KEY_GROUP}", which state calls its own column',
            where=where,
            fix=f'give it another name: key_by(group=col("{key_groups.KEY_GROUP}"))',
        )


def require_parallelism(parallelism: int | None, *, where: str) -> None:
    """A positive number, or None for the job's own."""
    if parallelism is not None and (not isinstance(parallelism, int) or parallelism < 1):
        raise UserError(
            "P013",
            f"parallelism must be a whole number from 1 on; got {parallelism!r}",
            where=where,
            fix="leave it out to take the job's parallelism",
        )


def listing(names: Iterable[str]) -> str:
    """Names for a sentence."""
    return ", ".join(names) or "(none)"
