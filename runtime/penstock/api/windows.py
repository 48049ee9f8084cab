"""Window assigners as users write them."""

from datetime import timedelta

from penstock.api import places
from penstock.model.durations import parse_duration
from penstock.model.errors import UserError
from penstock.model.specs import Sliding, Tumbling

Duration = str | timedelta | int | float
"""`"10s"`, a timedelta, or a number of seconds."""


def tumbling(size: Duration, *, offset: Duration = 0) -> Tumbling:
    """Windows of `size`, side by side; they start at multiples of `size` since 1970, plus `offset`."""
    where = places.caller()
    size_us = _positive(size, "tumbling: size", where)
    return Tumbling(size_us=size_us, offset_us=duration(offset, what="tumbling: offset", where=where) % size_us)


def sliding(size: Duration, *, every: Duration, offset: Duration = 0) -> Sliding:
    """Windows of `size`, one starting every `every`; a row is in `size / every` of them."""
    where = places.caller()
    size_us = _positive(size, "sliding: size", where)
    slide_us = _positive(every, "sliding: every", where)
    if size_us % slide_us:
        raise UserError(
            "P011",
            f'sliding: the size "{size}" is not a multiple of every="{every}"',
            where=where,
            fix="windows share panes of `every`: choose a size that is a whole number of them",
        )
    offset_us = duration(offset, what="sliding: offset", where=where) % slide_us
    return Sliding(size_us=size_us, slide_us=slide_us, offset_us=offset_us)


def duration(value: Duration, *, what: str, where: str) -> int:
    """Microseconds of `value`; what cannot be read is reported at the user's place."""
    try:
        return parse_duration(value, what=what)
    except UserError as error:
        raise UserError(error.code, error.what, where=where, fix=error.fix) from None


def _positive(value: Duration, what: str, where: str) -> int:
    micros = duration(value, what=what, where=where)
    if micros <= 0:
        raise UserError("P011", f'{what} must be longer than nothing; got "{value}"', where=where, fix='"10s"')
    return micros
