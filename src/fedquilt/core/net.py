"""Net: the only door to ``nn.Module``. Outside it, a model is a dict of named tensors."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedquilt.core.errors import InputError
from fedquilt.core.params import Names, Params, nothing, under
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch


class Scored(NamedTuple):
    """What a network made of a batch: class scores, and the feature vectors its head made them from."""

    logits: Tensor
    features: Tensor


@dataclass(frozen=True)
class Net:
    """A network as a pure function of its tensors.

    Args:
        build: Makes the module, with no arguments; a class or a function that other processes can import.
            (A ready-made module also works, on the ``local`` engine: its weights are then the start.)
        frozen: Names that are never trained and never sent. Their values come from ``build`` under ``seed``, equal
            in every process; a module whose buffers are frozen stays in evaluation mode.
        channels_last: Memory layout of image batches. None: yes if there is a 2-d convolution (20-30 % faster on
            CPUs), but no with a strided 1 x 1 one of fewer than 16 input channels, which torch 2.13 gets wrong. It
            changes results in the last digits, so it is part of the model, not of the engine.
        inputs: The columns of a batch that the module is called with.
        seed: For the values of frozen tensors that ``build`` draws at random.

    Example:
        >>> net = Net.of(nn.Linear, in_features=4, out_features=2)
        >>> sorted(net.init(Seed(0)))
        ['bias', 'weight']
    """

    build: Callable[[], nn.Module] | nn.Module
    frozen: Names = nothing
    channels_last: bool | None = None
    inputs: tuple[str, ...] = ("x",)
    seed: int = 0
    _cell: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @staticmethod
    def of(build: Callable[..., nn.Module], /, *args: Any, **kwargs: Any) -> Net:
        """A net of ``build(*args, **kwargs)``."""
        return Net(partial(build, *args, **kwargs))

    # What the network is made of

    @property
    def names(self) -> tuple[str, ...]:
        """Every tensor that is not frozen: parameters and persistent buffers, in module order."""
        return self._resident().names

    @property
    def trainable(self) -> tuple[str, ...]:
        """The parameters among ``names`` that ``build`` left trainable; the rest are buffers, or stay as they are."""
        return self._resident().trainable

    @property
    def normalises(self) -> bool:
        """Whether it learns statistics of a batch (BatchNorm), which takes two rows at least."""
        return self._resident().normalises

    @property
    def norms(self) -> tuple[str, ...]:
        """The names of its BatchNorm layers; a layer's tensors are under its name."""
        return self._resident().norms

    @property
    def has_linear_head(self) -> bool:
        """Whether its module has the parts ``features`` and ``head``, and ``head`` is one linear layer."""
        module = self._resident().module
        head = getattr(module, "head", None)
        return isinstance(getattr(module, "features", None), nn.Module) and (
            isinstance(head, nn.Linear) and type(head).forward is nn.Linear.forward
        )

    def under(self, *prefixes: str) -> Names:
        """The names at or below these prefixes, each of which must be there."""
        for prefix in prefixes:
            if not any(under(prefix)(n) for n in self.names):
                tops = sorted({n.split(".")[0] for n in self.names})
                raise InputError(f"The network has no part {prefix!r}; its parts are {', '.join(tops)}.")
        return under(*prefixes)

    def init(self, seed: Seed) -> Params:
        """Fresh values for every name, drawn from the seed."""
        with seed.fold("init").ambient():
            slots = _slots(self._make())
        return {n: slots[n][0][0][slots[n][0][1]].detach().clone() for n in self.names}

    def full(self, params: Mapping[str, Tensor]) -> Params:
        """A complete state dict: these values plus the frozen ones, for saving a model."""
        resident = self._resident()
        whole = {**{n: t.detach() for n, t in params.items()}, **resident.frozen}
        return whole | {alias: whole[n].clone() for alias, n in resident.aliases.items() if n in whole}

    # Calling it

    def own(self, params: Mapping[str, Tensor], device: torch.device | None = None) -> Params:
        """Copies that training may change in place, on the device and in the layout the network runs with."""
        last = self._resident().channels_last
        copies = {}
        for name, tensor in params.items():
            layout = torch.channels_last if last and tensor.dim() == 4 else torch.contiguous_format
            copies[name] = tensor.detach().to(device=device, memory_format=layout, copy=True)
        return copies

    def __call__(self, params: Params, batch: Batch, train: bool = False) -> Any:
        """What the module returns for this batch with these values.

        In training mode, buffers among ``params`` (BatchNorm statistics) are updated in place, as modules do: give
        copies made with ``own``.
        """
        module, columns = self._ready(params, batch, train)
        return module(*columns)

    def split(self, params: Params, batch: Batch, train: bool = False) -> Scored:
        """As calling it, and also the features: for modules with the parts ``features`` and ``head``."""
        module, columns = self._ready(params, batch, train)
        parts = getattr(module, "features", None), getattr(module, "head", None)
        if not all(isinstance(part, nn.Module) for part in parts):
            raise InputError(
                f"{type(module).__name__} is not in two parts. This method needs a module that computes "
                "head(features(x)) and has both as submodules of these names."
            )
        found = module.features(*columns)
        return Scored(module.head(found), found)

    def linear_inputs(self, params: Params, batch: Batch) -> Params:
        """What enters each linear layer, under the name of its weight, when this batch is scored."""
        module, columns = self._ready(params, batch, train=False)
        seen: Params = {}
        hooks = [
            layer.register_forward_hook(partial(_keep_input, seen, f"{name}.weight" if name else "weight"))
            for name, layer in module.named_modules()
            if isinstance(layer, nn.Linear)
        ]
        try:
            module(*columns)
        finally:
            for hook in hooks:
                hook.remove()
        return seen

    @contextmanager
    def side_by_side(self) -> Iterator[None]:
        """Inside, it is called by ``torch.func.vmap``: with the ordinary memory layout, and nothing stays bound."""
        resident = self._resident()
        last, resident.channels_last = resident.channels_last, False
        try:
            yield
        finally:
            resident.channels_last, resident.bound = last, None

    def _ready(self, params: Params, batch: Batch, train: bool) -> tuple[Any, list[Tensor]]:
        resident = self._resident()
        resident.bind(params)
        resident.mode(train)
        columns = [batch.columns[name] for name in self.inputs]
        if resident.channels_last:
            columns = [c.contiguous(memory_format=torch.channels_last) if c.dim() == 4 else c for c in columns]
        return resident.module, columns

    def _make(self) -> nn.Module:
        if isinstance(self.build, nn.Module):
            return copy.deepcopy(self.build)  # noqa: TID251 - the user's own module must not change
        module = self.build()
        if not isinstance(module, nn.Module):
            raise InputError(f"Net's build must return a torch.nn.Module, got {type(module).__name__}.")
        return module

    def _resident(self) -> _Resident:
        if "resident" not in self._cell:
            with Seed(self.seed).fold("frozen").ambient():
                module = self._make()
            self._cell["resident"] = _Resident(module, self.frozen, self.channels_last)
        resident: _Resident = self._cell["resident"]
        return resident

    def __describe__(self) -> tuple[tuple[object, ...], dict[str, object]]:
        if isinstance(self.build, nn.Module):
            raise InputError(
                "This Net holds a ready-made module, which another process cannot rebuild. Give Net the class or a "
                "function that builds it, Net(MyModule) or Net.of(MyModule, width=64), or use engine='local'."
            )
        names = ("frozen", "channels_last", "inputs", "seed")
        return (self.build,), {n: getattr(self, n) for n in names}


