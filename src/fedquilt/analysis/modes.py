"""Inference modes as files: plain networks of the recipe, each with its head, in the folder of a run.

Their answers for rows without labels too: a folder of images, an .npz or a table.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from fedquilt.analysis.afterwards import config_in
from fedquilt.analysis.heads import Played
from fedquilt.analysis.tails import evaluated, whole_views
from fedquilt.config.config import Config
from fedquilt.config.data import federation_of, prepare_of
from fedquilt.core.columns import PerColumn, own, sums_of
from fedquilt.core.net import logits_of
from fedquilt.core.params import Params
from fedquilt.core.plain import JSON, Array, Row
from fedquilt.core.table import ClientId, Table
from fedquilt.data import Arrays, Federation, imports
from fedquilt.data.checks import input_column
from fedquilt.data.npz import load
from fedquilt.data.sources.formats.pictures import ENDINGS, decoded
from fedquilt.data.tabular import stored_like
from fedquilt.errors import InputError, StorageError
from fedquilt.models.registry import net as net_called
from fedquilt.pieces.realign import Realign, masked, with_head
from fedquilt.rounds.client import one_thread
from fedquilt.runs.build import row_shape
from fedquilt.runs.preparation import kept_in
from fedquilt.storage.files import to_json, write_atomic

FOLDER, MASK = "modes", "mask"


def realigned(folder: str | Path, realign: Realign | None = None, to: Path | None = None) -> Row:
    """Save the modes of a finished run and score them; training-free, and the run itself stays as it is.

    ``universal`` (where there is a fixed frame), ``global`` (the realigned global head), ``plain`` (the global head as
    trained), and for each client ``client-ID``: its realigned head, and as a tensor ``mask`` which classes it knows.
    A client without a head of its own gets the realigned global one; its file says so (``fallback``).

    Args:
        folder: Of a run.
        realign: How; as the run's method says if None.
        to: Where files go; ``RUN/modes`` if None.

    Returns:
        The scores of :func:`fedquilt.analysis.tails.evaluate`, and the files.
    """
    with one_thread():
        played = Played.of(Path(folder))
        rule = realign or getattr(played.learned.method, "realign", None) or Realign()
        place = to or played.folder / FOLDER
        files = _saved(played, rule, place)
        found = evaluated(played, rule)
    write_atomic(place / "scores.json", to_json(found, indent=1).encode())
    return {**found, "files": files}


def _saved(played: Played, rule: Realign, place: Path) -> list[str]:
    shared = played.heads()
    if shared is None:
        raise InputError(
            "Realignment needs a global model that is a body and a linear layer called head; "
            f"{played.config.method.kind} with the model {played.config.model.kind} has none. "
            "'fedquilt tails RUN' scores it all the same."
        )
    names = {"universal": "universal", "global": "plain", "realigned": "global"}
    files = [
        _write(played, place / f"{names[view]}.safetensors", with_head(shared.body, head), {"mode": names[view]}, rule)
        for view, head in whole_views(shared, rule).items()
    ]
    for client, counts in zip(played.clients, played.counts, strict=True):
        heads, what = played.heads(client), {"mode": "personal", "client": client, "fallback": False}
        if heads is None or heads.own is None:
            model, what = with_head(shared.body, rule.whole(shared.general)), {**what, "fallback": True}
        else:
            model = with_head(heads.body, rule.own(heads.general, heads.own))
        files.append(_write(played, place / file_of(client), {**model, MASK: counts > 0}, what, rule))
    return files


def file_of(client: ClientId) -> str:
    """The name of a client's file."""
    name = str(client) if isinstance(client, int) else json.dumps(client).replace("/", "%2F").strip('"')
    return f"client-{name}.safetensors"


def _write(played: Played, path: Path, model: Params, what: Row, rule: Realign) -> str:
    whole = {n: t.contiguous() for n, t in played.plain.full(model).items()}
    data = played.federation
    about = {
        **what,
        "rounds": played.learned.done,
        "realign": asdict(rule),
        "classes": data.classes,
        "stored": list(data.columns["x"].shape[1:]),
        "dtype": str(data.columns["x"].dtype),
        "shape": list(row_shape(data)),
    }
    content = safetensors.torch.save(whole, {"fedquilt": json.dumps(about)})
    write_atomic(path, content)
    return str(path)


@dataclass(frozen=True)
class Mode:
    """A saved mode: the tensors, the classes it may answer (None for all), and what the file says about itself."""

    model: Params
    mask: Tensor | None
    about: Row


def load_mode(path: str | Path) -> Mode:
    """Read a mode that ``realigned`` saved."""
    if not Path(path).is_file():
        raise InputError(f"There is no file '{path}'. Make the modes of a run first: fedquilt realign RUN")
    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            about = json.loads((file.metadata() or {})["fedquilt"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    except (safetensors.SafetensorError, OSError, ValueError, KeyError) as error:
        raise StorageError(f"'{path}' is no saved mode: {error}. Make it again: fedquilt realign RUN") from error
    mask = tensors.pop(MASK, None)
    if mask is not None and (mask.dtype != torch.bool or mask.shape != (about["classes"],)):
        raise StorageError(f"'{path}' has a mask that is none. Make it again: fedquilt realign RUN")
    return Mode(tensors, mask, about)


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
    if path.is_dir():
        return *_pictures(path, mode), None
    found = load(path)
    if "x" not in found:
        raise InputError(f"{path} has the keys {', '.join(sorted(found)) or '(none)'}. It needs x, the rows.")
    labels = _labels(path, found, mode.about["classes"]) if "y" in found else None
    return tuple(map(str, range(len(found["x"])))), found["x"], labels


def _pictures(path: Path, mode: Mode) -> tuple[tuple[str, ...], Array]:
    """The images of a folder, named and stored as the run's were."""
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
    return tuple(str(p.relative_to(path)) for p in files), images


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
