"""The client's half in a Flower simulation: what a Ray actor does with a message.

Every actor can serve every client: the data lie in Ray's object store, once for each machine, and clients' states
travel with the work, as they do to worker processes.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedquilt import own_code
from fedquilt.core.describe import build, find
from fedquilt.core.lazy import LazyColumn, built, told
from fedquilt.core.seed import Seed
from fedquilt.engines.flower.jobs import frame_at, read
from fedquilt.engines.worker import Begin, JobFailed, WorkerJob, answer
from fedquilt.records.record import pack, record, unpack
from fedquilt.rounds.client import ClientSide, Evaluation, Task, one_thread

Arrays = dict[str, NDArray[np.uint8]]  # the bytes of each tensor
Shapes = dict[str, Any]  # of each its shape, and an empty one of its type; or how its rows are read
_kept: dict[str, Any] = {}  # of this process: the side that it serves, and what that was made of


@record(name="fedquilt.engines.flower.simulated:Batch")
class JobBatch:
    """The jobs of one message, and where their downloads and global models are among its frames."""

    jobs: list[WorkerJob]
    downs: list[int]
    wholes: list[int | None]


class Actor:
    """Answers messages in a Ray actor.

    Args:
        data: Ray's reference to the tensors of the federation, as bytes.
    """

    def __init__(self, data: Any = None) -> None:
        self.data = data

    def __call__(self, kind: str, frames: dict[str, bytes], context: object) -> dict[str, bytes]:
        """Do the jobs of a message; what cannot even begin is told as one failure."""
        try:
            side = self._side(frames["begin"])
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            return {"answers": pack([JobFailed(-1, "begin", reason, traceback.format_exc(), True)])}
        batch: JobBatch = read(frames, "batch", JobBatch)
        with one_thread():
            found = [
                answer(side, job, frame_at(frames, down), None if whole is None else frame_at(frames, whole))
                for job, down, whole in zip(batch.jobs, batch.downs, batch.wholes, strict=True)
            ]
        return {"answers": pack(found)}

    def _side(self, begin: bytes) -> ClientSide:
        import ray

        message: Begin = unpack(begin)
        where = self.data.hex()
        if _kept.get("where") != where:
            _kept.clear()
            _kept.update(where=where, tensors=tensors_of(ray.get(self.data), message.index))
        if _kept.get("begin") != begin:
            own_code.let_in(own_code.unpacked(message.code))
            source = find(message.source).from_shared(_kept["tensors"], message.layout, build(message.prepare))
            side = ClientSide(build(message.method), source, Seed(message.seed), build(message.score))
            _kept.update(begin=begin, side=side)
        found: ClientSide = _kept["side"]
        return found


def flat_arrays(tensors: Mapping[str, Tensor]) -> tuple[Arrays, Shapes]:
    """The bytes of tensors as arrays, which Ray shares without a copy, and an index by which to read them."""
    arrays: Arrays = {}
    index: Shapes = {}
    for name, tensor in tensors.items():
        if isinstance(tensor, LazyColumn):
            index[name] = told(tensor)
            continue
        index[name] = (list(tensor.shape), tensor.new_empty(0))
        whole = tensor.detach().cpu().contiguous().reshape(-1)
        arrays[name] = whole.view(torch.uint8).numpy() if whole.numel() else whole.new_empty(0).numpy()
    return arrays, index


def tensors_of(arrays: Arrays, index: Shapes) -> dict[str, Tensor]:
    """The tensors again, without a copy. The memory is everybody's and read-only; nobody writes to a client's
    samples."""
    found: dict[str, Tensor] = {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writ", category=UserWarning)
        for name, entry in index.items():
            if isinstance(entry, dict):
                found[name] = built(entry)
                continue
            shape, kind = entry
            count = int(torch.Size(shape).numel())
            found[name] = (torch.frombuffer(arrays[name], dtype=kind.dtype) if count else kind).view(shape)
    return found


def stripped(number: int, what: Task | Evaluation) -> WorkerJob:
    """A job without the frames that travel beside it; b"" stands for a global model that is asked for."""
    less = replace(what, down=None)
    return WorkerJob(
        number, replace(less, whole=b"") if isinstance(less, Evaluation) and less.whole is not None else less
    )
