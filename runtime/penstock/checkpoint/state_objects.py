"""The state of one subtask at one checkpoint: one immutable object in the store.

An object is its sections one after the other, each an Arrow IPC stream; the handle that travels with the
acknowledgement says where each begins. Nothing is ever read without comparing size and SHA-256 with the handle.

Keyed sections are sorted by key group, and the handle holds the row at which each group begins: what a subtask
needs of them is a slice. A subtask with little state writes no object, its handle holds the bytes; with none at all
it has neither bytes nor a path.
"""

import hashlib
import io
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import polars as pl

from penstock.checkpoint import canonical, shared_objects
from penstock.model.frames import write_arrow
from penstock.model.handles import Redistribution, SectionHandle, StateHandle
from penstock.model.ids import Attempt, CheckpointId, SubtaskId, Uid
from penstock.operators.base import AnySection, ChunkSection, FilesSection, Section
from penstock.state.key_groups import KEY_GROUP, slice_groups
from penstock.state.rocks import RestoredFiles
from penstock.storage import ObjectStore

Tables = Sequence[tuple[Uid, Section]]
Sections = Sequence[tuple[Uid, AnySection]]


class Restored(dict[Uid, dict[str, list[pl.DataFrame]]]):
    """State by operator and name, from one or more earlier subtasks."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[Uid, list[RestoredFiles]] = {}
        """Databases by operator."""


_LONGEST_NAME: Final = 80
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.-]")


def object_path(checkpoint: CheckpointId, attempt: Attempt, subtask: SubtaskId) -> str:
    """Where a subtask puts its state. The attempt keeps apart what an old and a new one write."""
    return f"checkpoints/{checkpoint}/{attempt}-{safe_name(subtask.vertex)}-{subtask.index}.state"


def encode(subtask: SubtaskId, sections: Tables, path: str) -> tuple[bytes, StateHandle]:
    """The bytes of the object and the handle that finds its way in them."""
    buffer = io.BytesIO()
    handles = [_append(buffer, uid, section) for uid, section in sections]
    data = buffer.getvalue()
    handle = StateHandle(
        subtask=subtask,
        path=path,
        size=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        sections=tuple(handles),
    )
    return data, handle


def write(
    store: ObjectStore,
    checkpoint: CheckpointId,
    attempt: Attempt,
    subtask: SubtaskId,
    sections: Sections,
    *,
    inline_bytes: int = 0,
    born: int = 0,
) -> StateHandle:
    """Encode and store; durable when it returns, but for up to `inline_bytes`, which the handle carries instead."""
    tables = [(uid, section) for uid, section in sections if isinstance(section, Section)]
    handle = StateHandle(subtask=subtask, path="", size=0, sha256="", sections=())
    if tables:
        data, handle = encode(subtask, tables, object_path(checkpoint, attempt, subtask))
        if len(data) <= inline_bytes:
            handle = msgspec.structs.replace(handle, path="", data=data)
        else:
            store.put(handle.path, data)
    writer = f"{attempt}-{safe_name(subtask.vertex)}-{subtask.index}"
    if born:
        # A subtask of this attempt and index may have been there before.
        writer = f"{writer}-{born}"
    in_object = iter(handle.sections)
    handles, uploaded = [], handle.size
    for uid, section in sections:
        match section:
            case FilesSection():
                stored, size = shared_objects.store_files(store, writer, uid, section)
            case ChunkSection(chunk=chunk):
                stored, size = shared_objects.store_chunk(store, writer, chunk, _encode_chunk(uid, section))
            case Section():
                stored, size = next(in_object), 0
        handles.append(stored)
        uploaded += size
    return msgspec.structs.replace(handle, sections=tuple(handles), uploaded=uploaded)


def read(
    store: ObjectStore,
    handles: Sequence[StateHandle],
    *,
    groups: range,
    index: int,
    parallelism: int,
    uids: Collection[Uid],
    folder: Path | None = None,
) -> Restored:
    """What subtask `index` of `parallelism` gets back of the operators `uids`.

    Keyed: rows of `groups`. Union: all rows. List: row j of all `handles` in their order goes to subtask
    j mod `parallelism`; that is fair and complete because every subtask is given the same list sections.
    Files of databases are brought into `folder`.
    """
    restored = Restored()
    rows_before: dict[tuple[Uid, str], int] = {}
    for handle in handles:
        wanted = [section for section in handle.sections if section.uid in uids and not section.files]
        in_object = any(not section.path for section in wanted)
        data = _object(store, handle) if in_object else b""
        for section in handle.sections:
            if section.files and section.uid in uids and holds_groups(section, groups):
                if folder is None:
                    raise shared_objects.broken(section.files[0].path, "there is no folder for files here")
                databases = restored.files.setdefault(section.uid, [])
                place = folder / f"restored-{safe_name(section.uid)}-{index}-{len(databases)}"
                databases.append(shared_objects.bring_files(store, section, place))
        for section in wanted:
            frames = restored.setdefault(section.uid, {}).setdefault(section.state, [])
            if section.redistribution is Redistribution.KEYED and section.path and not holds_groups(section, groups):
                continue
            own = data
            if section.path:
                own = shared_objects.verified(store, section.path, section.size, section.sha256)
            frame = _decode(handle, section, own)
            match section.redistribution:
                case Redistribution.KEYED:
                    frames.append(_slice_groups(section, frame, groups))
                case Redistribution.UNION:
                    frames.append(frame)
                case Redistribution.LIST:
                    before = rows_before.get((section.uid, section.state), 0)
                    rows_before[section.uid, section.state] = before + section.rows
                    frames.append(frame[(index - before) % parallelism :: parallelism])
    return restored


def holds_groups(section: SectionHandle, groups: range) -> bool:
    """Whether a keyed section has rows in any of the groups."""
    first, last = _rows_of(section, groups)
    return last > first


def _object(store: ObjectStore, handle: StateHandle) -> bytes:
    if handle.path:
        return shared_objects.verified(store, handle.path, handle.size, handle.sha256)
    return shared_objects.checked(handle.data, f"of {handle.subtask} in the manifest", handle.size, handle.sha256)


def _encode_chunk(uid: Uid, section: ChunkSection) -> tuple[bytes, SectionHandle] | None:
    """None: there is no need to."""
    if section.chunk.handle is not None or section.frame is None:
        return None
    frame = section.frame() if callable(section.frame) else section.frame
    buffer = io.BytesIO()
    handle = _append(buffer, uid, Section(section.state, Redistribution.KEYED, frame))
    return buffer.getvalue(), handle


def _append(buffer: io.BytesIO, uid: Uid, section: Section) -> SectionHandle:
    offset = buffer.tell()
    write_arrow(section.frame, buffer)
    first_group, group_offsets = _group_offsets(uid, section)
    return SectionHandle(
        uid=uid,
        state=section.state,
        redistribution=section.redistribution,
        offset=offset,
        length=buffer.tell() - offset,
        rows=section.frame.height,
        first_group=first_group,
        group_offsets=group_offsets,
    )


def _group_offsets(uid: Uid, section: Section) -> tuple[int, tuple[int, ...]]:
    if section.redistribution is not Redistribution.KEYED or section.frame.is_empty():
        return 0, ()
    groups = section.frame[KEY_GROUP].to_numpy()
    if (groups[1:] < groups[:-1]).any():
        raise ValueError(f'state "{section.state}" of "{uid}" is not sorted by {KEY_GROUP}')
    first, last = int(groups[0]), int(groups[-1])
    return first, tuple(np.searchsorted(groups, np.arange(first, last + 2)).tolist())


def _rows_of(section: SectionHandle, groups: range) -> tuple[int, int]:
    if not section.group_offsets:
        return 0, 0
    last = len(section.group_offsets) - 1
    start, stop = (min(max(group - section.first_group, 0), last) for group in (groups.start, groups.stop))
    return section.group_offsets[start], section.group_offsets[stop]


def _slice_groups(section: SectionHandle, frame: pl.DataFrame, groups: range) -> pl.DataFrame:
    if section.columns:
        return slice_groups(frame, groups)
    first, last = _rows_of(section, groups)
    return frame.slice(first, last - first)


def _decode(handle: StateHandle, section: SectionHandle, data: bytes) -> pl.DataFrame:
    if section.columns:
        return canonical.from_table(canonical.decode(data, section.columns), section.columns, section.form)
    frame = pl.read_ipc_stream(data[section.offset : section.offset + section.length])
    if frame.height != section.rows:
        raise shared_objects.broken(
            handle.path, f'state "{section.state}" of "{section.uid}" has {frame.height} rows, not {section.rows}'
        )
    return frame


def safe_name(vertex: str) -> str:
    """Letters, digits, "_", "." and "-" only; two vertices never share a name."""
    plain = _UNSAFE.sub("_", vertex)[:_LONGEST_NAME]
    return plain if plain == vertex else f"{plain}~{hashlib.sha256(vertex.encode()).hexdigest()[:12]}"
