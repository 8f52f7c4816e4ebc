"""``report.html``: a run or a comparison as one page that needs nothing else."""

from __future__ import annotations

from pathlib import Path

from fedquilt.storage.files import write_atomic


def write_report(folder: str | Path, to: str | Path | None = None) -> Path:
    """Write the report of the folder of a run or of a comparison; by default as report.html in that folder.

    Example:
        >>> write_report("runs/quick-1a2b3c4d")  # doctest: +SKIP
        PosixPath('runs/quick-1a2b3c4d/report.html')
    """
    from fedquilt.report.gather import Gathered
    from fedquilt.report.page import page

    place = Path(folder)
    path = place / "report.html" if to is None else Path(to)
    write_atomic(path, page(Gathered.of(place)).encode())
    return path
