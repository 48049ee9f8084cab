"""From the text that users write to a store."""

import threading
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from penstock.model.errors import UserError
from penstock.storage._local import LocalStore
from penstock.storage._memory import MemoryStore
from penstock.storage._port import ObjectStore, UploadStore
from penstock.storage._prefixed import PrefixedUploads
from penstock.storage._s3_address import parse_s3_address

_memory_stores: dict[str, MemoryStore] = {}
_memory_lock = threading.Lock()


def open_store(uri: str, *, retry_for_us: int | None = None) -> ObjectStore:
    """`/a/path`, `file:///a/path`, `s3://bucket/folder` or `memory://name`; a missing directory is made.

    `retry_for_us`: how long a store behind a network is asked again, instead of what the URI says.
    """
    folder = folder_of(uri)
    return LocalStore(folder) if folder is not None else open_uploads(uri, retry_for_us=retry_for_us)


def open_uploads(uri: str, *, retry_for_us: int | None = None) -> UploadStore:
    """As `open_store`, for stores that can show objects later than they take them: all but directories."""
    scheme = uri.partition("://")[0]
    if scheme == "s3":
        return _open_s3(uri, retry_for_us)
    if scheme == "memory":
        return _open_memory(uri)
    raise UserError(
        "P017",
        f'no store for "{scheme}://" in {uri}',
        fix="use a plain path or one of file://, memory://, s3://",
    )


def folder_of(uri: str) -> Path | None:
    """The directory that a plain path or `file:///a/path` names; None for any other store."""
    scheme, separator, _ = uri.partition("://")
    if not separator:
        return Path(uri)
    return _file_path(uri) if scheme == "file" else None


def _file_path(uri: str) -> Path:
    parts = urlsplit(uri)
    if parts.netloc or not parts.path.startswith("/"):
        raise UserError("P017", f"{uri} names a host, not a path", fix="write file:///absolute/path (three slashes)")
    return Path(unquote(parts.path))


def _open_memory(uri: str) -> UploadStore:
    name, _, folder = uri.removeprefix("memory://").partition("/")
    with _memory_lock:
        store = _memory_stores.setdefault(name, MemoryStore(name))
    return PrefixedUploads(store, folder) if folder else store


def _open_s3(uri: str, retry_for_us: int | None) -> UploadStore:
    address = parse_s3_address(uri)
    if retry_for_us is not None:
        address = msgspec.structs.replace(address, retry_for_us=retry_for_us)
    try:
        # Only now: boto3 is an extra, and takes its time to import.
        from penstock.storage._s3 import S3Store
    except ModuleNotFoundError as error:
        if error.name not in ("boto3", "botocore"):
            raise
        raise UserError(
            "S086",
            f"s3:// needs {error.name}, which is not installed here",
            where=uri,
            fix="pip install 'penstock[s3]', wherever JobManagers and TaskManagers run",
        ) from error
    bucket = S3Store(msgspec.structs.replace(address, folder=""))
    return PrefixedUploads(bucket, address.folder) if address.folder else bucket
