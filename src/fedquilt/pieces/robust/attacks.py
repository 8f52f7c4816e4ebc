"""What attackers send instead of what they learned: for simulations that try aggregators and checks.

An attack is ``(own, honest, seed) -> forged``: the changes that the attackers learned, those of the honest clients of
the cohort, whom these attackers can see, and one change for each attacker. Numbers of batches and running statistics
stay theirs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import NormalDist
from typing import Annotated, Any, Literal, Protocol

import torch
from torch import Tensor

from fedquilt.core.exchange import Context, Reply
from fedquilt.core.params import Params, is_weight, numel, scale, sub, zeros_like, zip_with
from fedquilt.core.seed import Seed
from fedquilt.errors import InputError
from fedquilt.pieces.robust.vectors import Vectors, length

Aggregate = Callable[..., Params]  # (current, replies, context) -> params


class Attack(Protocol):
    """The shape of every attack. One that also has ``poisoned`` spoils training samples, see
    :mod:`fedquilt.pieces.robust.poisoning`."""

    def __call__(self, own: Sequence[Params], honest: Sequence[Params], seed: Seed) -> list[Params]:
        """A change for each attacker; there is at least one honest client."""
        ...


@dataclass(frozen=True)
class sign_flip:
    """-factor times what was learned.

    Example:
        >>> attack = sign_flip(factor=10.0)
    """

    factor: float = 1.0

    def __call__(self, own: Sequence[Params], honest: Sequence[Params], seed: Seed) -> list[Params]:
        return [_weights_of(change, lambda t: t * -self.factor) for change in own]


@dataclass(frozen=True)
class scaling:
    """factor times what was learned, as somebody who wants to count for many does.

    Example:
        >>> attack = scaling(factor=10.0)
    """

    factor: float = 10.0

    def __call__(self, own: Sequence[Params], honest: Sequence[Params], seed: Seed) -> list[Params]:
        return [_weights_of(change, lambda t: t * self.factor) for change in own]


@dataclass(frozen=True)
class gaussian:
    """Noise as long as ``factor`` times what was learned.

    Example:
        >>> attack = gaussian(factor=10.0)
    """

    factor: float = 10.0

    def __call__(self, own: Sequence[Params], honest: Sequence[Params], seed: Seed) -> list[Params]:
        return [self._noise(change, seed.fold("gaussian", i)) for i, change in enumerate(own)]

    def _noise(self, change: Params, seed: Seed) -> Params:
        generator, weights = seed.torch(), moved(change)
        deviation = self.factor * length(weights) / math.sqrt(max(numel(weights), 1))
        return _weights_of(change, lambda t: torch.randn(t.shape, generator=generator, dtype=t.dtype) * deviation)


@dataclass(frozen=True)
class alie:
    """A little is enough: the honest mean, moved by z standard deviations in every coordinate.

    Args:
        z: None takes the largest with which the attackers and the honest clients beyond them are a majority.

    Reference: Baruch et al., A Little Is Enough: Circumventing Defenses For Distributed Learning, 2019.

    Example:
        >>> attack = alie()
    """

    z: float | None = None

    def __call__(self, own: Sequence[Params], honest: Sequence[Params], seed: Seed) -> list[Params]:
        mean, deviation = moments(honest)
        z = self._largest(len(honest) + len(own), len(own)) if self.z is None else self.z
        return _forged(own, zip_with(lambda m, d: m - z * d, mean, deviation))

    def _largest(self, n: int, attackers: int) -> float:
        needed = n // 2 + 1 - attackers
        share = (n - attackers - needed) / (n - attackers)
        return NormalDist().inv_cdf(min(max(share, 0.5), 0.999))


@dataclass(frozen=True)
class ipm:
    """Inner product manipulation: -factor times the honest mean.

    Reference: Xie et al., Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product Manipulation, 2020.

    Example:
        >>> attack = ipm(factor=0.5)
    """

    factor: float = 0.5

    def __call__(self, own: Sequence[Params], honest: Sequence[Params], seed: Seed) -> list[Params]:
        return _forged(own, scale(moments(honest)[0], -self.factor))


@dataclass(frozen=True)
class min_max:
    """As far against the honest mean as is still no farther from any honest change than two of these are apart.

    Reference: Shejwalkar and Houmansadr, Manipulating the Byzantine, 2021.

    Example:
        >>> attack = min_max()
    """

    def __call__(self, own: Sequence[Params], honest: Sequence[Params], seed: Seed) -> list[Params]:
        mean = moments(honest)[0]
        vectors = Vectors([moved(h) for h in honest], torch.ones(len(honest), dtype=torch.float64))
        apart = float(vectors.distances.max())
        share = torch.full((len(honest),), 1 / len(honest), dtype=torch.float64)
        along = vectors.products @ share  # of each change with the mean
        squares, whole = vectors.products.diagonal(), float(share @ along)

        def fits(gamma: float) -> bool:  # the forged change is (1 - gamma) mean
            return float((squares - 2 * (1 - gamma) * along + (1 - gamma) ** 2 * whole).max()) <= apart * (1 + 1e-12)

        return _forged(own, scale(mean, 1 - _largest(fits)))


@dataclass(frozen=True)
class mimic:
    """All attackers send what one honest client sent, so that it counts for many.

    Args:
        whom: Which of the honest clients of the cohort, in their order.

    Reference: Karimireddy et al., Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing, 2022.

    Example:
        >>> attack = mimic()
    """

    whom: int = 0

    def __call__(self, own: Sequence[Params], honest: Sequence[Params], seed: Seed) -> list[Params]:
        return _forged(own, honest[self.whom % len(honest)])


@dataclass(frozen=True)
class adaptive:
    """Knows the server's rule, and goes as far along another attack's way as moves the merged change most.

    Args:
        attack: Whose way: an attack, or the name of one; factors of 1/8 to 8 of it are tried.
        merge: What the server makes of changes, ``changes -> change``. None is the aggregator of the run's method, fed
            by clients that count the same.

    Example:
        >>> attack = adaptive("ipm")
    """

    attack: Annotated[Any, Literal["alie", "ipm", "min_max", "sign_flip"]] = "alie"
    merge: Callable[[Sequence[Params]], Params] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.attack, str) and self.attack not in _WAYS:
            raise InputError(f"adaptive goes the way of one of {', '.join(_WAYS)}, got {self.attack!r}.")

    def against(self, aggregate: Aggregate) -> adaptive:
        """The same attack on this aggregator, unless it has a rule already."""
        return self if self.merge is not None else replace(self, merge=partial(_merged, aggregate))

    def __call__(self, own: Sequence[Params], honest: Sequence[Params], seed: Seed) -> list[Params]:
        if self.merge is None:
            raise InputError("adaptive needs the rule that it attacks: adaptive(merge=...).")
        merge, mean = self.merge, moments(honest)[0]
        attack: Attack = _WAYS[self.attack]() if isinstance(self.attack, str) else self.attack
        ways = [zip_with(lambda f, m: f - m, moved(f), mean) for f in attack(own, honest, seed)]

        def tried(power: int) -> tuple[float, list[Params]]:
            forged = [
                {**o, **zip_with(lambda m, w: m + 2.0**power * w, mean, way)} for o, way in zip(own, ways, strict=True)
            ]
            return length(sub(moved(merge([*honest, *forged])), mean)), forged

        return max((tried(power) for power in range(-3, 4)), key=lambda found: found[0])[1]


_WAYS: dict[str, Callable[[], Attack]] = {"alie": alie, "ipm": ipm, "min_max": min_max, "sign_flip": sign_flip}


@dataclass(frozen=True)
class _Change:
    delta: Params


def _merged(aggregate: Aggregate, changes: Sequence[Params]) -> Params:
    """What an aggregator adds to a model of zeros."""
    replies = [Reply(i, 1, _Change(change)) for i, change in enumerate(changes)]
    return aggregate(zeros_like(changes[0]), replies, Context(0, None, Seed(0), len(changes)))


def moments(changes: Sequence[Params]) -> tuple[Params, Params]:
    """The mean and the (n - 1)-normalised deviation of each weight; 0 of one change."""
    mean, deviation = dict[str, Tensor](), dict[str, Tensor]()
    for name, first in moved(changes[0]).items():
        stack = torch.stack([c[name] for c in changes]).double()
        mean[name] = stack.mean(0).to(first.dtype)
        deviation[name] = (stack.std(0) if len(changes) > 1 else torch.zeros_like(stack[0])).to(first.dtype)
    return mean, deviation


def moved(change: Params) -> Params:
    """The float weights of a change: what attacks forge."""
    return {n: t for n, t in change.items() if t.is_floating_point() and is_weight(n)}


def _weights_of(change: Params, forge: Callable[[Tensor], Tensor]) -> Params:
    """The change with other float weights."""
    return {**change, **{n: forge(t) for n, t in moved(change).items()}}


def _forged(own: Sequence[Params], false: Params) -> list[Params]:
    """The same change of all, with the statistics of each."""
    return [{**o, **moved(false)} for o in own]


def _largest(fits: Callable[[float], bool]) -> float:
    """The largest number up to 1e6 that fits, by halves."""
    low, high = 0.0, 1e6
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
