"""LEAF's JSON: users, num_samples, user_data {name: {x, y}} (Caldas et al. 2018, arXiv:1812.01097); speeches by role.

Facts: github.com/TalwalkarLab/leaf (data/femnist, data/shakespeare, models/utils/language_utils.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedquilt.core.plain import JSON, Array, Row
from fedquilt.data.npz import Arrays
from fedquilt.data.sources.formats.files import AGAIN, find, locate, parsed, records
from fedquilt.errors import InputError

LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"  # LEAF's 80 characters
WINDOW = 80
_PLACE = np.full(256, len(LETTERS) - 1, np.int32)  # LEAF's find gives -1, the last one, for any other character
_PLACE[[ord(c) for c in LETTERS]] = np.arange(len(LETTERS), dtype=np.int32)
Rows = tuple[Array, Array, Array]


@dataclass(frozen=True)
class _Task:
    """How the x and the y of a user are read, and how many classes there are."""

    inputs: Callable[[JSON], Array]
    label: Callable[[JSON], int]
    classes: int


def femnist(folder: Path) -> Arrays:
    """FEMNIST: 28 x 28 characters, 62 classes (0-9, A-Z, a-z), ``user`` the writer.

    Pixels are as LEAF has them, ink on a white background: 1 there is the byte 255 here. MNIST is the other way round.
    """
    return _arrays(folder, _Task(_pixels, _whole, 62))


def shakespeare(folder: Path) -> Arrays:
    """Shakespeare: 80 characters to the next one, as places among LEAF's 80 characters; ``user`` the role."""
    return _arrays(folder, _Task(_windows, _next, len(LETTERS)))


def shakespeare_roles(folder: Path, step: int = WINDOW) -> Arrays:
    """Shakespeare by role: shakespeare_roles.csv (play, role, text); ``user`` is 'play/role'.

    The speeches of a role are one text, in which every run of blanks and line ends is one blank. A window of 80
    characters begins every ``step`` characters, and the character after it is the label; LEAF's characters. Windows do
    not overlap by default, because test samples are drawn from the same text. A role with fewer than 81 characters
    gives no window.
    """
    if step < 1:
        raise InputError(f"step must be 1 or more, got {step}.")
    path = locate(folder, "shakespeare_roles.csv")
    speeches: dict[str, list[str]] = {}
    for play, role, speech in records(path, ("play", "role", "text")):
        speeches.setdefault(f"{play}/{role}", []).append(speech)
    parts = []
    for user, said in speeches.items():
        ids = numbered(re.sub(r"\s+", " ", " ".join(said)).strip())
        if len(ids) > WINDOW:
            runs = np.lib.stride_tricks.sliding_window_view(ids, WINDOW + 1)[::step]
            parts.append((runs[:, :WINDOW], runs[:, WINDOW], np.full(len(runs), user)))
    if not parts:
        raise InputError(f"{path}: no role says more than {WINDOW} characters. {AGAIN}.")
    x, y, users = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Arrays(x, y.astype(np.int64), user=users, classes=len(LETTERS))


def numbered(text: str) -> Array:
    """The places of characters among LEAF's; any other character counts as the last one."""
    return np.asarray(
        _PLACE[np.minimum(np.frombuffer(text.encode("utf-32-le"), np.uint32), 255)]
    )  # byte 255 is not LEAF's


def _arrays(folder: Path, task: _Task) -> Arrays:
    """train and test, each with its rows' users, who may be the same people; or all_data, which has no test part."""
    train = find(folder, "train")
    x, y, user = _part(train or locate(folder, "train", "all_data"), task)
    x_test, y_test, user_test = _part(locate(folder, "test"), task) if train else (None, None, None)
    return Arrays(x, y, x_test, y_test, user, task.classes, user_test=user_test)


def _part(folder: Path, task: _Task) -> Rows:
    files = sorted([*folder.glob("*.json"), *folder.glob("*.json.gz")]) if folder.is_dir() else []
    if not files:
        raise InputError(f"{folder} holds no .json files. Run LEAF's preprocess.sh, and give the folder it made.")
    parts = [rows for path in files for rows in _users(path, task)]
    if not parts:
        raise InputError(f"{folder}: its files have no users. Run LEAF's preprocess.sh again.")
    x, y, user = (np.concatenate(column) for column in zip(*parts, strict=True))
    return x, y, user


def _users(path: Path, task: _Task) -> Iterator[Rows]:
    found = _checked(path)
    for user, count in zip(found["users"], found["num_samples"], strict=True):
        own = found["user_data"].get(str(user))
        x_y = [own.get(name) for name in ("x", "y")] if isinstance(own, dict) else []
        if not x_y or any(not isinstance(rows, list) or len(rows) != count for rows in x_y):
            raise InputError(f"{path}: user {user!r} should have {count} rows in x and in y. Run preprocess.sh again.")
        if count:
            yield (*_rows_of(own, task, f"{path}: user {user!r}"), np.full(count, user))


def _rows_of(own: Row, task: _Task, where: str) -> tuple[Array, Array]:
    """A user's inputs and labels."""
    try:
        x, y = task.inputs(own["x"]), np.array([task.label(v) for v in own["y"]], np.int64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{where}: {error}. Run LEAF's preprocess.sh again.") from error
    if not 0 <= y.min() <= y.max() < task.classes:
        raise InputError(f"{where} has labels from {y.min()} to {y.max()}, of {task.classes} classes.")
    return x, y


def _checked(path: Path) -> Row:
    """A file as LEAF writes them: users, how many rows each has, and the rows."""
    found = parsed(path)
    if not isinstance(found, dict) or not {"users", "num_samples", "user_data"} <= found.keys():
        raise InputError(f"{path} is not LEAF's: it needs users, num_samples and user_data. Run preprocess.sh again.")
    kinds = (("users", list, "a list"), ("num_samples", list, "a list"), ("user_data", dict, "a table"))
    for name, kind, called in kinds:
        if not isinstance(found[name], kind):
            raise InputError(f"{path}: {name} is {type(found[name]).__name__}, not {called}. Run preprocess.sh again.")
    if len(found["users"]) != len(found["num_samples"]):
        raise InputError(f"{path} has {len(found['users'])} users, but {len(found['num_samples'])} counts of samples.")
    if len(set(map(str, found["users"]))) < len(found["users"]):
        raise InputError(f"{path} names a user twice. Run preprocess.sh again.")
    return found


def _pixels(rows: JSON) -> Array:
    found = np.array(rows, np.float64)
    if found.ndim != 2 or found.shape[1] != 784 or not 0 <= found.min() <= found.max() <= 1:
        raise ValueError("images should be 784 numbers from 0 to 1")
    return np.rint(found * 255).astype(np.uint8).reshape(-1, 28, 28)


def _whole(value: JSON) -> int:
    if int(value) != value:
        raise ValueError(f"labels should be whole numbers, not {value!r}")
    return int(value)


def _windows(rows: JSON) -> Array:
    if any(len(row) != WINDOW for row in rows):
        raise ValueError(f"inputs should be {WINDOW} characters")
    return numbered("".join(rows)).reshape(-1, WINDOW)


def _next(value: JSON) -> int:
    if not isinstance(value, str) or len(value) != 1:
        raise ValueError(f"labels should be one character, not {value!r}")
    return int(numbered(value)[0])
