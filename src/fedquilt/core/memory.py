"""What may be asked for at most: memory for one file, array or network, and, at a site, local training by one task.

More is refused before it is allocated or begun. A site limits training because its server names the method.
"""

from __future__ import annotations

import os
import re
import sys
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache

from fedquilt.errors import InputError
from fedquilt.records.declared import shown

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

VARIABLE = "FEDQUILT_MAX_BYTES"
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_ASKED = re.compile(r"([0-9]{1,15})([KMGT]?)i?B?", re.IGNORECASE)


def most_bytes() -> int:
    """What the environment variable FEDQUILT_MAX_BYTES says (20000000000, 20G), or three quarters of this machine's
    memory."""
    asked = os.environ.get(VARIABLE, "").strip()
    if not asked:
        return _three_quarters()
    found = _ASKED.fullmatch(asked)
    if found is None or int(found[1]) < 1:
        raise InputError(f"{VARIABLE} should be a number of bytes, like 8000000000 or 8G, got {asked!r}.")
    return int(found[1]) * _UNITS[found[2].upper()]


@cache
def _three_quarters() -> int:
    found = machine_bytes()
    return found * 3 // 4 if found else 16 * 2**30


def machine_bytes() -> int | None:
    """The memory of this machine; None where the system does not say, as Windows."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def peak_bytes() -> int:
    """The largest resident size of this process so far; 0 where the system does not say, as Windows."""
    if resource is None:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux kilobytes


def check_bytes(size: int, what: str) -> None:
    """Raise if something would take more memory than it may. ``what`` begins the sentence."""
    most = most_bytes()
    if size > most:
        raise InputError(
            f"{what} would take {_told(size)} of memory, and at most {_told(most)} are allowed. Use less of it, or set "
            f"the environment variable {VARIABLE} if this is intended."
        )


def _told(size: int) -> str:
    return f"{size / 10**9:,.1f} GB" if size >= 10**8 else f"{size:,} bytes"


class OverLimit(InputError):
    """A task asks for more than is allowed here; the text may leave the site."""


@dataclass
class Allowance:
    """What one task may do: passes of each training, and steps of all of them."""

    epochs: int
    steps: int
    asked: int = 0  # steps so far

    def take(self, epochs: int | None, steps: int) -> None:
        """A training is about to begin; raises if it asks for too much."""
        if epochs is not None and epochs > self.epochs:
            raise OverLimit(f"the task asks for {shown(epochs)} epochs, and this site allows {self.epochs}")
        self.asked += steps
        if self.asked > self.steps:
            raise OverLimit(f"the task asks for {shown(self.asked)} steps, and this site allows {self.steps}")


ALLOWED: ContextVar[Allowance | None] = ContextVar("ALLOWED", default=None)


def ask(epochs: int | None, steps: int) -> None:
    """Ask for so much training, before it begins; raises where less is allowed."""
    allowance = ALLOWED.get()
    if allowance is not None:
        allowance.take(epochs, steps)
