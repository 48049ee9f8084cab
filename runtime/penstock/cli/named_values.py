"""`--set NAME=VALUE` and its like."""

from collections.abc import Sequence

from penstock.model.errors import UserError


def named_values(option: str, texts: Sequence[str] | None, *, example: str) -> dict[str, str]:
    """What was given, by name; the last one counts."""
    found = {}
    for text in texts or ():
        name, separator, value = text.partition("=")
        if not separator:
            raise UserError("P018", f'{option} "{text}" is not NAME=VALUE', fix=f"{option} {example}")
        found[name] = value
    return found
