"""The state of one subtask at one checkpoint: one immutable object in the store.

An object is its sections one after the other, each an Arrow IPC stream; the handle that travels with the
acknowledgement says where each begins. Nothing is ever read without comparing size and SHA-256 with the handle.

Keyed sections are sorted by key group, and the handle holds the row at which each group begins: what a subtask
needs of them is a slice. A subtask without state writes no object: its handle has no path.
"""

import hashlib
import io
import re
from collections.abc import Collection, Sequence
from typing import Final

import numpy as np
import polars as pl

from penstock.model.errors import FatalJobError
from penstock.model.handles import Redistribution, SectionHandle, StateHandle
from penstock.model.ids import Attempt, CheckpointId, SubtaskId, Uid
from penstock.operators.base import Section
from penstock.state.key_groups import KEY_GROUP
from penstock.storage import ObjectStore

Sections = Sequence[tuple[Uid, Section]]
Restored = dict[Uid, dict[str, list[pl.DataFrame]]]
"""State by operator and name, from one or more earlier subtasks."""


_LONGEST_NAME: Final = 80
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.-]")


def object_path(checkpoint: CheckpointId, attempt: Attempt, subtask: SubtaskId) -> str:
    """Where a subtask puts its state. The attempt keeps apart what an old and a new one write."""
    return f"checkpoints/{checkpoint}/{attempt}-{_safe_name(subtask.vertex)}-{subtask.index}.state"


def encode(subtask: SubtaskId, sections: Sections, path: str) -> tuple[bytes, StateHandle]:
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
    store: ObjectStore, checkpoint: CheckpointId, attempt: Attempt, subtask: SubtaskId, sections: Sections
) -> StateHandle:
    """Encode and store; durable when it returns."""
    if not sections:
        return StateHandle(subtask=subtask, path="", size=0, sha256="", sections=())
    data, handle = encode(subtask, sections, object_path(checkpoint, attempt, subtask))
    store.put(handle.path, data)
    return handle


def read(
    store: ObjectStore,
    handles: Sequence[StateHandle],
    *,
    groups: range,
    index: int,
    parallelism: int,
    uids: Collection[Uid],
) -> Restored:
    """What subtask `index` of `parallelism` gets back of the operators `uids`.

    Keyed: rows of `groups`. Union: all rows. List: row j of all `handles` in their order goes to subtask
    j mod `parallelism`; that is fair and complete because every subtask is given the same list sections.
    """
    restored: Restored = {}
    rows_before: dict[tuple[Uid, str], int] = {}
    for handle in handles:
        wanted = [section for section in handle.sections if section.uid in uids]
        data = _verified(store, handle) if wanted else b""
        for section in wanted:
            frames = restored.setdefault(section.uid, {}).setdefault(section.state, [])
            match section.redistribution:
                case Redistribution.KEYED:
                    frames.append(_slice_groups(section, _decode(handle, section, data), groups))
                case Redistribution.UNION:
                    frames.append(_decode(handle, section, data))
                case Redistribution.LIST:
                    before = rows_before.get((section.uid, section.state), 0)
                    rows_before[section.uid, section.state] = before + section.rows
                    first = (index - before) % parallelism
                    frames.append(_decode(handle, section, data)[first::parallelism])
    return restored


def holds_groups(section: SectionHandle, groups: range) -> bool:
    """Whether a keyed section has rows in any of the groups."""
    first, last = _rows_of(section, groups)
    return last > first


def _append(buffer: io.BytesIO, uid: Uid, section: Section) -> SectionHandle:
    offset = buffer.tell()
    # The oldest Arrow layout copies just the strings of a slice; views would drag whole buffers along.
    section.frame.write_ipc_stream(buffer, compression="uncompressed", compat_level=pl.CompatLevel.oldest())
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
    first, last = _rows_of(section, groups)
    return frame.slice(first, last - first)


def _verified(store: ObjectStore, handle: StateHandle) -> bytes:
    data = store.get(handle.path)
    if data is None:
        raise _broken(handle, "it is not in the store")
    if len(data) != handle.size:
        raise _broken(handle, f"it has {len(data)} bytes instead of {handle.size}")
    found = hashlib.sha256(data).hexdigest()
    if found != handle.sha256:
        raise _broken(handle, f"its SHA-256 is {found} instead of {handle.sha256}")
    return data


def _decode(handle: StateHandle, section: SectionHandle, data: bytes) -> pl.DataFrame:
    frame = pl.read_ipc_stream(data[section.offset : section.offset + section.length])
    if frame.height != section.rows:
        raise _broken(
            handle, f'state "{section.state}" of "{section.uid}" has {frame.height} rows, not {section.rows}'
        )
    return frame


def _broken(handle: StateHandle, found: str) -> FatalJobError:
    return FatalJobError(
        "S002",
        f"state object {handle.path} of {handle.subtask} cannot be used: {found}",
        fix="put the object back from a copy, or start the job from another retained checkpoint",
    )


def _safe_name(vertex: str) -> str:
    """Letters, digits, "_", "." and "-" only; two vertices never share a name."""
    plain = _UNSAFE.sub("_", vertex)[:_LONGEST_NAME]
    return plain if plain == vertex else f"{plain}~{hashlib.sha256(vertex.encode()).hexdigest()[:12]}"
