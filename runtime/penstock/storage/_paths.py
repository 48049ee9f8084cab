"""Which paths an object may have. One rule for every store, so that a job may move from one to another."""

DRAFTS = ".penstock-drafts"
"""Folder of half-written objects; no object may have it in its path."""


def check_path(path: str) -> str:
    """The path of one object, unchanged. ValueError when a store could read it as another one."""
    parts = path.split("/")
    if not path or any(part in ("", ".", "..", DRAFTS) for part in parts) or "\0" in path or "\\" in path:
        raise ValueError(
            f'not an object path: {path!r}; write "folder/name": relative, without "..", "." or empty parts'
        )
    return path


def check_prefix(prefix: str) -> str:
    """The beginning of object paths, unchanged: empty, a folder with "/" at its end, or part of a name."""
    if prefix:
        check_path(prefix.removesuffix("/"))
    return prefix


def check_folder(prefix: str) -> str:
    """The prefix of all objects of a folder, unchanged: empty, or with "/" at its end."""
    if prefix and not prefix.endswith("/"):
        raise ValueError(f'not a folder: {prefix!r}; write "folder/"')
    return check_prefix(prefix)
