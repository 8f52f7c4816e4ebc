"""What is left when a run ends: its models, and the least that must be beaten."""

from __future__ import annotations

import json

import safetensors.torch

from fedquilt.core.exchange import Method
from fedquilt.core.params import Params
from fedquilt.engines.rounds import Rounds
from fedquilt.runs.files import write_atomic
from fedquilt.runs.snapshot import personal_model
from fedquilt.runs.storage import RunFolder


def write_global(folder: RunFolder, rounds: Rounds, name: str) -> None:
    """The global model as models/NAME.safetensors, if there is one."""
    model = rounds.method.global_model(rounds.state)
    if model is not None:
        _write(folder, rounds.method, model, name)


def write_personal(folder: RunFolder, rounds: Rounds) -> None:
    """The model of every client as models/client-ID.safetensors."""
    for client in rounds.source.examined:
        name = client if isinstance(client, int) else json.dumps(client).replace("/", "%2F").strip('"')
        _write(folder, rounds.method, personal_model(rounds, client), f"client-{name}")


def _write(folder: RunFolder, method: Method, model: Params, name: str) -> None:
    net = getattr(method, "net", None)
    whole = model if net is None else net.full(model)
    content = safetensors.torch.save({n: t.contiguous() for n, t in whole.items()})
    write_atomic(folder.path / f"models/{name}.safetensors", content, folder.path)
