"""Whether steps of a user's code may be captured: only code that is pure gives the same when it is played again.

Three guards, from the cheapest on. Its text is read (``core/capture/reach.py``): code that prints, asks for the time,
draws from Python's own generators, stops in a debugger or sets attributes is not captured. What it can reach
(attributes of modules with what hangs on them, attributes of classes, closures, globals that it names) is marked
before and after the calls that are recorded, and at every client update. And steps that are played are compared with
plain ones, again and again (``core/capture/steps.py``), for what neither of the two can see. The library's own code is
known to be pure.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.overrides import TorchFunctionMode

from fedquilt.core.capture.marks import Mark, Marker, belongs
from fedquilt.core.capture.reach import LIBRARY, Reach
from fedquilt.core.resident import Resident

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_READS = {
    Tensor.numpy: "numpy()",
    Tensor.__array__: "numpy",
    Tensor.tolist: "tolist()",
    Tensor.data_ptr: "data_ptr()",
    Tensor.__dlpack__: "dlpack",
}


def own(module: nn.Module) -> bool:
    """Whether a network is the library's own: its class is, and no part of it is a user's."""
    return belongs(type(module), "fedquilt") and all(_known_part(m) for m in module.modules())


def _known_part(module: nn.Module) -> bool:
    forward = vars(module).get("forward")
    while isinstance(forward, functools.partial | types.MethodType):
        forward = forward.func if isinstance(forward, functools.partial) else forward.__func__
    return belongs(type(module), *LIBRARY, "transformers") and (forward is None or belongs(forward, *LIBRARY))


class Hooks:
    """Where somebody could hook into calls of these modules and of their parts."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self.places = [
            (path or type(module).__name__, getattr(part, name))
            for module in modules
            for path, part in module.named_modules()
            for name in _HOOKS
        ]

    def found(self) -> str | None:
        """Who did; None: nobody but this library."""
        if any(getattr(torch_module, f"_global{name}", None) for name in _HOOKS):
            return "a hook is registered for all modules"
        for path, hooks in self.places:
            for hook in hooks.values() if hooks else ():
                while isinstance(hook, functools.partial):
                    hook = hook.func
                if not belongs(hook, "fedquilt"):
                    return f"a hook is registered on {path}"
        return None


class ReadWatch(TorchFunctionMode):
    """Notes where code inside takes numbers out of tensors, past the kernels: what it makes of them is not seen."""

    def __init__(self) -> None:
        super().__init__()
        self.found: str | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _READS:
            self.found = f"it reads a tensor's numbers by {_READS[func]}"
        return func(*args, **(kwargs or {}))


class PurityWatch:
    """What may not change where a user's networks and loss are captured.

    Args:
        residents: The networks' modules; none where a network is being built.
        reaches: The code.
        strict: Whether it must be shown pure; otherwise steps are only compared.

    Attributes:
        ended: Why nothing is captured (any more).
    """

    def __init__(self, residents: Sequence[Resident], reaches: Sequence[Reach], strict: bool = True) -> None:
        self.residents, self.reaches, self.strict = residents, reaches, strict
        self.ended = next((r.refusal for r in reaches if r.refusal), None) if strict else None
        self.places = {(id(h), leaf) for r in residents for places in r.slots.values() for h, leaf in places}

    def look(self) -> Mapping[str, Mark]:
        """Marks by name. What cannot be looked into, on a module, ends it all."""
        if not self.strict:
            return {}
        parts = [
            (f"{type(resident.module).__name__}.{path}".rstrip("."), part)
            for resident in self.residents
            for path, part in resident.module.named_modules()
        ]
        marker = Marker({id(part): path for path, part in parts})
        found: Mapping[str, Mark]
        try:
            found = self._marks(marker, parts)
        except RecursionError:
            found, marker.full = {}, True
        if marker.moves:
            self.ended = self.ended or f"it can reach {marker.moves}"
        if marker.full:
            self.ended = self.ended or "it can reach more than is worth looking at"
        return found

    def _marks(self, marker: Marker, parts: list[tuple[str, nn.Module]]) -> dict[str, tuple[Mark, ...]]:
        found: dict[str, tuple[Mark, ...]] = {}
        for path, part in parts:
            for name, mark in marker.module(part):
                _add(found, f"{path}.{name}", mark)
            _add(found, f"a part of {path}", self._inside(part))
        for reach in self.reaches:
            for name, mark in reach.look(marker):
                _add(found, name, mark)
        if marker.opaque:
            self.ended = self.ended or f"it can reach {marker.opaque}, which cannot be looked into"
        return found

    def _inside(self, part: nn.Module) -> Mark:
        """The modules and tensors of a part; but tensors that are bound anew for every client."""
        held = [(h, n, t) for h in (part._parameters, part._buffers) for n, t in h.items()]
        tensors = [(n, None if (id(h), n) in self.places else id(t)) for h, n, t in held]
        return [id(m) for m in part._modules.values()], tensors

    def replaced(self) -> str | None:
        """The name of a tensor of a module that is not the one that was bound there."""
        for resident in self.residents if self.strict else ():
            bound = resident.bound or {}
            for name, places in resident.slots.items() if bound else ():
                if any(holder.get(leaf) is not bound[name] for holder, leaf in places):
                    return name
        return None


def _add(found: dict[str, tuple[Mark, ...]], name: str, mark: Mark) -> None:
    """One more mark; several things may have one name."""
    found[name] = (*found.get(name, ()), mark)


@dataclass(frozen=True)
class WatchedObjective:
    """How an objective is watched: by nothing but hooks if it and its networks are the library's own.

    Args:
        owner: The objective; kept, so that its identity is not given to another.
    """

    owner: object
    watch: PurityWatch | None
    hooks: Hooks

    @staticmethod
    def of(owner: object, resident: Resident | None, strict: bool) -> WatchedObjective:
        """An objective with a network, and with those that it calls beside it."""
        if resident is None:
            return WatchedObjective(owner, None, Hooks([]))
        loss = Reach.of_loss(owner)
        residents = list({id(r): r for r in (resident, *(net.captured_steps.resident for net in loss.nets))}.values())
        reaches = [Reach.of_module(r.module) for r in residents if not own(r.module)]
        watch = PurityWatch(residents, [*reaches, loss], strict) if reaches or loss.foreign else None
        return WatchedObjective(owner, watch, Hooks(r.module for r in residents))

    @staticmethod
    def building(build: object, module: nn.Module, strict: bool) -> WatchedObjective:
        """The building of such a network."""
        reach = Reach.of_building(build, module)
        return WatchedObjective(
            build, PurityWatch([], [reach], strict) if reach.foreign or not own(module) else None, Hooks([])
        )
