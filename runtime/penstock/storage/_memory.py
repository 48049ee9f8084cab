"""Objects in a dict: for tests and simulations, gone with the process."""

import threading
from collections.abc import Iterator

from penstock.storage._paths import check_folder, check_path, check_prefix
from penstock.storage._port import ObjectInfo


class MemoryStore:
    """The port's reference implementation."""

    def __init__(self, name: str = "unnamed") -> None:
        self._name = name
        self._objects: dict[str, bytes] = {}
        self._lock = threading.Lock()

    @property
    def uri(self) -> str:
        """Opens the same store, but only inside this process."""
        return f"memory://{self._name}"

    def create(self, path: str, data: bytes) -> bool:
        """Write once; see the port."""
        check_path(path)
        with self._lock:
            if path in self._objects:
                return False
            self._objects[path] = bytes(data)
            return True

    def put(self, path: str, data: bytes) -> None:
        """Write; see the port."""
        check_path(path)
        with self._lock:
            self._objects[path] = bytes(data)

    def get(self, path: str) -> bytes | None:
        """The object, or None."""
        return self._objects.get(check_path(path))

    def get_range(self, path: str, offset: int, length: int) -> bytes:
        """Part of an object."""
        data = self.get(path)
        if data is None:
            raise FileNotFoundError(f"{self.uri}/{path}")
        return data[offset : offset + length]

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Objects below the prefix, as of now."""
        check_prefix(prefix)
        with self._lock:
            found = [ObjectInfo(path, len(data)) for path, data in self._objects.items() if path.startswith(prefix)]
        return iter(sorted(found))

    def folders(self, prefix: str) -> Iterator[str]:
        """Folders right below the prefix, as of now."""
        below = [info.path.removeprefix(check_folder(prefix)) for info in self.list(prefix)]
        return iter(sorted({path.partition("/")[0] for path in below if "/" in path}))

    def delete(self, path: str) -> None:
        """Remove, if there."""
        check_path(path)
        with self._lock:
            self._objects.pop(path, None)
