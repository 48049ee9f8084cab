"""What checkpoints need from storage.

Paths are relative, separated by "/", without "..". Objects are immutable once written: a path is written
once, read, listed and deleted, never changed. Reads and lists see all finished writes.
"""

from collections.abc import Iterator
from typing import Protocol

import msgspec

from penstock.model.errors import RetryableError


class UnknownResultError(RetryableError):
    """The write may or may not have happened. Read back before doing anything else."""


class ObjectInfo(msgspec.Struct, frozen=True, order=True):
    """One entry of a listing."""

    path: str
    size: int
    modified_us: int = 0
    """When it was written, by the clock of the store."""


class ObjectStore(Protocol):
    """Implementations are safe to call from several threads."""

    @property
    def uri(self) -> str:
        """What opens the same store in another process."""
        ...

    def create(self, path: str, data: bytes) -> bool:
        """Write once. False, and no change, when `path` exists. Atomic and durable when it returns True.

        Raises UnknownResultError when the outcome is not known.
        """
        ...

    def put(self, path: str, data: bytes) -> None:
        """Write, whole or not at all; for paths that only this writer ever uses. Durable when it returns."""
        ...

    def get(self, path: str) -> bytes | None:
        """The object, or None when there is none."""
        ...

    def get_range(self, path: str, offset: int, length: int) -> bytes:
        """Part of an object; FileNotFoundError when there is none."""
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """All objects whose path starts with `prefix`, in order of their paths."""
        ...

    def folders(self, prefix: str) -> Iterator[str]:
        """Names of the folders right below `prefix` (empty, or with "/" at its end), in order.

        A folder is there as long as an object is in it.
        """
        ...

    def delete(self, path: str) -> None:
        """Remove; nothing happens when it is not there."""
        ...


class UnfinishedUpload(msgspec.Struct, frozen=True, order=True):
    """Something staged that was neither published nor discarded."""

    path: str
    begun_us: int
    token: str


class UploadStore(ObjectStore, Protocol):
    """A store that takes an object first, and shows it later."""

    def stage(self, path: str, data: bytes) -> str:
        """Write what nobody sees; durable when it returns. What it returns publishes it, in any process."""
        ...

    def publish(self, path: str, staged: str) -> bool:
        """Show it at `path`, whole. True also when that was done before; False when it is not there any more."""
        ...

    def unfinished(self, prefix: str) -> Iterator[UnfinishedUpload]:
        """What is staged below `prefix`. Some stores answer for one whole path only, and else name nothing."""
        ...

    def discard(self, upload: UnfinishedUpload) -> None:
        """Remove what was staged; nothing happens when it is not there."""
        ...
