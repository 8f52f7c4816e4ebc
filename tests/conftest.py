"""What all tests share: helpers that worker processes can import, two engines that stay open, and who runs what."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

sys.path.insert(0, str(Path(__file__).parent))  # engines hand sys.path on to their workers

from fedquilt.engines.workers import Workers

settings.register_profile("fixed", derandomize=True)  # the same examples in every run: a test fails for a change only
settings.register_profile("explore", settings.get_profile("default"))  # pytest --hypothesis-profile explore: new ones
settings.load_profile("fixed")


@pytest.fixture(scope="session")
def one_worker() -> Iterator[Workers]:
    """An engine with one process."""
    with Workers(1) as engine:
        yield engine


@pytest.fixture(scope="session")
def two_workers() -> Iterator[Workers]:
    """An engine with two processes."""
    with Workers(2) as engine:
        yield engine


class _ByFile(LoadFileScheduling):  # type: ignore[misc]
    """A file's tests stay together, but for long files whose tests share nothing."""

    def _split_scope(self, nodeid: str) -> str:
        alone = ("tests/docs/", "tests/conformance/test_conformance.py")
        return nodeid if nodeid.startswith(alone) else str(super()._split_scope(nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _ByFile:
    """The scheduler of every parallel run."""
    return _ByFile(config, log)


@pytest.fixture(autouse=True)
def _metrics_of_classes() -> Iterator[None]:
    """The metrics of a test's task are those of no other test."""
    yield
    table = sys.modules.get("fedquilt.metrics.table")
    if table is not None:
        table.use_task(None)
