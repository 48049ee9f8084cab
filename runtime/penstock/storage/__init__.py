"""The object-store port and its implementations: local directory, memory, S3."""

from penstock.storage._folders import flush_folder, make_folders
from penstock.storage._local import LocalStore
from penstock.storage._memory import MemoryStore
from penstock.storage._open import folder_of, open_store, open_uploads
from penstock.storage._port import ObjectInfo, ObjectStore, UnfinishedUpload, UnknownResultError, UploadStore
from penstock.storage._prefixed import Prefixed
from penstock.storage._probe import check_conditional_writes

__all__ = [
    "LocalStore",
    "MemoryStore",
    "ObjectInfo",
    "ObjectStore",
    "Prefixed",
    "UnfinishedUpload",
    "UnknownResultError",
    "UploadStore",
    "check_conditional_writes",
    "flush_folder",
    "folder_of",
    "make_folders",
    "open_store",
    "open_uploads",
]
