"""Large state in memory is snapshotted in chunks: a whole one, and what changed at each barrier since.

Owns: which chunks make up the state as it was at the last barrier, and when it is time for a whole one again.
A chunk that is in the store is named by the next checkpoints, not written again. In a chunk of changes a row without
a value says that the key is gone; later chunks go over earlier ones.
"""

from penstock.model.handles import SectionHandle

INCREMENTAL_ROWS = 131_072
"""Smaller state is written whole: that costs less than to find out what changed."""

_MOST_CHUNKS = 64
_MOST_CHANGES = 2


class Chunk:
    """Part of a state. `handle` is set when it is in the store."""

    handle: SectionHandle | None = None


class ChunkChain:
    """The chunks of one state, oldest first."""

    def __init__(self) -> None:
        self._chunks: list[Chunk] = []

    @property
    def can_grow(self) -> bool:
        """Whether the next chunk may hold changes only.

        All before it must be in the store. What is restored is at most three times the state, and what is written in
        the long run one and a half times what changes.
        """
        handles = [chunk.handle for chunk in self._chunks]
        sizes = [handle.size for handle in handles if handle is not None]
        if not sizes or len(sizes) < len(handles) or len(sizes) >= _MOST_CHUNKS:
            return False
        return sum(sizes[1:]) < _MOST_CHANGES * sizes[0]

    def can_grow_to(self, rows: int) -> bool:
        """The same, for a state of so many rows whose chunks need not repeat what has not changed."""
        handles = [chunk.handle for chunk in self._chunks]
        written = [handle.rows for handle in handles if handle is not None]
        if not written or len(written) < len(handles) or len(written) >= _MOST_CHUNKS:
            return False
        return sum(written) <= 2 * rows

    def restart(self) -> tuple[list[Chunk], Chunk]:
        """A whole chunk follows: what is in front of it (nothing), and the new one."""
        self._chunks = [Chunk()]
        return [], self._chunks[0]

    def grow(self) -> tuple[list[Chunk], Chunk]:
        """A chunk of changes follows: what is in front of it, and the new one."""
        before, new = list(self._chunks), Chunk()
        self._chunks.append(new)
        return before, new

    def drop(self, chunk: Chunk) -> None:
        """It turned out to hold nothing."""
        if chunk in self._chunks[1:]:
            self._chunks.remove(chunk)
