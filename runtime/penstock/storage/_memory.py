"""Objects in a dict: for tests and simulations, gone with the process."""

import itertools
import threading
from collections.abc import Iterator

from penstock.model.clocks import Clock, SystemClock
from penstock.storage._paths import check_folder, check_path, check_prefix
from penstock.storage._port import ObjectInfo, UnfinishedUpload


class MemoryStore:
    """The port's reference implementation."""

    def __init__(self, name: str = "unnamed", clock: Clock | None = None) -> None:
        self._name, self._clock = name, clock or SystemClock()
        self._objects: dict[str, bytes] = {}
        self._written_us: dict[str, int] = {}
        self._staged: dict[str, tuple[str, bytes, int]] = {}
        self._published: set[str] = set()
        self._tokens = itertools.count()
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
            self._write(path, data)
            return True

    def put(self, path: str, data: bytes) -> None:
        """Write; see the port."""
        check_path(path)
        with self._lock:
            self._write(path, data)

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
            found = [
                ObjectInfo(path, len(data), self._written_us[path])
                for path, data in self._objects.items()
                if path.startswith(prefix)
            ]
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

    def stage(self, path: str, data: bytes) -> str:
        """Write what nobody sees; see the port."""
        token = str(next(self._tokens))
        self._staged[token] = (check_path(path), bytes(data), self._clock.now_us())
        return token

    def publish(self, path: str, staged: str) -> bool:
        """Show it; see the port."""
        check_path(path)
        with self._lock:
            if staged in self._staged:
                self._write(path, self._staged.pop(staged)[1])
                self._published.add(staged)
            return staged in self._published and path in self._objects

    def unfinished(self, prefix: str) -> Iterator[UnfinishedUpload]:
        """What is staged below the prefix."""
        check_prefix(prefix)
        with self._lock:
            found = [UnfinishedUpload(path, begun_us, token) for token, (path, _, begun_us) in self._staged.items()]
        return iter(sorted(each for each in found if each.path.startswith(prefix)))

    def discard(self, upload: UnfinishedUpload) -> None:
        """Remove what was staged."""
        self._staged.pop(upload.token, None)

    def _write(self, path: str, data: bytes) -> None:
        self._objects[path] = bytes(data)
        self._written_us[path] = self._clock.now_us()
