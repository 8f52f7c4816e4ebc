"""The one module of a process behind a Net: values are bound into it, and what is frozen stays in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from fedquilt.core.params import Names, Params
from fedquilt.errors import InputError
from fedquilt.kernels import accelerate

Tensors = dict[str, Any]  # the parameters or the buffers of a module: torch types them differently
Slot = tuple[Tensors, str]


def slots_of(module: nn.Module) -> dict[str, list[Slot]]:
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


def _refuse_hooks_of_parameters(module: nn.Module) -> None:
    """Parameters are bound anew for each client, so their own hooks would never be called."""
    for name, tensor in module.named_parameters():
        if tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None):
            raise InputError(
                f"Parameter '{name}' of {type(module).__name__} has a hook (register_hook), which is never called "
                "here: each client's values replace the parameter. Change the gradient in a term of the loss, or "
                "use a hook of the module (register_full_backward_hook)."
            )


class Resident:
    """The one module of a process, into which values are bound instead of copied."""

    def __init__(self, module: nn.Module, frozen: Names, channels_last: bool | None = None, fast: bool = False) -> None:
        _refuse_hooks_of_parameters(module)
        self.module = module
        self.channels_last = channels_last if channels_last is not None else _convolves(module)
        accelerate(module, fast=fast and self.channels_last)  # which is the layout that fast kernels give
        slots = slots_of(module)
        first = {name: holder[leaf] for name, ((holder, leaf), *_) in slots.items()}
        saved = module.state_dict(keep_vars=True)
        self.aliases = _aliases(saved, slots)
        self.size = sum(t.numel() for t in saved.values())
        held = _held(module, slots, frozen)
        self.names = tuple(n for n in slots if n not in held)
        parameters = {id(p) for p in module.parameters() if p.requires_grad}
        self.trainable = tuple(n for n in self.names if id(first[n]) in parameters)
        self.images = [n for n in self.names if first[n].dim() == 4]
        self.slots = {n: slots[n] for n in self.names}
        self.frozen = _let_go({n: places for n, places in slots.items() if n in held})
        self._kept = [(n, *place) for n in self.frozen for place in slots[n]]
        self._as_built = self._marks()
        self._look_at_parts()
        self._laid: tuple[Params, tuple[int, ...], Params] | None = None
        self.bound: Params | None = None
        self.training: bool | None = None
        self.device = torch.device("cpu")

    def _look_at_parts(self) -> None:
        """Which parts need care: those that stay in evaluation mode, those that count rows, those with memory."""
        module = self.module
        self.recurrent = [m for m in module.modules() if isinstance(m, nn.RNNBase)]
        self.still = _still(module, {id(h) for _, h, _ in self._kept}, self.slots)
        batch_norms = {n: m for n, m in module.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)}
        self.norms = tuple(batch_norms)
        self.normalises = any(m not in self.still for m in batch_norms.values())
        self.transient = _transient(module)

    def bind(self, params: Params) -> None:
        if params is self.bound:
            return
        if not params.keys() >= self.slots.keys():
            lacking = [n for n in self.names if n not in params]
            raise InputError(f"The network lacks values for {lacking[:5]}. A model needs every name of net.names.")
        self._check_frozen(params)
        for name, places in self.slots.items():
            for holder, leaf in places:
                holder[leaf] = params[name]
        self._follow(params)
        for module in self.recurrent:
            module._flat_weights = [getattr(module, n) for n in module._flat_weights_names]
        for buffers, leaf, first in self.transient:  # what a module keeps for itself must not pass between clients
            buffers[leaf] = first.clone()
        self.bound = params

    def laid_out(self, params: Params) -> Params:
        """The same values with kernels in the layout the network runs with: converted once, not in every call."""
        if any(n not in params or params[n].is_inference() for n in self.images):
            return params
        versions = tuple(params[n]._version for n in self.images)
        if self._laid is None or self._laid[0] is not params or self._laid[1] != versions:
            kernels = {n: params[n].contiguous(memory_format=torch.channels_last) for n in self.images}
            self._laid = (params, versions, {**params, **kernels})
        return self._laid[2]

    def held(self) -> list[tuple[Tensors, str, torch.Tensor]]:
        """Which values are in which places."""
        return [(holder, leaf, holder[leaf]) for places in self.slots.values() for holder, leaf in places]

    def hold(self, values: list[tuple[Tensors, str, torch.Tensor]]) -> None:
        """Put these values back; nothing counts as bound."""
        for holder, leaf, value in values:
            holder[leaf] = value
        for module in self.recurrent:
            module._flat_weights = [getattr(module, n) for n in module._flat_weights_names]
        self.bound = None

    def _follow(self, params: Params) -> None:
        device = next((t.device for t in params.values()), self.device)
        if device != self.device:
            holders: list[Tensors] = [h for m in self.module.modules() for h in (m._parameters, m._buffers)]
            for holder in holders:
                for leaf, tensor in holder.items():
                    if tensor is not None and tensor.device != device:
                        holder[leaf] = tensor.to(device)
            self.transient = [(buffers, leaf, first.to(device)) for buffers, leaf, first in self.transient]
            self._as_built = self._marks()
            self.device = device

    def _marks(self) -> list[tuple[int, int]]:
        """Which tensors are in the places of what is frozen, and how often each was written to."""
        held = [holder[leaf] for _, holder, leaf in self._kept]
        return [(id(t), -1 if t is None or t.is_inference() else t._version) for t in held]

    def _check_frozen(self, params: Params) -> None:
        """Frozen values are the same in every process and for every client: neither a pass nor a model changes them."""
        if self._marks() != self._as_built:
            changed = {n for (n, _, _), a, b in zip(self._kept, self._marks(), self._as_built, strict=True) if a != b}
            raise InputError(
                f"A pass of the network changed {sorted(changed)[:5]}, which is frozen: build left it, or all "
                "parameters of its part, with requires_grad=False, or it is named in frozen=. Make what a "
                "pass changes a buffer (register_buffer), of a part that is trained or with persistent=False."
            )
        if not params.keys().isdisjoint(self.frozen):
            self.check_held(params)

    def check_held(self, values: Mapping[str, torch.Tensor]) -> None:
        """Refuse values for frozen names that are not the network's own, as an older model or state may hold."""
        for name in sorted(values.keys() & self.frozen.keys()):
            if not torch.equal(values[name].cpu(), self.frozen[name]):
                raise InputError(
                    f"This model's '{name}' differs from the network's, where it is frozen and comes from build. The "
                    "model was made by another build, or when that parameter was still trained and sent: train "
                    "it again."
                )

    def mode(self, train: bool) -> None:
        if train is not self.training:
            self.module.train(train)
            for module in self.still:
                module.training = False
            self.training = train


