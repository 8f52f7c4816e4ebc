"""What local training descends: one forward pass, then a sum of terms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import Tensor

from fedquilt.core.net import Net
from fedquilt.core.params import Params
from fedquilt.core.table import Batch

Term = Callable[[Any, Params, Mapping[str, Any], Batch], Tensor]
Forward = Callable[[Net, Params, Batch], Any]


def scores(net: Net, params: Params, batch: Batch) -> Any:
    """The forward pass of most objectives: whatever the module returns."""
    return net(params, batch, train=True)


def scores_and_features(net: Net, params: Params, batch: Batch) -> Any:
    """The forward pass of objectives with terms that read ``out.features``."""
    return net.split(params, batch, train=True)


@dataclass(frozen=True)
class Objective:
    """One forward pass, then a sum of terms ``(out, params, fixed, batch) -> scalar``.

    Args:
        net: The network.
        terms: What is summed.
        forward: How the pass is made: ``scores``, or ``scores_and_features``.

    Example:
        >>> from torch import nn
        >>> from fedquilt.pieces.objectives import cross_entropy, prox
        >>> objective = Objective(Net(nn.Linear, 4, 2), (cross_entropy, prox(0.1)))
    """

    net: Net
    terms: tuple[Term, ...]
    forward: Forward = scores

    def __call__(self, params: Params, fixed: Mapping[str, Any], batch: Batch) -> Tensor:
        out = self.forward(self.net, params, batch)
        total = self.terms[0](out, params, fixed, batch)
        for term in self.terms[1:]:
            total = total + term(out, params, fixed, batch)
        return total

    @property
    def trainable(self) -> tuple[str, ...]:
        """Those of the network."""
        return self.net.trainable

    def plus(self, *terms: Term) -> Objective:
        """The same objective with more terms."""
        return replace(self, terms=(*self.terms, *terms))


class Loss(Protocol):
    """What ``Train`` descends: a pure scalar of (params, fixed, batch). Most are an :class:`Objective`."""

    @property
    def net(self) -> Net:
        """The network."""
        ...

    @property
    def trainable(self) -> tuple[str, ...]:
        """The names among a job's params that are trained."""
        ...

    def __call__(self, params: Params, fixed: Mapping[str, Any], batch: Batch) -> Tensor:
        """The loss of one batch."""
        ...


@dataclass(frozen=True)
class OnLoss:
    """A :class:`Loss` made around another one, with the same network and the same names to train."""

    loss: Objective

    @property
    def net(self) -> Net:
        """The network."""
        return self.loss.net

    @property
    def trainable(self) -> tuple[str, ...]:
        """Those of the network."""
        return self.net.trainable
