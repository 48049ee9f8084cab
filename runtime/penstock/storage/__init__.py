"""The object-store port and its implementations: local directory and memory (S3 joins them later)."""

from penstock.storage._folders import flush_folder, make_folders
from penstock.storage._local import LocalStore
from penstock.storage._memory import MemoryStore
from penstock.storage._open import open_store
from penstock.storage._port import ObjectInfo, ObjectStore, UnknownResultError
from penstock.storage._prefixed import Prefixed

__all__ = [
    "LocalStore",
    "MemoryStore",
    "ObjectInfo",
    "ObjectStore",
    "Prefixed",
    "UnknownResultError",
    "flush_folder",
    "make_folders",
    "open_store",
]
