"""Inference modes as files: plain networks of the recipe, each with its head, in the folder of a run. And answers of
them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from fedquilt.analysis.afterwards import config_in
from fedquilt.analysis.heads import PlayedRun
from fedquilt.analysis.predict import Answers, answered, reader_of
from fedquilt.analysis.tails import evaluated
from fedquilt.core.net import logits_of
from fedquilt.core.params import Params
from fedquilt.core.plain import Row
from fedquilt.core.table import ClientId
from fedquilt.errors import InputError, StorageError
from fedquilt.models.registry import net as net_called
from fedquilt.pieces.realign import Realign, masked, with_head
from fedquilt.rounds.client import one_thread
from fedquilt.runs.build import row_shape
from fedquilt.storage.files import to_json, write_atomic

FOLDER, MASK = "modes", "mask"


def realigned(folder: str | Path, realign: Realign | None = None, to: Path | None = None) -> Row:
    """Save the modes of a finished run and score them; training-free, and the run itself stays as it is.

    ``universal`` (where there is a fixed frame), ``global`` (the realigned global head), ``plain`` (the global head as
    trained), ``adjusted`` and ``universal_adjusted`` (the plain head and the frame, their scores adjusted for the class
    shares of all clients' training samples), and for each client ``client-ID``: its realigned head, and as a tensor
    ``mask`` which classes it knows. A client without a head of its own gets the realigned global one; its file says so
    (``fallback``).

    Args:
        folder: Of a run.
        realign: How; as the run's method says if None.
        to: Where files go; ``RUN/modes`` if None.

    Returns:
        The scores of :func:`fedquilt.analysis.tails.evaluate`, and the files.
    """
    with one_thread():
        played = PlayedRun.of(Path(folder))
        rule = realign or getattr(played.learned.method, "realign", None) or Realign()
        place = to or played.folder / FOLDER
        files = _saved(played, rule, place)
        found = evaluated(played, rule)
    write_atomic(place / "scores.json", to_json(found, indent=1).encode())
    return {**found, "files": files}


def _saved(played: PlayedRun, rule: Realign, place: Path) -> list[str]:
    shared = played.heads()
    if shared is None:
        raise InputError(
            "Realignment needs a global model that is a body and a linear layer called head; "
            f"{played.config.method.kind} with the model {played.config.model.kind} has none. "
            "'fedquilt tails RUN' evaluates it anyway."
        )
    views = rule.views(shared, played.counts.sum(0))
    named = {"global" if view == "realigned" else view: head for view, head in views.items()}
    files = [
        _write(played, place / f"{name}.safetensors", with_head(shared.body, head), {"mode": name}, rule)
        for name, head in named.items()
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


def _write(played: PlayedRun, path: Path, model: Params, what: Row, rule: Realign) -> str:
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
        raise InputError(f"There is no file '{path}'. Create them first: fedquilt realign RUN")
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


Kind = Literal["universal", "global", "plain", "adjusted", "universal_adjusted", "personal"]


def predict(folder: str | Path, data: str | Path, mode: Kind = "global", client: ClientId | None = None) -> Answers:
    """Use a saved mode of a run (``fedquilt realign RUN``) on new rows.

    Args:
        folder: Of the run.
        data: As :func:`fedquilt.analysis.predict.predict` takes them.
        mode: 'universal', 'global' (realigned), 'plain', 'adjusted' (for class shares), 'universal_adjusted' or
            'personal'.
        client: Whose model, for 'personal'.

    Example:
        >>> predict("runs/digits_lt-1a2b3c4d", "new.npz", "personal", client=3).classes  # doctest: +SKIP
        tensor([1, 0, 4])
    """
    if (mode == "personal") != (client is not None):
        raise InputError("--client requires --mode personal: --mode personal --client 3.")
    name = file_of(client) if client is not None else f"{mode}.safetensors"
    place, config = Path(folder) / FOLDER / name, config_in(Path(folder))
    if not place.is_file() and place.parent.is_dir():
        there = sorted(p.stem for p in place.parent.glob("*.safetensors"))
        raise InputError(f"'{place.parent}' has no {place.stem}. There are: {', '.join(there[:12])}.")
    chosen, reader = load_mode(place), reader_of(Path(folder), config)
    shape, classes = tuple(chosen.about["shape"]), chosen.about["classes"]
    net = net_called(config.model.kind, shape, classes, **config.model.options)
    model, rows = net.taken(chosen.model), reader.read(data)
    return answered(rows, reader.inputs, lambda b: logits_of(net(model, b)), lambda s: masked(s, chosen.mask))
