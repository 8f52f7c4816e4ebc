"""FedPer inside clusters: every client keeps its head, every discovered cluster its body."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from fedquilt.core.params import at_home
from fedquilt.methods.clustered.discovery import Criterion, DiscoveryOptions
from fedquilt.methods.clustered.flhc import ByUpdates
from fedquilt.methods.clustered.grouped import Discovery, Grouped, Groups


@dataclass(frozen=True, init=False)
class FedPerGrouped(DiscoveryOptions, Grouped[Groups]):
    """FL+HC whose base is FedPer: clusters are found by the updates of the body, the only part that travels.

    Args:
        base, budget: See :class:`Grouped`; the other options are those of :class:`DiscoveryOptions`.
        head: The parts of the network that stay home.

    Reference: Arivazhagan et al., Federated Learning with Personalization Layers, 2019, inside the clusters of Briggs
    et al., 2020.

    Example:
        >>> from fedquilt import Net, models
        >>> method = FedPerGrouped(Net.of(models.MLP, features=64, classes=10), initial_rounds=2)
    """

    criterion: Criterion = "auto"
    head: tuple[str, ...] = ("head",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", replace(self.base, parts=at_home(self.net.under(*self.head))))
        super().__post_init__()

    @cached_property
    def discovery(self) -> Discovery:
        """By what travels."""
        return ByUpdates(self, self.base, self.opened).discovery()
