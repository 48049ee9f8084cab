"""A folder of a store, as a store of its own."""

from collections.abc import Iterator

import msgspec

from penstock.storage._paths import check_folder, check_path, check_prefix
from penstock.storage._port import ObjectInfo, ObjectStore, UnfinishedUpload, UploadStore


class Prefixed:
    """Every path lies below `prefix`; nothing outside of it can be reached."""

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self._store = store
        self._prefix = check_path(prefix.strip("/")) + "/"

    @property
    def uri(self) -> str:
        """Opens the same folder in another process."""
        place, mark, options = self._store.uri.partition("?")
        return f"{place.removesuffix('/')}/{self._prefix.removesuffix('/')}{mark}{options}"

    def create(self, path: str, data: bytes) -> bool:
        """Write once; see the port."""
        return self._store.create(self._inside(path), data)

    def put(self, path: str, data: bytes) -> None:
        """Write; see the port."""
        self._store.put(self._inside(path), data)

    def get(self, path: str) -> bytes | None:
        """The object, or None."""
        return self._store.get(self._inside(path))

    def get_range(self, path: str, offset: int, length: int) -> bytes:
        """Part of an object."""
        return self._store.get_range(self._inside(path), offset, length)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Objects below the prefix, with paths as this store knows them."""
        cut = len(self._prefix)
        for found in self._store.list(self._prefix + check_prefix(prefix)):
            yield ObjectInfo(found.path[cut:], found.size, found.modified_us)

    def folders(self, prefix: str) -> Iterator[str]:
        """Folders right below the prefix; names are the same from here."""
        return self._store.folders(self._prefix + check_folder(prefix))

    def delete(self, path: str) -> None:
        """Remove, if there."""
        self._store.delete(self._inside(path))

    def _inside(self, path: str) -> str:
        return self._prefix + check_path(path)


class PrefixedUploads(Prefixed):
    """The same of a store that can show objects later."""

    def __init__(self, store: UploadStore, prefix: str) -> None:
        super().__init__(store, prefix)
        self._uploads = store

    def stage(self, path: str, data: bytes) -> str:
        """Write what nobody sees; see the port."""
        return self._uploads.stage(self._inside(path), data)

    def publish(self, path: str, staged: str) -> bool:
        """Show it; see the port."""
        return self._uploads.publish(self._inside(path), staged)

    def unfinished(self, prefix: str) -> Iterator[UnfinishedUpload]:
        """What is staged below the prefix, with paths as this store knows them."""
        cut = len(self._prefix)
        for found in self._uploads.unfinished(self._prefix + check_prefix(prefix)):
            yield msgspec.structs.replace(found, path=found.path[cut:])

    def discard(self, upload: UnfinishedUpload) -> None:
        """Remove what was staged."""
        self._uploads.discard(msgspec.structs.replace(upload, path=self._inside(upload.path)))
