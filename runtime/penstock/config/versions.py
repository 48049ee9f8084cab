"""What this process runs on: jobs that were built with something else are refused (P006)."""

import functools
import importlib.metadata
import platform


def installed_versions() -> dict[str, str]:
    """In the form that job graphs and registrations carry."""
    return {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "penstock": _version("penstock"),
        "polars": _version("polars"),
    }


@functools.cache
def _version(package: str) -> str:
    """Reads the metadata on disk, which takes milliseconds and stays as it is."""
    return importlib.metadata.version(package)
