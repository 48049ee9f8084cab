"""Objects that several checkpoints share: files of databases, chunks of tables. Only what is new is uploaded.

An object is named by its writer and its content (SHA-256), and is never written twice by one writer. Who deletes it
is the coordinator, when no retained checkpoint names it any more.
"""

import hashlib
import shutil
from pathlib import Path

import msgspec

from penstock.model.errors import FatalJobError
from penstock.model.handles import FileHandle, Redistribution, SectionHandle
from penstock.model.ids import Uid
from penstock.operators.base import FilesSection
from penstock.state.chunks import Chunk
from penstock.state.rocks import RestoredFiles, is_immutable
from penstock.storage import ObjectStore

FOLDER = "shared"


def store_files(store: ObjectStore, writer: str, uid: Uid, section: FilesSection) -> tuple[SectionHandle, int]:
    """Upload the files that the store does not have; durable when it returns. Also how many bytes that were."""
    linked = section.linked
    handles, uploaded = [], 0
    try:
        for file in sorted(linked.folder.iterdir()):
            known = linked.stored.get(file.name)
            if known is None:
                known = _upload(store, writer, file)
                uploaded += known.size
            handles.append(known)
    finally:
        shutil.rmtree(linked.folder, ignore_errors=True)
    linked.stored.clear()
    linked.stored.update({file.name: file for file in handles if is_immutable(file.name)})
    handle = SectionHandle(
        uid=uid,
        state=section.state,
        redistribution=Redistribution.KEYED,
        offset=0,
        length=sum(file.size for file in handles),
        rows=linked.rows,
        first_group=linked.groups.start,
        group_offsets=tuple(range(len(linked.groups) + 1)),
        files=tuple(handles),
    )
    return handle, uploaded


def store_chunk(
    store: ObjectStore, writer: str, chunk: Chunk, encoded: tuple[bytes, SectionHandle] | None
) -> tuple[SectionHandle, int]:
    """Upload a chunk unless the store has it; durable when it returns. Also how many bytes that were."""
    if chunk.handle is not None:
        return chunk.handle, 0
    assert encoded is not None
    data, handle = encoded
    sha256 = hashlib.sha256(data).hexdigest()
    path = f"{FOLDER}/{writer}/{sha256}"
    store.put(path, data)
    chunk.handle = msgspec.structs.replace(handle, path=path, size=len(data), sha256=sha256)
    return chunk.handle, len(data)


def bring_files(store: ObjectStore, section: SectionHandle, folder: Path) -> RestoredFiles:
    """Download the files into a folder of their own, each compared with its handle."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file in section.files:
        (folder / file.name).write_bytes(verified(store, file.path, file.size, file.sha256))
    groups = range(section.first_group, section.first_group + len(section.group_offsets) - 1)
    return RestoredFiles(folder, groups, section.files)


def verified(store: ObjectStore, path: str, size: int, sha256: str) -> bytes:
    """The object, just as it was written; S002 when it is not."""
    data = store.get(path)
    if data is None:
        raise broken(path, "it is not in the store")
    return checked(data, path, size, sha256)


def checked(data: bytes, path: str, size: int, sha256: str) -> bytes:
    """The bytes themselves; S002 when they are not what was written."""
    if len(data) != size:
        raise broken(path, f"it has {len(data)} bytes instead of {size}")
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise broken(path, f"its SHA-256 is {found} instead of {sha256}")
    return data


def broken(path: str, found: str) -> FatalJobError:
    """An object that a checkpoint needs cannot be used."""
    return FatalJobError(
        "S002",
        f"state object {path} cannot be used: {found}",
        fix="put the object back from a copy, or start the job from another retained checkpoint",
    )


def _upload(store: ObjectStore, writer: str, file: Path) -> FileHandle:
    data = file.read_bytes()
    sha256 = hashlib.sha256(data).hexdigest()
    path = f"{FOLDER}/{writer}/{sha256}"
    store.put(path, data)
    return FileHandle(name=file.name, path=path, size=len(data), sha256=sha256)
