"""A pretended device: it computes on the CPU, and refuses to mix its tensors with the CPU's, as CUDA does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from fedquilt.core.table import ClientId
from fedquilt.engines.local import Local
from fedquilt.rounds.client import Task
from helpers.engines import Updates

DEVICE = torch.device("lazy", 0)  # torch knows its name and walks graphs on it in this thread; it has no kernels there
CPU = torch.device("cpu")
BOTH = ("copy_", "index", "index_put", "index_put_", "_index_put_impl_")  # what takes tensors of both


class Far(Tensor):
    """A tensor on the pretended device; ``near`` holds its numbers."""

    near: Tensor

    @staticmethod
    def __new__(cls, near: Tensor) -> Far:
        shape = near.shape, near.stride(), near.storage_offset()
        made: Far = Tensor._make_wrapper_subclass(cls, *shape, dtype=near.dtype, device=DEVICE)
        made.near = near
        return made

    def tolist(self) -> Any:
        """Its numbers, which torch itself gives of no subclass."""
        return self.near.tolist()

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Any operation on such tensors; also outside :class:`Pretending`."""
        return computed(op, args, kwargs or {})


def computed(op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """What an operation gives, on the device where CUDA would have it; or a refusal, where CUDA would refuse."""
    given = tree_leaves((args, kwargs))
    tensors, far = [t for t in given if isinstance(t, Tensor)], [t for t in given if isinstance(t, Far)]
    asked = next((d for d in given if isinstance(d, torch.device)), DEVICE if far else CPU)
    if not far and asked != DEVICE:
        return op(*args, **kwargs)
    if kwargs.get("generator") is not None:
        raise RuntimeError(f"Expected a {DEVICE.type!r} device type for generator but found 'cpu' ({op}).")
    mixed = far and any(not isinstance(t, Far) and t.dim() for t in tensors)  # a lone number may come from the CPU
    if mixed and op._schema.name.removeprefix("aten::") not in BOTH:
        raise RuntimeError(f"Expected all tensors to be on the same device, but {op} found both {DEVICE} and cpu.")
    near = tree_map_only(torch.device, lambda _: CPU, tree_map_only(Far, lambda t: t.near, (args, kwargs)))
    found = op(*near[0], **near[1])
    if asked != DEVICE:
        return found
    written = [t for t in far if t.near is found]  # in place
    return written[0] if written else tree_map_only(Tensor, Far, found)


class Pretending(TorchDispatchMode):
    """Inside, tensors can be moved to the pretended device, and made there."""

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Any operation."""
        return computed(op, args, kwargs or {})


class Pretended(Local):
    """As ``local``, with training on the pretended device."""

    def __init__(self) -> None:
        super().__init__(str(DEVICE))

    def updates(self, clients: Sequence[ClientId], task: Callable[[ClientId], Task]) -> Updates:
        """One after another."""
        for client in clients:
            with Pretending():
                outcome = self.side.update(task(client))
            yield client, outcome
