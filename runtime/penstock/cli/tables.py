"""What commands print: tables for people, JSON for programs."""

import msgspec
from rich.console import Console
from rich.table import Table

_PIPE_COLUMNS = 200


def print_json(value: object) -> None:
    """One document, indented."""
    print(msgspec.json.format(msgspec.json.encode(value)).decode())


def console() -> Console:
    """As wide as the terminal; a pipe has no width."""
    made = Console()
    return made if made.is_terminal else Console(width=_PIPE_COLUMNS)


def new_table(*headings: str) -> Table:
    """Headings, no lines."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading)
    return table
