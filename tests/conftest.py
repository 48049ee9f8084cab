"""What all tests share: the folder tells what a test needs, and no test is judged by the clock of a busy machine."""

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("shared-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared-machine")

KINDS = ("integration", "services", "simulation", "spark", "torture")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A test in tests/<kind>/ has the marker <kind>."""
    for item in items:
        for kind in KINDS:
            if kind in item.path.relative_to(config.rootpath).parts:
                item.add_marker(getattr(pytest.mark, kind))
