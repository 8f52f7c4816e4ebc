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


HOLES = """
import ctypes
from fedquilt.engines.kept_memory import _resident, give_back, keep_memory
keep_memory()
give_back()
library = ctypes.CDLL(None)
library.malloc.restype, library.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
large = []
for step in range(25):
    large.append(library.malloc(2**24))
    ctypes.memset(large[-1], 1, 2**24)
    library.malloc(2**17)
for block in large:
    library.free(block)
before = _resident()
give_back()
print(before, _resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is glibc's")
def test_holes_that_large_batches_leave_are_given_back() -> None:
    told = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, check=True).stdout
    before, after = map(int, told.split())
    assert before > 25 * 2**24
    assert after < before - 20 * 2**24
