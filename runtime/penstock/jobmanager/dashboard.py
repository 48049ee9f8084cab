"""The dashboard: a page that asks the REST interface, served as it lies in `pages/`.

It loads nothing from elsewhere, and its policy lets no script in but its own.
"""

from collections.abc import Awaitable, Callable
from importlib import resources
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

_TYPES: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_HEADERS: Final = {
    "cache-control": "no-cache",
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
}
_FRONT: Final = "index.html"


def handlers() -> dict[str, Callable[[Request], Awaitable[Response]]]:
    """A handler per file, by its path. The front page is at the top."""
    pages = (each for each in resources.files(__package__).joinpath("pages").iterdir() if each.is_file())
    return {
        "/" if page.name == _FRONT else f"/pages/{page.name}": _handler(
            page.read_bytes(), _TYPES["." + page.name.rpartition(".")[2]]
        )
        for page in pages
    }


def _handler(content: bytes, kind: str) -> Callable[[Request], Awaitable[Response]]:
    async def answer(_request: Request) -> Response:
        return Response(content, media_type=f"{kind}; charset=utf-8", headers=_HEADERS)

    return answer
