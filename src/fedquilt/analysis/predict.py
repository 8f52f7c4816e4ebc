"""Answers of a run's models for rows without labels: a folder of images, or an .npz."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedquilt.analysis.afterwards import config_in
from fedquilt.analysis.modes import FOLDER, Mode, file_of, load_mode
from fedquilt.config.config import Config
from fedquilt.config.data import federation_of, prepare_of
from fedquilt.core.columns import PerColumn, own, sums_of
from fedquilt.core.net import logits_of
from fedquilt.core.plain import JSON, Array
from fedquilt.core.table import ClientId, Table
from fedquilt.data import Arrays, Federation, imports
from fedquilt.data.checks import input_column
from fedquilt.data.npz import load
from fedquilt.data.sources.formats.pictures import ENDINGS, decoded
from fedquilt.data.tabular import stored_like
from fedquilt.errors import InputError
from fedquilt.models.registry import net as net_called
from fedquilt.pieces.realign import masked
from fedquilt.rounds.client import one_thread
from fedquilt.runs.preparation import kept_in
from fedquilt.storage.files import write_atomic

ROWS = 200  # per forward pass
GREY = np.array([0.299, 0.587, 0.114])  # weights of red, green and blue (ITU-R BT.601)
Kind = Literal["universal", "global", "plain", "personal"]


@dataclass(frozen=True)
class Answers:
    """For each row its name (a file, or a number), the class, and its probability; accuracy where labels are known."""

    names: tuple[str, ...]
    classes: Tensor
    confidence: Tensor
    accuracy: float | None

    def csv(self) -> str:
        """As a table."""
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(("row", "class", "confidence"))
        for row in zip(self.names, self.classes.tolist(), self.confidence.tolist(), strict=True):
            writer.writerow((row[0], row[1], f"{row[2]:.6f}"))
        return text.getvalue()


def predict(folder: str | Path, data: str | Path, mode: Kind = "global", client: ClientId | None = None) -> Answers:
    """Use a saved mode of a run (``fedquilt realign RUN``) on new rows.

    Args:
        folder: Of the run.
        data: A folder of images (at any depth; grey or colour as the run's were), an .npz with x, and y if known, or,
            of a run on a table, a csv or parquet file with its columns; rows are prepared as the run's were.
        mode: 'universal', 'global' (realigned), 'plain' or 'personal'.
        client: Whose model, for 'personal'.

    Example:
        >>> predict("runs/digits_lt-1a2b3c4d", "new.npz", "personal", client=3).classes  # doctest: +SKIP
        tensor([1, 0, 4])
    """
    if (mode == "personal") != (client is not None):
        raise InputError("A client is named with mode 'personal', and only then: --mode personal --client 3.")
    name = file_of(client) if client is not None else f"{mode}.safetensors"
    place, config = Path(folder) / FOLDER / name, config_in(Path(folder))
    if not place.is_file() and place.parent.is_dir():
        there = sorted(p.stem for p in place.parent.glob("*.safetensors"))
        raise InputError(f"'{place.parent}' has no {place.stem}. There are: {', '.join(there[:12])}.")
    chosen, kept = load_mode(place), kept_in(Path(folder))
    with one_thread():
        if kept is not None:
            x, labels = _cells(Path(data), chosen, config.data.label or "label", kept.prepare)
            names = tuple(map(str, range(len(x))))
            return _answered(chosen, config, names, _prepared(x, kept.prepare), labels)
        names, x, labels = _rows(Path(data), chosen)
        return _answered(chosen, config, names, _table(config, chosen, x), labels)


def _cells(path: Path, mode: Mode, label: str, prepare: PerColumn) -> tuple[Array, Tensor | None]:
    """New rows of a table, and their labels if they have any that are numbers."""
    if not path.name.endswith((".csv", ".csv.gz", ".parquet")):
        _, x, labels = _rows(path, mode)
        return x, labels
    named = imports.cells(path)
    x, y = stored_like(named, str(path), prepare), named.get(label)
    try:
        known = None if y is None else _labels(path, {"x": x, "y": y.astype(np.int64)}, mode.about["classes"])
    except ValueError:  # names: nobody knows here which class each is
        known = None
    return x, known


def _prepared(x: Array, prepare: PerColumn) -> Table:
    """Rows of a table, prepared as the run's were; where each client took its own numbers, by those of these rows."""
    if not len(x):
        raise InputError("There are no rows to answer.")
    rows = input_column(x, "the new rows", table=True)
    if rows.shape[1:] != (len(prepare.columns),) or not rows.is_floating_point():
        raise InputError(
            f"The rows are {rows.dtype} of shape {tuple(rows.shape[1:])}, those of the run had {len(prepare.columns)} "
            "columns of floats."
        )
    mine = own(prepare, sums_of(rows, prepare.columns)) if prepare.scope == "clients" else prepare
    return Table({"x": rows}, None, mine)


def _answered(mode: Mode, config: Config, names: tuple[str, ...], table: Table, labels: Tensor | None) -> Answers:
    net = net_called(config.model.kind, tuple(mode.about["shape"]), mode.about["classes"], **config.model.options)
    model = net.taken(mode.model)
    with torch.inference_mode():
        scores = [logits_of(net(model, block)) for block in table.blocks(ROWS)]
        sure, answer = masked(torch.cat(scores), mode.mask).softmax(1).max(1)
    accuracy = None if labels is None else float((answer == labels).double().mean())
    return Answers(names, answer, sure, accuracy)


def _labels(path: Path, found: Mapping[str, JSON], classes: int) -> Tensor:
    y = found["y"]
    if y.shape != (len(found["x"]),) or y.dtype.kind not in "iub":
        raise InputError(
            f"{path}: y should be a whole number for each of {len(found['x'])} rows, got {y.dtype} of shape {y.shape}."
        )
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < classes:
        raise InputError(f"{path}: y goes from {y.min()} to {y.max()}; the run knows the classes 0 to {classes - 1}.")
    return torch.from_numpy(y.astype(np.int64))


def _rows(path: Path, mode: Mode) -> tuple[tuple[str, ...], Array, Tensor | None]:
    """Names, rows as they are stored, and labels if there are any."""
    if not path.is_dir():
        found = load(path)
        if "x" not in found:
            raise InputError(f"{path} has the keys {', '.join(sorted(found)) or '(none)'}. It needs x, the rows.")
        labels = _labels(path, found, mode.about["classes"]) if "y" in found else None
        return tuple(map(str, range(len(found["x"])))), found["x"], labels
    stored = mode.about["stored"]
    if mode.about["dtype"] != "torch.uint8" or len(stored) != 3 or stored[1] != stored[2] or stored[0] not in (1, 3):
        raise InputError(
            f"The run's rows are no square images of bytes but {mode.about['dtype']} of shape {tuple(stored)}; "
            "give an .npz with x."
        )
    files = sorted(p for p in path.rglob("*") if p.suffix.lower() in ENDINGS and not p.name.startswith("."))
    if not files:
        raise InputError(f"{path} holds no images ({', '.join(sorted(ENDINGS))}).")
    images = decoded(files, stored[1])
    if stored[0] == 1:
        images = np.rint(np.tensordot(images, GREY, axes=(1, 0)))[:, None].clip(0, 255).astype(np.uint8)
    return tuple(str(p.relative_to(path)) for p in files), images, None


def _table(config: Config, mode: Mode, x: Array) -> Table:
    """The rows, stored and prepared as the run's were."""
    if not len(x):
        raise InputError("There are no rows to answer.")
    arrays = Arrays(x, np.zeros(len(x), np.int64))
    one = Federation.from_source(arrays, clients=1, test=0.0, valid=0.0, **prepare_of(config.data, arrays))
    shape = tuple(one.columns["x"].shape[1:])
    kind = str(one.columns["x"].dtype)
    if list(shape) != mode.about["stored"] or kind != mode.about["dtype"]:
        wanted = f"{mode.about['dtype']} of shape {tuple(mode.about['stored'])}"
        raise InputError(f"The rows are {kind} of shape {shape}, those of the run were {wanted}.")
    fits = any(t.kind == "normalise" and "mean" not in t.options for t in config.data.transforms)
    return Table(one.columns, None, federation_of(config).prepare if fits else one.prepare)


def save(answers: Answers, path: Path) -> None:
    """Write the answers as CSV."""
    write_atomic(path, answers.csv().encode())
