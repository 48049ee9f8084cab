"""The object-store port and its implementations: local directory and memory (S3 joins them later)."""

from penstock.storage._port import ObjectInfo, ObjectStore, UnknownResultError

__all__ = ["ObjectInfo", "ObjectStore", "UnknownResultError"]
