"""Memory that is kept for the next step: the system is asked for it once."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from fedquilt.engines import kept_memory

FAULTS = """
import resource
from fedquilt.engines.kept_memory import keep_memory
keep_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for step in range(50):
    held = [b"x" * 4_000_000 for _ in range(5)]
    del held
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(**environment: str) -> int:
    """How often a process that takes and frees 20 MB fifty times had to ask the system for a page."""
    told = subprocess.run([sys.executable, "-c", FAULTS], env={**os.environ, **environment}, capture_output=True)
    assert told.returncode == 0, told.stderr.decode()
    return int(told.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is glibc's")
def test_pages_are_asked_for_once_and_not_in_every_step() -> None:
    assert faults(FEDQUILT_MALLOC="1") * 5 < faults(FEDQUILT_MALLOC="0")


def test_a_process_that_is_started_anew_gets_the_same_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDQUILT_MALLOC", raising=False)
    assert {int(v) for v in kept_memory.settings().values()} == {kept_memory.BLOCK, kept_memory.KEEP}
    monkeypatch.setenv("FEDQUILT_MALLOC", "0")
    assert kept_memory.settings() == {}