def _aliases(saved: Mapping[str, torch.Tensor], slots: Mapping[str, list[Slot]]) -> dict[str, str]:
    """The further names of tied tensors, and under which name they have their slots."""
    holds = {id(holder[leaf]): n for n, places in slots.items() for holder, leaf in places}
    return {n: holds[id(t)] for n, t in saved.items() if n not in slots and id(t) in holds}


def _let_go(slots: Mapping[str, list[Slot]]) -> Params:
    """What is frozen, in its places without autograd."""
    frozen: Params = {}
    for name, places in slots.items():
        for holder, leaf in places:
            holder[leaf] = frozen.setdefault(name, holder[leaf].detach())
    return frozen


def _transient(module: nn.Module) -> list[tuple[Tensors, str, torch.Tensor]]:
    """The buffers that no model holds: where they are, and their first values."""
    return [
        (m._buffers, leaf, buffer.clone())
        for m in module.modules()
        for leaf, buffer in m._buffers.items()
        if buffer is not None and leaf in m._non_persistent_buffers_set
    ]


def _held(module: nn.Module, slots: Mapping[str, list[Slot]], frozen: Names) -> set[str]:
    """The frozen names: those that are named, parameters that ``build`` left with ``requires_grad=False``, and the
    buffers of every part (a module with modules in it) that has parameters and leaves none of them trainable."""
    tensors = {n: places[0][0][places[0][1]] for n, places in slots.items()}
    fixed = {id(t) for t in tensors.values() if isinstance(t, nn.Parameter) and not t.requires_grad}

    def walk(part: nn.Module) -> None:
        parameters = list(part.parameters())
        whole = bool(parameters) and not any(p.requires_grad for p in parameters)
        if whole and next(part.children(), None) is not None:
            fixed.update(map(id, part.buffers()))
        else:
            for child in part.children():
                walk(child)

    walk(module)
    return {n for n, t in tensors.items() if frozen(n) or id(t) in fixed}


def _still(module: nn.Module, frozen: set[int], moving: Mapping[str, list[Slot]]) -> list[nn.Module]:
    """The modules that stay in evaluation mode: those with frozen buffers, and all of a part that is wholly frozen."""
    busy = {id(holder) for places in moving.values() for holder, _ in places}
    found = [m for m in module.modules() if m._buffers and id(m._buffers) in frozen]

    def walk(part: nn.Module) -> None:
        holders = {id(h) for m in part.modules() for h in (m._parameters, m._buffers)}
        if holders & frozen and not holders & busy:
            found.extend(part.modules())
        else:
            for child in part.children():
                walk(child)

    walk(module)
    return found


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
