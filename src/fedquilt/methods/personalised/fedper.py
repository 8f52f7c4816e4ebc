"""FedPer: every client keeps its own head."""

from __future__ import annotations

from dataclasses import dataclass

from fedquilt.core.params import Names, Parts, at_home, either, nothing
from fedquilt.methods.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class FedPer(FedAvg):
    """FedAvg in which the head is private; body and head are trained together.

    Args:
        head: The parts of the network that stay home.

    Reference: Arivazhagan et al., Federated Learning with Personalization Layers, 2019.

    Example:
        >>> from fedquilt import Net, models
        >>> method = FedPer(Net.of(models.MLP, features=64, classes=10))
        >>> [name for name in method.net.names if method.parts.private(name)]
        ['head.weight', 'head.bias']
    """

    head: tuple[str, ...] = ("head",)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "parts", staying(self.parts, self.net.under(*self.head), self.net.names))


def staying(parts: Parts, home: Names, names: tuple[str, ...]) -> Parts:
    """The same parts with these names at home too."""
    if all(parts.private(name) for name in names if home(name)):
        return parts
    return at_home(home if parts.private is nothing else either(parts.private, home))
