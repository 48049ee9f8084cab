"""`penstock graph`: what a program is turned into."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.building import build_graph
from penstock.cli.discovery import JsonOption
from penstock.cli.tables import print_json
from penstock.graph import as_html, as_svg, as_text


def graph(
    program: Annotated[str, typer.Argument(metavar="PROGRAM", help="`file.py:function` or `module:function`.")],
    parallelism: Annotated[int, typer.Option("--parallelism", "-p", min=1, help="Of the job.")] = 1,
    svg: Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Write a drawing.")] = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the job graph of a program: chains, exchanges, parallelism. Nothing runs.

    Examples: `penstock graph prog.py:fn`, `penstock graph prog.py:fn --svg graph.svg`
    """
    built = build_graph(program, parallelism=parallelism)
    if as_json:
        print_json(built)
    else:
        print(as_text(built))
    for file, content in ((svg, as_svg), (html, as_html)):
        if file is not None:
            file.write_text(content(built))
            typer.echo(f"wrote {file}", err=True)
