"""TensorBoard: event files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedquilt.core.plain import JSON
from fedquilt.errors import InputError
from fedquilt.runs.trackers import RunInfo


@dataclass
class TensorBoard:
    """Writes event files, by default below the run's own folder.

    Args:
        folder: The run's files go to a folder of its name in this one.
    """

    folder: str | None = None
    _writer: Any = field(default=None, init=False, repr=False)

    def start(self, run: RunInfo) -> str:
        """Continue after the rounds that were logged; older points of later rounds are hidden by the reader."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise InputError(f'TensorBoard is not installed ({error}): pip install "fedquilt[track]".') from error
        place = run.folder / "tensorboard" if self.folder is None else Path(self.folder) / run.name
        writer: Any = SummaryWriter
        self._writer = writer(str(place), purge_step=run.logged + 1)
        if not run.logged:
            lines = "\n".join(f"    {name} = {value}" for name, value in run.config.items())
            self._writer.add_text("settings", lines, 0)
        self._writer.flush()
        return str(place)

    def log(self, round: int, numbers: Mapping[str, float]) -> None:
        """A point of every number."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, round)
        self._writer.flush()

    def finish(self, result: Mapping[str, JSON] | None) -> None:
        """Close the file."""
        self._writer.close()
