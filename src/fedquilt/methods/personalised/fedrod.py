"""FedRoD: one body, a generic head for everyone, and at each client a head of its own on top.

FedRoD with a hypernetwork: a client's own head is made from its class shares by a layer that all share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedquilt.core.exchange import Context
from fedquilt.core.holders import Fixed, HasPrivate, HasShared
from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.core.params import Params, Parts, at_home, under, zeros_like
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch, Site
from fedquilt.core.train import Job
from fedquilt.methods.fedavg import FedAvg
from fedquilt.methods.long_tailed.losses import rebuilt, two_parts, with_counts
from fedquilt.pieces.objectives import balanced_softmax, cross_entropy
from fedquilt.pieces.realign import BIAS, WEIGHT, Head, Heads


class Both(NamedTuple):
    """The client's scores (generic plus own, moving the own head only), and the generic ones."""

    logits: Tensor
    generic: Tensor


class Twin(nn.Module):
    """A network in two parts, features and a linear head, with a second head ``own`` that starts at zero."""

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.features, self.head = two_parts(build)
        self.own = nn.Linear(self.head.in_features, self.head.out_features)
        nn.init.zeros_(self.own.weight)
        nn.init.zeros_(self.own.bias)

    def forward(self, x: Tensor) -> Both:
        """Both kinds of class scores."""
        z = self.features(x)
        generic = self.head(z)
        return Both(generic.detach() + self.own(z.detach()), generic)


def generic_loss(out: Both, params: Params, fixed: Fixed, batch: Batch) -> Tensor:
    """Balanced softmax of the generic head, by the client's own class counts."""
    return balanced_softmax(out.generic, params, fixed, batch)


def both_losses(objective: Objective | Net, module: Callable[..., nn.Module]) -> Objective:
    """Those of the network, made one with a second head."""
    return Objective(rebuilt(objective, module), (generic_loss, cross_entropy))


@dataclass(frozen=True, kw_only=True)
class FedRoD(FedAvg):
    """Loss: balanced_softmax(G(z)) + cross_entropy(G(z) + P(z)), where the second term moves P only.

    z are the body's features, G the generic head (averaged with the body), P the client's own (private). A client uses
    G + P, a new client G.

    Reference: Chen and Chao, On Bridging Generic and Personalized Federated Learning for Image Classification, 2022.

    Example:
        >>> from fedquilt import Net, models
        >>> method = FedRoD(Net.of(models.MLP, features=64, classes=10))
    """

    needs_classes = "trains its generic head with balanced softmax, by the rows of each class"

    parts: Parts = at_home(under("own"))  # noqa: RUF009 - frozen, so it can be shared
    newcomer_head: ClassVar[tuple[str, ...]] = ("own",)  # the generic head is not tuned by anyone alone

    def __post_init__(self) -> None:
        super().__post_init__()
        self.loss  # noqa: B018 - checks the network

    @cached_property
    def loss(self) -> Objective:
        """Both losses of the network with a second head."""
        return both_losses(self.objective, Twin)

    def start(self, download: HasShared, client: HasPrivate, site: Site, context: Context) -> Job:
        """As FedAvg, with the counts of the client's classes, which never leave it."""
        return with_counts(super().start(download, client, site, context), site)

    def global_model(self, state: HasShared) -> Params:
        """The generic model: a private part of zeros changes nothing."""
        return {**state.shared, **zeros_like(self.init_client(Seed(0)).private)}

    def heads(self, download: HasShared, client: HasPrivate) -> Heads | None:
        """The generic head, and the client's: generic plus own."""
        head = under("head")
        body = {n: t for n, t in download.shared.items() if not head(n)}
        generic = Head(download.shared[WEIGHT], download.shared[BIAS])
        own = Head(client.private["own.weight"], client.private["own.bias"])
        return Heads(body, generic, own.plus(generic))


class Hyper(nn.Module):
    """A network in two parts, features and a linear head, with a second head made from the class ``shares``.

    Its weights and biases are H a: a are the shares, H is a matrix that starts at zero. Shares of zero make no head.
    """

    shares: Tensor

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.features, self.head = two_parts(build)
        classes = self.head.out_features
        self.hyper = nn.Linear(classes, classes * (self.head.in_features + 1), bias=False)
        nn.init.zeros_(self.hyper.weight)
        self.register_buffer("shares", torch.zeros(classes))

    def forward(self, x: Tensor) -> Both:
        """Both kinds of class scores."""
        z = self.features(x)
        generic = self.head(z)
        made = self.hyper(self.shares).reshape(self.head.out_features, -1)
        return Both(generic.detach() + F.linear(z.detach(), made[:, :-1], made[:, -1]), generic)


@dataclass(frozen=True, kw_only=True)
class FedRoDHyper(FedAvg):
    """As FedRoD, with P = H a: H is averaged with the body, and only the client's class shares a are private.

    Reference: Chen and Chao, On Bridging Generic and Personalized Federated Learning for Image Classification, 2022.

    Example:
        >>> from fedquilt import Net, models
        >>> method = FedRoDHyper(Net.of(models.MLP, features=64, classes=10))
    """

    needs_classes = "makes each client's head from the shares of its classes"

    parts: Parts = at_home(under("shares"))  # noqa: RUF009 - frozen, so it can be shared
    newcomer_head: ClassVar[tuple[str, ...]] = ("hyper",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.loss  # noqa: B018 - checks the network

    @cached_property
    def loss(self) -> Objective:
        """Both losses of the network with a hypernetwork."""
        return both_losses(self.objective, Hyper)

    def start(self, download: HasShared, client: HasPrivate, site: Site, context: Context) -> Job:
        """As FedRoD, with the client's class shares."""
        job = with_counts(super().start(download, client, site, context), site)
        counts = job.fixed["counts"].float()
        zeros = torch.zeros_like(job.params["shares"])
        shares = zeros.index_copy(0, torch.arange(len(counts)), counts / counts.sum())
        return replace(job, params={**job.params, "shares": shares})

    def global_model(self, state: HasShared) -> Params:
        """The generic model: shares of zero make no head."""
        return {**state.shared, **zeros_like(self.init_client(Seed(0)).private)}

    def heads(self, download: HasShared, client: HasPrivate) -> None:
        """A client's head is made anew from its class shares; there is none to realign."""

    def newcomer_model(self, download: HasShared, client: HasPrivate, site: Site, context: Context) -> Params:
        """The hypernetwork makes a newcomer's head from its class shares, without any training."""
        return self.start(download, client, site, context).params