def _keep_input(seen: Params, name: str, layer: nn.Module, given: tuple[Tensor, ...], out: Any) -> None:
    seen[name] = given[0].detach()


Slot = tuple[dict[str, Any], str]


def _slots(module: nn.Module) -> dict[str, list[Slot]]:
    """Every parameter and persistent buffer: its name and the places that hold it (several when tied)."""
    found: dict[str, list[Slot]] = {}
    by_identity: dict[int, str] = {}
    for prefix, sub in module.named_modules(remove_duplicate=False):
        lead = prefix + "." if prefix else ""
        transient = sub._non_persistent_buffers_set
        for holder in (sub._parameters, sub._buffers):
            for leaf, tensor in holder.items():
                if tensor is None or leaf in transient:
                    continue
                name = by_identity.setdefault(id(tensor), lead + leaf)
                places = found.setdefault(name, [])
                if not any(place is holder and key == leaf for place, key in places):
                    places.append((holder, leaf))
    return found


class _Resident:
    """The one module of a process, into which values are bound instead of copied."""

    def __init__(self, module: nn.Module, frozen: Names, channels_last: bool | None) -> None:
        self.module = module
        slots = _slots(module)
        parameters = {id(p) for p in module.parameters() if p.requires_grad}
        holds = {id(holder[leaf]): n for n, places in slots.items() for holder, leaf in places}
        saved = module.state_dict(keep_vars=True).items()
        self.aliases = {n: holds[id(t)] for n, t in saved if n not in slots and id(t) in holds}  # of tied tensors
        self.names = tuple(n for n in slots if not frozen(n))
        self.trainable = tuple(n for n in self.names if id(slots[n][0][0][slots[n][0][1]]) in parameters)
        self.slots = {n: slots[n] for n in self.names}
        self.frozen: Params = {}
        for name in slots.keys() - self.slots.keys():
            for holder, leaf in slots[name]:
                holder[leaf] = self.frozen.setdefault(name, holder[leaf].detach())
        self.channels_last = channels_last if channels_last is not None else _convolves(module)
        self.recurrent = [m for m in module.modules() if isinstance(m, nn.RNNBase)]
        still = {id(holder) for name in self.frozen for holder, _ in slots[name]}
        self.still = [m for m in module.modules() if m._buffers and id(m._buffers) in still]
        batch_norms = {n: m for n, m in module.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)}
        self.norms = tuple(batch_norms)
        self.normalises = any(m not in self.still for m in batch_norms.values())
        self.transient = [
            (m._buffers, leaf, buffer.clone())
            for m in module.modules()
            for leaf, buffer in m._buffers.items()
            if buffer is not None and leaf in m._non_persistent_buffers_set
        ]
        self.bound: Params | None = None
        self.training: bool | None = None
        self.device = torch.device("cpu")

    def bind(self, params: Params) -> None:
        if params is self.bound:
            return
        if not params.keys() >= self.slots.keys():
            lacking = [n for n in self.names if n not in params]
            raise InputError(f"The network lacks values for {lacking[:5]}. A model needs every name of net.names.")
        for name, places in self.slots.items():
            for holder, leaf in places:
                holder[leaf] = params[name]
        for buffers, leaf, first in self.transient:  # what a module keeps for itself must not pass between clients
            buffers[leaf] = first.clone()
        for module in self.recurrent:
            module._flat_weights = [getattr(module, n) for n in module._flat_weights_names]
        self._follow(params)
        self.bound = params

    def _follow(self, params: Params) -> None:
        device = next((t.device for t in params.values()), self.device)
        if device != self.device:
            holders: list[dict[str, Any]] = [h for m in self.module.modules() for h in (m._parameters, m._buffers)]
            for holder in holders:
                for leaf, tensor in holder.items():
                    if tensor is not None and tensor.device != device:
                        holder[leaf] = tensor.to(device)
            self.device = device

    def mode(self, train: bool) -> None:
        if train is not self.training:
            self.module.train(train)
            for module in self.still:
                module.eval()
            self.training = train


