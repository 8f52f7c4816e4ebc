"""Results as PFLlib keeps them: results/DATASET_ALGORITHM_GOAL_RUN.h5; and the summary over runs."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedquilt.compat.scores import PFLlibScores
from fedquilt.core.memory import check_bytes
from fedquilt.errors import InputError
from fedquilt.storage.files import write_atomic

SERIES = {"rs_test_acc": "accuracy", "rs_test_acc_std": "std", "rs_test_auc": "auc", "rs_train_loss": "loss"}
LAST = 5
MEGABYTE = 1e6


@dataclass(frozen=True)
class Traffic:
    """What one round sent: bytes to clients and from them, as they travelled and as they would without codecs."""

    down: int
    up: int
    raw_down: int
    raw_up: int

    @property
    def words(self) -> str:
        """In a line."""
        saved = (self.raw_down + self.raw_up) / max(self.down + self.up, 1)
        raw = f", 1/{saved:.2f} of what it would be without compression" if saved > 1 else ""
        return f"sent {self.down / MEGABYTE:.3f} MB down, {self.up / MEGABYTE:.3f} MB up{raw}"


SENT = {"rs_bytes_down": "down", "rs_bytes_up": "up", "rs_raw_bytes_down": "raw_down", "rs_raw_bytes_up": "raw_up"}


def total(sent: Sequence[Traffic]) -> Traffic:
    """Of all rounds."""
    return Traffic(*(sum(getattr(one, name) for one in sent) for name in SENT.values()))


def h5py() -> Any:
    """The library, or a word on how to get it."""
    try:
        import h5py as found
    except ImportError as error:
        advice = 'Install the extra "compat": pip install "fedquilt[compat]".'
        raise InputError(f"The .h5 results need h5py. {advice}") from error
    return found


def save(path: Path, scores: Sequence[PFLlibScores], sent: Sequence[Traffic], about: Mapping[str, object]) -> None:
    """One value per evaluation in each series, one per round in those of bytes; settings as attributes."""
    content = io.BytesIO()
    with h5py().File(content, "w") as file:
        for name, field in SERIES.items():
            file.create_dataset(name, data=np.array([getattr(s, field) for s in scores]))
        for name, field in SENT.items():
            file.create_dataset(name, data=np.array([getattr(one, field) for one in sent], np.int64))
        for name, value in about.items():
            file.attrs[name] = value
    write_atomic(path, content.getvalue())


def load(path: Path) -> dict[str, Any]:
    """The series of a file."""
    with h5py().File(path, "r") as file:
        check_bytes(sum(file[name].nbytes for name in SERIES), str(path))
        return {name: np.array(file[name]) for name in SERIES}


def summary(paths: Sequence[Path]) -> list[str]:
    """What PFLlib tells, named as what it is; and beside it a number that is not chosen on the test samples."""
    runs = [load(path) for path in paths]
    best = [float(run["rs_test_acc"].max()) for run in runs]
    ends = [float(run["rs_test_acc"][-LAST:].mean()) for run in runs]
    lines = [
        f"best accuracy (the highest of all scores, so chosen on the test samples): {_spread(best)}",
        f"mean accuracy of the last {min(LAST, len(runs[0]['rs_test_acc']))} scores: {_spread(ends)}",
    ]
    if len(runs) == 1:
        series = runs[0]["rs_test_acc"]
        lines.append(f"std of the last {min(10, len(series))} scores: {float(series[-10:].std()):.4f}")
    place = [int(run["rs_test_acc"].argmax()) for run in runs]
    stds = [float(run["rs_test_acc_std"][i]) for run, i in zip(runs, place, strict=True)]
    lines.append(f"std over clients where it is best: {float(np.mean(stds)):.4f}")
    return lines


def _spread(values: Sequence[float]) -> str:
    text = f"{float(np.mean(values)):.4f}"
    return text if len(values) == 1 else f"{text}, std {float(np.std(values)):.4f} over {len(values)} runs"
