"""FedRoD: one body, a generic head for everyone, and at each client a head of its own on top."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn

from fedquilt.core.errors import InputError
from fedquilt.core.exchange import Exchange, OnBase, Turn
from fedquilt.core.net import Net
from fedquilt.core.params import Params, at_home, under, zeros_like
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch, Site
from fedquilt.core.train import Job, Objective
from fedquilt.methods.fedavg import FedAvg, net_of
from fedquilt.pieces.objectives import balanced_softmax, class_counts, cross_entropy


class Both(NamedTuple):
    """The client's scores (generic plus own, moving the own head only), and the generic ones."""

    logits: Tensor
    generic: Tensor


class Twin(nn.Module):
    """A network in two parts, features and a linear head, with a second head ``own`` that starts at zero."""

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        super().__init__()
        made: Any = build()
        if not isinstance(getattr(made, "features", None), nn.Module) or not isinstance(made.head, nn.Linear):
            raise InputError(f"FedRoD needs a module with features and a linear head, got {type(made).__name__}.")
        self.features, self.head = made.features, made.head
        self.own = nn.Linear(made.head.in_features, made.head.out_features)
        nn.init.zeros_(self.own.weight)
        nn.init.zeros_(self.own.bias)

    def forward(self, x: Tensor) -> Both:
        """Both kinds of class scores."""
        z = self.features(x)
        generic = self.head(z)
        return Both(generic.detach() + self.own(z.detach()), generic)


def generic_loss(out: Any, params: Params, fixed: Mapping[str, Any], batch: Batch) -> Tensor:
    """Balanced softmax of the generic head, by the client's own class counts."""
    return balanced_softmax(out.generic, params, fixed, batch)


@dataclass(frozen=True, kw_only=True)
class FedRoD(OnBase):
    """Loss: balanced_softmax(G(z)) + cross_entropy(G(z) + P(z)), where the second term moves P only.

    z are the body's features, G the generic head (averaged with the body), P the client's own (private). A client uses
    G + P, a stranger G.

    Args:
        base: FedAvg of a :class:`Twin`, whose ``own`` is private.

    Reference: Chen and Chao, On Bridging Generic and Personalized Federated Learning for Image Classification, 2022.
    """

    base: FedAvg
    newcomer_head: ClassVar[tuple[str, ...]] = ("own",)  # the generic head is not tuned by anyone alone

    def exchanges(self) -> tuple[Exchange, ...]:
        """The base's trip."""
        (train,) = self.base.exchanges()
        return (train.training(start=self.start),)

    def start(self, download: Any, client: Any, site: Site, turn: Turn) -> Job:
        """As the base, with the client's class counts."""
        job = self.base.start(download, client, site, turn)
        return replace(job, fixed={**job.fixed, "counts": class_counts(site.train)})

    def global_model(self, state: Any) -> Params:
        """The generic model: an own head of zeros changes nothing."""
        own = self.base.init_client(Seed(0)).private
        return {**state.shared, **zeros_like(own)}


def fedrod(objective: Objective | Net, **rest: Any) -> FedRoD:
    """FedRoD whose own heads are linear (the paper's hypernetwork, for new clients, is not there)."""
    net = net_of(objective)
    if isinstance(net.build, nn.Module):
        raise InputError("FedRoD adds a head to the network: give Net its class or a function, not a ready module.")
    twin = replace(net, build=partial(Twin, net.build))
    loss = Objective(twin, (generic_loss, cross_entropy))
    return FedRoD(base=FedAvg(objective=loss, parts=at_home(under("own")), **rest))
