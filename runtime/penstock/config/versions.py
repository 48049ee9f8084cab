"""What this process runs on: jobs that were built with something else are refused (P006)."""

import importlib.metadata
import platform


def installed_versions() -> dict[str, str]:
    """In the form that job graphs and registrations carry."""
    return {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "penstock": importlib.metadata.version("penstock"),
        "polars": importlib.metadata.version("polars"),
    }
