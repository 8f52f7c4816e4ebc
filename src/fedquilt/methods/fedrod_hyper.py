"""FedRoD with a hypernetwork: a client's own head is made from its class shares by a layer that all share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedquilt.core.exchange import Turn
from fedquilt.core.params import Params, Parts, at_home, under
from fedquilt.core.table import Site
from fedquilt.core.train import Job
from fedquilt.methods.fedrod import Both, FedRoD
from fedquilt.methods.long_tail import two_parts


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
class FedRoDHyper(FedRoD):
    """As FedRoD, with P = H a: H is averaged with the body, and only the client's class shares a are private.

    Reference: Chen and Chao, On Bridging Generic and Personalized Federated Learning for Image Classification, 2022.
    """

    parts: Parts = at_home(under("shares"))  # noqa: RUF009 - frozen, so it can be shared
    newcomer_head: ClassVar[tuple[str, ...]] = ("hyper",)
    module: ClassVar[Callable[..., nn.Module]] = Hyper

    def start(self, download: Any, client: Any, site: Site, turn: Turn) -> Job:
        """As FedRoD, with the client's class shares."""
        job = super().start(download, client, site, turn)
        counts = job.fixed["counts"].float()
        zeros = torch.zeros_like(job.params["shares"])
        shares = zeros.index_copy(0, torch.arange(len(counts)), counts / counts.sum())
        return replace(job, params={**job.params, "shares": shares})

    def heads(self, download: Any, client: Any) -> None:
        """A client's head is made anew from its class shares; there is none to realign."""

    def newcomer_model(self, download: Any, client: Any, site: Site, turn: Turn) -> Params:
        """The hypernetwork makes a newcomer's head from its class shares, without any training."""
        return self.start(download, client, site, turn).params