def _convolves(module: nn.Module) -> bool:
    """Whether channels_last pays off and is safe: there is a 2-d convolution, and none that it breaks."""
    layers = [m for m in module.modules() if isinstance(m, nn.Conv2d)]
    return bool(layers) and not any(_corrupts(layer) for layer in layers)


def _corrupts(layer: nn.Conv2d) -> bool:
    """Whether channels_last is unsafe here: a strided 1 x 1 kernel on few channels.

    On CPUs, the backward pass of torch 2.13 (oneDNN) writes outside its memory for fewer than 8 channels per group in
    that layout; below 16, to be on the safe side, such modules keep the ordinary one.
    """
    pointwise = all(size == 1 for size in layer.kernel_size)
    strided = any(step > 1 for step in layer.stride)
    return pointwise and strided and layer.in_channels // layer.groups < 16


def logits_of(out: Any) -> Tensor:
    """The class scores in what a network returned: the tensor itself, its ``logits``, or its first item."""
    if isinstance(out, Tensor):
        return out
    found = getattr(out, "logits", None)
    if isinstance(found, Tensor):
        return found
    if isinstance(out, Sequence) and out and isinstance(out[0], Tensor):
        return out[0]
    raise InputError(f"No class scores in the network's output of type {type(out).__name__}.")
