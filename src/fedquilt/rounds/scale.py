"""How large a server's state is, part by part, and whether it has left the scale of its past."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

import torch
from torch import Tensor

from fedquilt.core.params import is_statistic
from fedquilt.records.record import parts_of

GROWTH = 1e3
_REMEMBERED = 10  # rounds
_STATISTICS = " (statistics)"  # those of BatchNorm follow the scale of the data, not of the model


class Unsound(Exception):
    """A state that a server cannot go on with, and why."""


class Scale:
    """The norms of a state's parts after the last rounds. A part is a field that holds float tensors.

    A state is out of scale when the norm of a part is more than ``growth`` times the median of its past, or than
    ``growth``, if the median is below 1. A part that was zero so far may have up to growth^2 times the norm of all the
    others, at least growth^2; running statistics may grow by growth^4 a round.

    Args:
        growth: See above; ``math.inf`` allows everything that is finite.
        past: To go on from an earlier point: the norms of each part, oldest first.
    """

    def __init__(self, growth: float = GROWTH, past: Mapping[str, Sequence[float]] | None = None) -> None:
        self.growth = growth
        self.past: dict[str, list[float]] = {part: list(norms) for part, norms in (past or {}).items()}
        self._known: tuple[object, dict[str, float]] | None = None  # the last state that was checked, and its norms

    def check(self, state: object) -> None:
        """Raise unless a state is finite and of the scale of its past."""
        found = norms(state)
        self._known = (state, found)
        broken = [part for part, norm in found.items() if not math.isfinite(norm)]
        if broken:
            raise Unsound(
                f"the server's state would hold non-finite numbers in '{broken[0]}' after 'up', although every "
                "upload is finite; try a smaller learning rate"
            )
        usual = {part: self._usual(part) for part in found}
        whole = max(1.0, math.hypot(*(norm for norm in usual.values() if norm is not None)))
        for part, norm in found.items():
            limit = self._limit(part, usual[part], whole)
            if norm > limit:
                so_far = "nothing" if usual[part] is None else f"{usual[part]:.3g}"
                raise Unsound(
                    f"the server's state would be out of scale: the norm of '{part}' would be {norm:.3g}, "
                    f"so far {so_far}, and {limit:.3g} is the limit"
                )

    def _usual(self, part: str) -> float | None:
        known = [norm for norm in self.past.get(part, ()) if norm > 0]
        return median(known) if known else None

    def _limit(self, part: str, usual: float | None, whole: float) -> float:
        if part.endswith(_STATISTICS):
            return self.growth**4 * max(1.0, usual or 0.0)
        return self.growth**2 * whole if usual is None else self.growth * max(1.0, usual)

    def note(self, state: object) -> None:
        """Remember a state that counts."""
        found = self._known[1] if self._known is not None and self._known[0] is state else norms(state)
        self._known = None
        self.past = {part: [*self.past.get(part, []), norm][-_REMEMBERED:] for part, norm in found.items()}


def norms(state: object) -> dict[str, float]:
    """The Euclidean norm of each part; infinite or NaN if the part holds such numbers."""
    found: dict[str, float] = {}
    for part, tensor in _floats(state, ""):
        found[part] = math.hypot(found.get(part, 0.0), _norm(tensor))
    return found


def _norm(tensor: Tensor) -> float:
    norm = float(torch.linalg.vector_norm(tensor))
    if not math.isfinite(norm) and bool(torch.isfinite(tensor).all()):  # squares overflow sooner
        norm = float(tensor.abs().max()) * math.sqrt(tensor.numel())
    return norm


def _floats(value: object, part: str) -> Iterator[tuple[str, Tensor]]:
    """The float tensors of a state, each with the field that holds it."""
    for name, inner in parts_of(value):
        if not isinstance(inner, Tensor):
            here = part if isinstance(value, dict | tuple | list) else f"{part}.{name}".lstrip(".")
            yield from _floats(inner, here)
        elif inner.is_floating_point() and inner.numel():
            if isinstance(value, dict):
                yield part + (_STATISTICS if isinstance(name, str) and is_statistic(name) else ""), inner
            else:
                yield part if isinstance(value, tuple | list) else f"{part}.{name}".lstrip("."), inner
