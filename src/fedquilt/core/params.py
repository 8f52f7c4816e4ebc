"""Algebra on named tensors. Nothing here changes its input."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedquilt.errors import InputError

Params = dict[str, Tensor]
Names = Callable[[str], bool]
_REACH = 1e6
_COUNTED = 1e12


@dataclass(frozen=True)
class under:
    """The names at or below one of these prefixes: ``under("head")`` holds head.weight, head.bias.

    Example:
        >>> head = under("head")
        >>> head("head.weight"), head("header.weight")
        (True, False)
    """

    prefixes: tuple[str, ...]

    def __init__(self, *prefixes: str) -> None:
        object.__setattr__(self, "prefixes", prefixes)

    def __call__(self, name: str) -> bool:
        return any(name == p or name.startswith(p + ".") for p in self.prefixes)

    def __describe__(self) -> tuple[tuple[object, ...], dict[str, object]]:
        return self.prefixes, {}


@dataclass(frozen=True)
class everything_but:
    """All names that another choice does not take; a string is taken as ``under`` it.

    Example:
        >>> body = everything_but("head")
        >>> body("conv.weight"), body("head.weight")
        (True, False)
    """

    other: Names

    def __init__(self, other: Names | str) -> None:
        object.__setattr__(self, "other", under(other) if isinstance(other, str) else other)

    def __call__(self, name: str) -> bool:
        return not self.other(name)


@dataclass(frozen=True)
class either:
    """The names that one or the other choice takes."""

    one: Names
    other: Names

    def __call__(self, name: str) -> bool:
        return self.one(name) or self.other(name)


def check_known(chosen: Names, names: Sequence[str]) -> None:
    """Raise unless each prefix that a choice is made of is there: one of another network would take nothing."""
    if isinstance(chosen, either):
        check_known(chosen.one, names)
        check_known(chosen.other, names)
    elif isinstance(chosen, everything_but):
        check_known(chosen.other, names)
    elif isinstance(chosen, under):
        for prefix in chosen.prefixes:
            if not any(under(prefix)(name) for name in names):
                tops = sorted({name.split(".")[0] for name in names})
                named = f'. Methods with the option head take another name: head = ["{tops[-1]}"]' if tops else ""
                raise InputError(
                    f"The network has no part {prefix!r}; its parts are {', '.join(tops)}"
                    f"{named if prefix == 'head' else ''}."
                )


def everything(name: str) -> bool:
    """All names."""
    return True


def nothing(name: str) -> bool:
    """No name."""
    return False


def is_statistic(name: str) -> bool:
    """Whether a name is a running statistic of BatchNorm rather than a weight."""
    return name.rpartition(".")[2] in ("running_mean", "running_var", "num_batches_tracked")


def is_weight(name: str) -> bool:
    """Whether a name is none of BatchNorm's running statistics."""
    return not is_statistic(name)


def pick(names: Names, params: Mapping[str, Tensor]) -> Params:
    """The part of ``params`` whose names are chosen, in the same order."""
    return {n: t for n, t in params.items() if names(n)}


def same_names(a: Mapping[str, Tensor], b: Mapping[str, Tensor], what: str = "params") -> None:
    """Raise unless both hold the same names with the same shapes and dtypes."""
    if a.keys() != b.keys():
        missing, extra = sorted(a.keys() - b.keys()), sorted(b.keys() - a.keys())
        raise InputError(f"{what}: names differ; missing {missing[:5]}, unexpected {extra[:5]}.")
    for name, tensor in a.items():
        other = b[name]
        if tensor.shape != other.shape or tensor.dtype != other.dtype:
            raise InputError(
                f"{what}: '{name}' should be {tuple(tensor.shape)} {tensor.dtype}, "
                f"got {tuple(other.shape)} {other.dtype}."
            )


def check_reach(found: Mapping[str, Tensor], model: Mapping[str, Tensor], what: str) -> None:
    """Raise unless what a client found along a model is no longer than could be: 1e6 times the model, or 1e6, as a new
    part of a server's state may be."""
    length, limit = norm(found), _REACH * max(1.0, norm(model))
    if not length <= limit:
        raise InputError(f"{what} has length {length:.3g}, and {limit:.3g} is the limit beside this model.")


