"""From the text that users write to a store."""

import threading
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from penstock.model.errors import UserError
from penstock.storage._local import LocalStore
from penstock.storage._memory import MemoryStore
from penstock.storage._port import ObjectStore
from penstock.storage._prefixed import Prefixed

_memory_stores: dict[str, MemoryStore] = {}
_memory_lock = threading.Lock()


def open_store(uri: str) -> ObjectStore:
    """`/a/path`, `file:///a/path` or `memory://name`; a missing directory is made."""
    scheme, separator, _ = uri.partition("://")
    if not separator:
        return LocalStore(Path(uri))
    opener = _OPENERS.get(scheme)
    if opener is None:
        raise UserError(
            "P017",
            f'no store for "{scheme}://" in {uri}',
            fix=f"use a plain path or one of {', '.join(f'{name}://' for name in sorted(_OPENERS))}",
        )
    return opener(uri)


def _open_file(uri: str) -> ObjectStore:
    parts = urlsplit(uri)
    if parts.netloc or not parts.path.startswith("/"):
        raise UserError("P017", f"{uri} names a host, not a path", fix="write file:///absolute/path (three slashes)")
    return LocalStore(Path(unquote(parts.path)))


def _open_memory(uri: str) -> ObjectStore:
    name, _, folder = uri.removeprefix("memory://").partition("/")
    with _memory_lock:
        store = _memory_stores.setdefault(name, MemoryStore(name))
    return Prefixed(store, folder) if folder else store


_OPENERS: dict[str, Callable[[str], ObjectStore]] = {"file": _open_file, "memory": _open_memory}
