"""What all tests share: helpers that worker processes can import, and two engines that stay open."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # engines hand sys.path on to their workers

from fedquilt.engines.workers import Workers


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
