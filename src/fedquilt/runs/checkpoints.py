"""Models of every round: what each client sent, as a model, and what the server made of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from fedquilt.core.exchange import Method, Reply
from fedquilt.core.params import Params, add
from fedquilt.methods.fedavg import FedAvg
from fedquilt.methods.merging.localize_stitch import LocalizeStitch
from fedquilt.runs.callbacks import Callback
from fedquilt.runs.snapshot import Snapshot
from fedquilt.storage.files import file_name, write_atomic


class Checkpoints(Callback):
    """Writes ``checkpoints/round_TT/client{id}_ep{E}.safetensors`` and ``checkpoints/round_TT/NAME.safetensors``.

    round_TT holds the model after T rounds (round_00: none yet) and the clients' models that began from it; E counts
    local epochs from 1, so client0_ep4 was trained for four. NAME is 'stitched' for Localize-and-Stitch,
    'federated_avg' for FedAvg, 'merged' for others. A client's model is the start and the change *that the server
    received*: of a localised change only the chosen part, because nothing else left the client.
    """

    def __init__(self, run: Path, method: Method) -> None:
        self.run, self.net = run, getattr(method, "net", None)
        chain = [method]
        while (inner := getattr(chain[-1], "base", None)) is not None:
            chain.append(inner)
        stitches = any(isinstance(m, LocalizeStitch) for m in chain)
        self.name = "stitched" if stitches else "federated_avg" if isinstance(method, FedAvg) else "merged"
        self.trains = next((m for m in chain if isinstance(m, FedAvg)), None)

    def on_reply(self, round: int, reply: Reply[Any], state: object) -> None:
        """The client's model, which began from the one after the round before."""
        done = round - 1
        delta, shared = _delta(reply.upload), getattr(state, "shared", None)
        if delta is None or not isinstance(shared, dict) or delta.keys() != shared.keys():
            return
        model = add(shared, delta)
        self._write(model, f"round_{done:02d}/client{file_name(reply.client)}_ep{self._epochs(done)}")

    def on_round_end(self, snapshot: Snapshot) -> None:
        """What the server made of them."""
        model = snapshot.global_model()
        if model is not None:
            self._write(model, f"round_{snapshot.round:02d}/{self.name}")

    def _epochs(self, done: int) -> int:
        if self.trains is None:
            return 1
        return (self.trains.epochs_first or self.trains.epochs) if done == 0 else self.trains.epochs

    def _write(self, model: Mapping[str, Tensor], name: str) -> None:
        whole = self.net.full(model) if self.net is not None and model.keys() >= set(self.net.names) else dict(model)
        content = safetensors.torch.save({n: t.contiguous() for n, t in whole.items()})
        write_atomic(self.run / "checkpoints" / f"{name}.safetensors", content, self.run)


def _delta(upload: object) -> Params | None:
    """The change in an upload, also in one that is wrapped."""
    while upload is not None:
        found = getattr(upload, "delta", None)
        if isinstance(found, dict):
            return found
        upload = getattr(upload, "inner", None)
    return None
