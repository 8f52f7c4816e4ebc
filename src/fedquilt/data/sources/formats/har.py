"""Smartphone motion: UCI HAR (windows made by its authors) and HAPT (its successor, raw recordings at 50 Hz).

Facts: the README.txt files of both data sets (Anguita et al. 2013; Reyes-Ortiz et al. 2016).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np

from fedquilt.core.plain import Array
from fedquilt.data.npz import Arrays, arrays_of, load
from fedquilt.data.sources.formats.files import AGAIN, locate, numbers, same_length
from fedquilt.errors import InputError

_SIGNALS = tuple(f"{kind}_{axis}" for kind in ("total_acc", "body_acc", "body_gyro") for axis in "xyz")


def uci_har(folder: Path) -> Arrays:
    """UCI HAR: x [n, 9, 128] (total acceleration, body acceleration, angular velocity; x, y, z), six activities.

    ``user`` is the person. The official split is kept: 21 people train, the other 9 are the test set of no client.
    """
    (x, y, user), (x_test, y_test, _) = (_har_part(folder, part) for part in ("train", "test"))
    return Arrays(x, y, x_test, y_test, user, classes=6)


def _har_part(folder: Path, part: str) -> tuple[Array, Array, Array]:
    files = {name: locate(folder, f"{part}/Inertial Signals/{name}_{part}.txt") for name in _SIGNALS}
    labels, people = (locate(folder, f"{part}/{name}_{part}.txt") for name in ("y", "subject"))
    signals = {name: numbers(path, 128).astype(np.float32) for name, path in files.items()}
    y, user = (numbers(path, 1)[:, 0].astype(np.int64) for path in (labels, people))
    counts = {name: (files[name], len(signal)) for name, signal in signals.items()}
    same_length(**counts, labels=(labels, len(y)), people=(people, len(user)))
    if not 1 <= y.min() <= y.max() <= 6:
        raise InputError(f"{labels} has activities from {y.min()} to {y.max()}, not 1 to 6. {AGAIN}.")
    return np.stack(list(signals.values()), axis=1), y - 1, user


def hapt(folder: Path, window: int = 128, step: int = 128) -> Arrays:
    """HAPT: x [n, 6, window] (acceleration in g, angular velocity in rad/s), six activities, ``user`` the person.

    Windows begin every ``step`` samples within each labelled stretch; none crosses its ends. They do not overlap by
    default: a client's test samples are drawn at random, and a window that shares half its samples with a training
    window is no test (the published sets overlap by half, but test on other people). The postural transitions
    (activities 7 to 12) are left out. There is no test set of its own. The readme does not say where samples begin to
    count; stretches are read as counted from 1, both ends included.
    """
    where = locate(folder, "RawData/labels.txt", "labels.txt")
    cut, signals = _Windows(window, step), dict[tuple[int, int], Array]()
    for experiment, user, activity, start, end in _whole(where).tolist():
        if not 1 <= activity <= 6:
            continue
        if (experiment, user) not in signals:
            signals[experiment, user] = _recording(where.parent, experiment, user)
        signal = signals[experiment, user]
        if not 1 <= start <= end <= len(signal):
            raise InputError(
                f"{where}: experiment {experiment} has {len(signal)} samples, not {start} to {end}. {AGAIN}."
            )
        cut.add(signal[start - 1 : end], activity, user)
    return cut.arrays(where)


_RAW = ("signal_delta", "scale", "label", "experiment", "user")


def hapt_npz(path: Path, window: int = 128, step: int = 128) -> Arrays:
    """HAPT from an .npz: windows with the usual keys, or whole recordings, which are cut as :func:`hapt` does.

    Recordings are end to end: ``signal_delta`` [6, samples], int16 differences from sample to sample in units of
    ``scale`` (one for each channel), and for each sample its ``label`` (0: none), ``experiment`` and ``user``.
    """
    found = load(path)
    if "signal_delta" not in found:
        return arrays_of(found, str(path))
    signal, per_sample = _recordings(path, found)
    changes = np.any([np.diff(column) != 0 for column in per_sample.values()], axis=0)
    cut, ends = _Windows(window, step), [0, *(np.flatnonzero(changes) + 1).tolist(), len(signal)]
    for start, end in pairwise(ends):
        if 1 <= per_sample["label"][start] <= 6:
            cut.add(signal[start:end], int(per_sample["label"][start]), int(per_sample["user"][start]))
    return cut.arrays(path)


def _recordings(path: Path, found: Mapping[str, Array]) -> tuple[Array, dict[str, Array]]:
    """The signal, and of each sample its label, experiment and user."""
    lacking = [name for name in _RAW if name not in found]
    if lacking:
        raise InputError(f"{path} has signal_delta but not {', '.join(lacking)}. {AGAIN}.")
    signal = np.cumsum(found["signal_delta"], axis=1, dtype=np.int16).T * found["scale"]
    per_sample = {name: found[name].astype(np.int64) for name in ("label", "experiment", "user")}
    counts = {"signal_delta": len(signal), **{name: len(column) for name, column in per_sample.items()}}
    if len(set(counts.values())) > 1:
        raise InputError(f"{path}: its columns have unlike numbers of samples: {counts}. {AGAIN}.")
    return signal, per_sample


class _Windows:
    """Windows of equal length, gathered stretch by stretch."""

    def __init__(self, window: int, step: int) -> None:
        if window < 1 or step < 1:
            raise InputError(f"window and step must be 1 or more, got {window} and {step}.")
        self.window, self.step = window, step
        self.pieces: list[Array] = []
        self.activities: list[int] = []
        self.people: list[int] = []

    def add(self, stretch: Array, activity: int, user: int) -> None:
        """The windows of one stretch [samples, channels]; activities count from 1."""
        starts = range(0, len(stretch) - self.window + 1, self.step)
        self.pieces += [stretch[s : s + self.window].T for s in starts]
        self.activities += [activity - 1] * len(starts)
        self.people += [user] * len(starts)

    def arrays(self, where: Path) -> Arrays:
        """All of them as a data set."""
        if not self.pieces:
            raise InputError(f"{where}: no labelled stretch has {self.window} samples. Ask for a shorter window.")
        x, y = np.stack(self.pieces).astype(np.float32), np.array(self.activities)
        return Arrays(x, y, user=np.array(self.people), classes=6)


def _whole(path: Path) -> Array:
    found = numbers(path, 5)
    if np.abs(found).max() >= 2.0**63 or (found != np.floor(found)).any():
        raise InputError(f"{path} holds numbers that are not whole. {AGAIN}.")
    return found.astype(np.int64)


def _recording(folder: Path, experiment: int, user: int) -> Array:
    paths = [locate(folder, f"{kind}_exp{experiment:02d}_user{user:02d}.txt") for kind in ("acc", "gyro")]
    acc, gyro = (numbers(path, 3) for path in paths)
    same_length(acc=(paths[0], len(acc)), gyro=(paths[1], len(gyro)))
    return np.concatenate([acc, gyro], axis=1)
