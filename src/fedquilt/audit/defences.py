"""What a client may do to what it sends. Each changes an upload before the method's own codec sees it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedquilt.audit.analytic import BIAS
from fedquilt.core.errors import InputError
from fedquilt.core.exchange import Codec, Exchange, OnBase
from fedquilt.core.record import tensors_in
from fedquilt.core.seed import Seed

Change = Callable[[Any, Seed], Any]
KNOWN = {
    "none": "one step on one row: the gradient itself",
    "batch": "one step on a larger batch",
    "round": "the local training of the recipe on all of the client's rows",
    "noise": "the upload is clipped, and noise is added",
    "no_bias": "the change of the head's bias stays at home",
}


def parsed(text: str) -> tuple[str, ...]:
    """The parts of a combination such as 'batch+noise'."""
    parts = tuple(text.split("+"))
    for part in parts:
        if part not in KNOWN:
            raise InputError(f"There is no defence {part!r}; there are {', '.join(KNOWN)}, and several with '+'.")
    if "batch" in parts and "round" in parts:
        raise InputError(f"The defence {text!r}: batch and round exclude each other, both say how much is trained.")
    return parts


@dataclass(frozen=True)
class clip_and_noise:
    """Scale the upload to a norm of at most ``limit``, then add N(0, (noise * limit)^2) to every number."""

    limit: float
    noise: float

    def __post_init__(self) -> None:
        if not (self.limit > 0 and self.noise >= 0):
            raise InputError(f"clip must be positive and noise not negative, got {self.limit} and {self.noise}.")

    def __call__(self, upload: Any, seed: Seed) -> Any:
        floats = [t for t in tensors_in(upload) if t.is_floating_point()]
        size = math.sqrt(math.fsum(float(t.double().square().sum()) for t in floats))
        shrink, draw = min(1.0, self.limit / size) if size else 1.0, seed.torch()

        def change(name: str, tensor: Tensor) -> Tensor:
            if not tensor.is_floating_point():
                return tensor
            return tensor * shrink + self.noise * self.limit * torch.randn(tensor.shape, generator=draw)

        return mapped(upload, change)


def without_bias(upload: Any, seed: Seed) -> Any:
    """Zeros for the head's bias."""
    return mapped(upload, lambda name, tensor: torch.zeros_like(tensor) if name == BIAS else tensor)


def mapped(value: Any, change: Callable[[str, Tensor], Tensor], name: str = "") -> Any:
    """A record with every tensor changed; ``change`` is told its name."""
    if isinstance(value, Tensor):
        return change(name, value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: mapped(getattr(value, f.name), change, f.name) for f in fields(value)})
    if isinstance(value, tuple | list):
        return type(value)(mapped(item, change, name) for item in value)
    if isinstance(value, dict):
        return {key: mapped(item, change, str(key)) for key, item in value.items()}
    return value


@dataclass(frozen=True)
class Guarded:
    """A codec that first changes the upload."""

    changes: tuple[Change, ...]
    codec: Codec

    def encode(self, upload: Any, sent: Any, memory: Any, seed: Seed) -> tuple[Any, Any]:
        """Change, then encode."""
        for place, change in enumerate(self.changes):
            upload = change(upload, seed.fold("defence", place))
        return self.codec.encode(upload, sent, memory, seed)

    def decode(self, wire: Any, sent: Any) -> Any:
        """What the server sees."""
        return self.codec.decode(wire, sent)


@dataclass(frozen=True, kw_only=True)
class Defended(OnBase):
    """A method whose clients change everything they send."""

    base: Any
    changes: tuple[Change, ...]

    def exchanges(self) -> tuple[Exchange, ...]:
        """The base's, with guarded codecs."""
        return tuple(replace(e, codec=Guarded(self.changes, e.codec)) for e in self.base.exchanges())

    def plan(self, state: Any, round: int) -> tuple[str, ...]:
        """As the base."""
        names: tuple[str, ...] = self.base.plan(state, round)
        return names
