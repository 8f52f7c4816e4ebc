"""What a client may do to what it sends. Each changes an upload before the method's own codec sees it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedquilt.audit.inversion import BIAS
from fedquilt.core.exchange import Codec, Exchange, Method, plain, unmoved
from fedquilt.core.seed import Seed
from fedquilt.core.train import InTurn, Train
from fedquilt.errors import InputError
from fedquilt.methods.on_base import OnBase
from fedquilt.methods.personalised.hgls import HGLS
from fedquilt.methods.personalised.hgls_records import HeadUpload
from fedquilt.pieces.codecs import on
from fedquilt.records.record import tensors_in
from fedquilt.registry import lookup

Change = Callable[[Any, Seed], Any]  # an upload, as its defence leaves it
KNOWN = {
    "none": "one step on one row: the gradient itself",
    "batch": "one step on a larger batch",
    "round": "the local training of the recipe on all of the client's samples",
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
        raise InputError(
            f"The defence {text!r}: batch and round are mutually exclusive: both set the amount of training."
        )
    return parts


@dataclass(frozen=True)
class clip_and_noise:
    """Scale the upload to a norm of at most ``limit``, then add N(0, (noise * limit)^2) to every number."""

    limit: float
    noise: float

    def __post_init__(self) -> None:
        if not (self.limit > 0 and self.noise >= 0):
            raise InputError(f"clip must be positive and noise not negative, got {self.limit} and {self.noise}.")

    def __call__(self, upload: object, seed: Seed) -> object:
        floats = [t for t in tensors_in(upload) if t.is_floating_point()]
        size = math.sqrt(math.fsum(float(t.double().square().sum()) for t in floats))
        shrink, draw = min(1.0, self.limit / size) if size else 1.0, seed.torch()

        def change(name: str, tensor: Tensor) -> Tensor:
            if not tensor.is_floating_point():
                return tensor
            return tensor * shrink + self.noise * self.limit * torch.randn(tensor.shape, generator=draw)

        return mapped(upload, change)


def without_bias(upload: object, seed: Seed) -> object:
    """Zeros for the head's bias."""
    return mapped(upload, lambda name, tensor: torch.zeros_like(tensor) if name == BIAS else tensor)


def mapped(value: object, change: Callable[[str, Tensor], Tensor], name: str = "") -> object:
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

    def encode(self, upload: object, sent: object, memory: object, seed: Seed) -> tuple[object, object]:
        """Change, then encode."""
        for place, change in enumerate(self.changes):
            upload = change(upload, seed.fold("defence", place))
        return self.codec.encode(upload, sent, memory, seed)

    def decode(self, wire: object, sent: object) -> object:
        """What the server sees."""
        return self.codec.decode(wire, sent)


@dataclass(frozen=True, kw_only=True)
class Dressed(OnBase):
    """A method whose clients change what they upload after training, and may use another codec for it."""

    base: Method
    changes: tuple[Change, ...]
    codec: Codec | None

    def exchanges(self) -> tuple[Exchange, ...]:
        """The base's, with guarded codecs."""
        return tuple(self._guarded(e) for e in self.base.exchanges())

    def _guarded(self, exchange: Exchange) -> Exchange:
        if exchange.up == unmoved or not isinstance(exchange.work, Train | InTurn):
            return exchange
        return replace(exchange, codec=Guarded(self.changes, exchange.codec if self.codec is None else self.codec))

    def plan(self, state: object, round: int) -> tuple[str, ...]:
        """As the base."""
        return self.base.plan(state, round)


def dressed(method: Method, codec: Codec | None, limit: float, noise: float | None, bias: bool, pace: float) -> Dressed:
    """A method with a codec and defences.

    Args:
        method: Which.
        codec: Of the changes of weights, or of HGLS's gradients; None for the method's own.
        limit, noise: As for :class:`clip_and_noise`, in units of the gradient; noise None for neither.
        bias: Whether the change of the head's bias is sent.
        pace: What one step makes of a gradient of norm 1: the learning rate.
    """

    def changes(unit: float) -> tuple[Change, ...]:
        noisy = () if noise is None else (clip_and_noise(limit * unit, noise),)
        return (*noisy, *(() if bias else (without_bias,)))

    if searching(method) is None:
        return Dressed(base=method, changes=changes(pace), codec=None if codec is None else on("delta", codec))
    head = {} if noise is None else {"mean_head": False}  # noise of this size does not hide whole heads
    guarded = _with_gradients(method, changes(1.0), codec, head)
    return Dressed(base=guarded, changes=tuple(apart(c) for c in changes(pace)), codec=None)


def searching(method: object) -> HGLS | None:
    """The HGLS that a method is or is made of. Its gradients are gradients, and encoded before the upload is made."""
    while method is not None and not isinstance(method, HGLS):
        method = getattr(method, "base", None)
    return method


def _with_gradients(method: Any, changes: tuple[Change, ...], codec: Codec | None, options: dict[str, Any]) -> Any:
    if not isinstance(method, HGLS):
        return replace(method, base=_with_gradients(method.base, changes, codec, options))
    return replace(method, codec=Guarded(changes, method.coding if codec is None else codec), **options)


@dataclass(frozen=True)
class apart:
    """A change of all but an upload's gradient, which is changed where it is encoded."""

    change: Change

    def __call__(self, upload: HeadUpload, seed: Seed) -> HeadUpload:
        changed: HeadUpload = self.change(replace(upload, gradient=None), seed)
        return replace(changed, gradient=upload.gradient)


def codec_of(text: str) -> Codec | None:
    """A codec by name, with the value of its first setting if wanted: 'hgc', 'hgc=64', 'top_k=0.05'; 'own' is None."""
    name, _, value = text.partition("=")
    if name == "own":
        return None
    if name == "plain":
        return plain
    maker = lookup("codec", name).load()
    try:
        made: Codec = maker(*([_number(value)] if value else []))
    except TypeError as error:
        raise InputError(f"The codec {text!r}: {value!r} cannot be the value of its first setting.") from error
    except ValueError as error:
        raise InputError(f"The codec {text!r}: {error}") from error
    return made


def _number(text: str) -> int | float | str:
    kinds: tuple[type[int] | type[float], ...] = (int, float)
    for kind in kinds:
        try:
            return kind(text)
        except ValueError:
            continue
    return text
