"""``report.html``: a run or a comparison as one page that needs nothing else.

The module itself can be called: ``fedquilt.report(folder, to)`` is :func:`write_report`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Protocol

from fedquilt.storage.files import write_atomic


class HasFolder(Protocol):
    """What knows its folder, such as :class:`fedquilt.Results`."""

    folder: Path


def write_report(folder: str | Path | HasFolder, to: str | Path | None = None) -> Path:
    """Write the report of a run, a comparison or a sweep, given its folder or its results; by default as report.html
    in that folder.

    Example:
        >>> write_report("runs/quick-1a2b3c4d")  # doctest: +SKIP
        PosixPath('runs/quick-1a2b3c4d/report.html')
    """
    from fedquilt.report.gather import Gathered
    from fedquilt.report.page import page

    place = Path(folder) if isinstance(folder, str | os.PathLike) else folder.folder
    path = place / "report.html" if to is None else Path(to)
    write_atomic(path, page(Gathered.of(place)).encode())
    return path


class _Callable(ModuleType):
    """Importing this package puts the module in the place of any function ``fedquilt.report``; so it is one."""

    def __call__(self, folder: str | Path | HasFolder, to: str | Path | None = None) -> Path:
        return write_report(folder, to)


sys.modules[__name__].__class__ = _Callable