def check_change(model: Mapping[str, Tensor], change: Mapping[str, Tensor], what: str) -> None:
    """Raise unless a change has the names, shapes and dtypes of a model, and its whole numbers, such as BatchNorm's
    count of batches, are such as somebody can have counted."""
    same_names(model, change, what)
    for name, tensor in change.items():
        if tensor.numel() and not tensor.is_floating_point() and float(tensor.double().abs().max()) > _COUNTED:
            raise InputError(f"{what}: '{name}' counts beyond {_COUNTED:g}.")


def zip_with(f: Callable[..., Tensor], first: Mapping[str, Tensor], *rest: Mapping[str, Tensor]) -> Params:
    """Apply ``f`` name by name; every operand must hold the names of the first."""
    return {n: f(t, *(r[n] for r in rest)) for n, t in first.items()}


def add(a: Mapping[str, Tensor], b: Mapping[str, Tensor], scale: float = 1.0) -> Params:
    """a + scale * b for float tensors; integers take the whole of b, so that a counter stays a counter."""

    def plus(x: Tensor, y: Tensor) -> Tensor:
        if x.dtype == torch.bool:
            return _flip(x, y)
        return x + scale * y if scale != 1.0 and x.is_floating_point() else x + y

    return zip_with(plus, a, b)


def sub(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Params:
    """a - b over the names of a: what changed, when a is after and b is before."""
    return zip_with(lambda x, y: _flip(x, y) if x.dtype == torch.bool else x - y, a, b)


def _flip(x: Tensor, y: Tensor) -> Tensor:
    return x ^ y  # for truth values, both the change and its undoing


def scale(a: Mapping[str, Tensor], factor: float) -> Params:
    """factor * a; integer tensors stay as they are."""
    return {n: t * factor if t.is_floating_point() else t for n, t in a.items()}


def lerp(a: Mapping[str, Tensor], b: Mapping[str, Tensor], weight: float) -> Params:
    """a + weight * (b - a) for float tensors; integer tensors of a."""
    return zip_with(lambda x, y: torch.lerp(x, y, weight) if x.is_floating_point() else x, a, b)


def zeros_like(a: Mapping[str, Tensor]) -> Params:
    """Zeros of the same names, shapes and dtypes."""
    return {n: torch.zeros_like(t) for n, t in a.items()}


def dot(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """Inner product over all entries of a's names, in float64."""
    return math.fsum(float(t.double().flatten() @ b[n].double().flatten()) for n, t in a.items())


def norm(a: Mapping[str, Tensor]) -> float:
    """Euclidean norm over all entries."""
    return math.sqrt(dot(a, a))


def cosine(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """Cosine of the angle between two params; 0 when either is zero."""
    length = norm(a) * norm(b)
    return dot(a, b) / length if length > 0 else 0.0


def flatten(a: Mapping[str, Tensor]) -> Tensor:
    """All float entries as one vector, names in order."""
    parts = [t.flatten() for t in a.values() if t.is_floating_point()]
    return torch.cat(parts) if parts else torch.zeros(0)


def finite(tensors: Iterable[Tensor]) -> bool:
    """Whether every float entry is a finite number."""
    floats = [t for t in tensors if t.is_floating_point()]
    # A sum is finite only if all entries are; it may overflow, so look closely when it is not.
    return all(math.isfinite(t.sum().item()) or bool(torch.isfinite(t).all()) for t in floats)


def numel(a: Mapping[str, Tensor]) -> int:
    """How many numbers."""
    return sum(t.numel() for t in a.values())


def nbytes(a: Mapping[str, Tensor]) -> int:
    """How many bytes the numbers take."""
    return sum(t.numel() * t.element_size() for t in a.values())


_PIECE = 2**15  # numbers of a sum that are added to at a time
_FEW = 2**22  # numbers of a tensor that may wait for others
_TOGETHER = 4


class Mean:
    """A weighted mean that is fed one operand at a time.

    Float tensors are summed in float64 in the order they arrive (engines deliver replies in ascending
    client id) and cast back at the end. Integer tensors, such as BatchNorm's batch counter, are never
    averaged: the largest is kept. A few small operands wait for each other and are added piece by piece, so that a
    piece of the sum stays in the cache meanwhile: they must not be written into before ``value``.
    """

    def __init__(self) -> None:
        self.weight = 0.0
        self._floats: Params = {}
        self._largest: Params = {}
        self._dtypes: dict[str, torch.dtype] = {}
        self._waiting: dict[str, list[tuple[Tensor, float]]] = {}

    def add(self, params: Mapping[str, Tensor], weight: float) -> None:
        """Take in one operand."""
        for name, tensor in params.items():
            if not tensor.is_floating_point():
                old = self._largest.get(name)
                self._largest[name] = tensor if old is None else torch.maximum(old, tensor)
            elif name in self._floats:
                self._add(name, tensor, weight)
            else:
                self._floats[name] = tensor.double() * weight
                self._dtypes[name] = tensor.dtype
        self.weight += weight

    def _add(self, name: str, tensor: Tensor, weight: float) -> None:
        total = self._floats[name]
        plain = tensor.is_contiguous() and total.is_contiguous() and not tensor.requires_grad
        if not plain or not _PIECE < tensor.numel() <= _FEW or tensor.shape != total.shape:
            if name in self._waiting:
                self._fold(name)
            total.add_(tensor, alpha=weight)
            return
        waiting = self._waiting.setdefault(name, [])
        waiting.append((tensor, weight))
        if len(waiting) == _TOGETHER:
            self._fold(name)

    def _fold(self, name: str) -> None:
        """Add those that wait, in their order."""
        waiting = self._waiting.pop(name)
        parts = [(tensor.view(-1).split(_PIECE), weight) for tensor, weight in waiting]
        for place, piece in enumerate(self._floats[name].view(-1).split(_PIECE)):
            for tensors, weight in parts:
                piece.add_(tensors[place], alpha=weight)

    def value(self) -> Params:
        """The mean of what came in; empty when nothing did."""
        for name in list(self._waiting):
            self._fold(name)
        means = {n: _divided(t, self.weight, self._dtypes[n]) for n, t in self._floats.items()}
        return {**means, **self._largest}


def _divided(total: Tensor, weight: float, dtype: torch.dtype) -> Tensor:
    """total / weight in another dtype; of a long one, piece by piece, since a second long one takes longer to get than
    to fill."""
    if total.numel() <= 8 * _PIECE or not total.is_contiguous() or total.requires_grad:
        return (total / weight).to(dtype)
    found, piece = torch.empty_like(total, dtype=dtype), total.new_empty(_PIECE)
    for part, place in zip(total.view(-1).split(_PIECE), found.view(-1).split(_PIECE), strict=True):
        place.copy_(torch.div(part, weight, out=piece[: part.numel()]))
    return found


def weighted_mean(operands: Iterable[tuple[float, Mapping[str, Tensor]]]) -> Params:
    """The mean of (weight, params) pairs; see :class:`Mean`."""
    total = Mean()
    for weight, params in operands:
        total.add(params, weight)
    return total.value()


def at_home(names: Names) -> Parts:
    """These names private, all others shared."""
    return Parts(shared=everything_but(names), private=names)


@dataclass(frozen=True)
class Parts:
    """Which names travel and which stay home. Every name must be in exactly one part.

    Args:
        shared: Names that are sent and aggregated (float buffers by their mean).
        private: Names that live in the client's own state and never leave it.

    Example:
        >>> personal_head = Parts(shared=everything_but(under("head")), private=under("head"))
    """

    shared: Names = everything
    private: Names = nothing

    def check(self, names: Sequence[str]) -> None:
        """Raise unless both take parts that are there, and together cover every name exactly once."""
        check_known(self.shared, names)
        check_known(self.private, names)
        for name in names:
            if self.shared(name) and self.private(name):
                raise InputError(f"Parts put '{name}' in both parts. Leave it in shared or in private.")
            if not self.shared(name) and not self.private(name):
                raise InputError(
                    f"Parts leave '{name}' in no part. Add it to shared or private, "
                    "for example Parts(shared=everything_but(under('head')), private=under('head'))."
                )


def learns(weight: Tensor) -> bool:
    """Whether a weight is being trained, for terms of an objective; also inside ``torch.func.vmap``, where
    ``requires_grad`` does not say so."""
    while torch._C._functorch.is_batchedtensor(weight):
        weight = torch._C._functorch.get_unwrapped(weight)
    return weight.requires_grad
