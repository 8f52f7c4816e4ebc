"""FedRoD: one body, a generic head for everyone, and at each client a head of its own on top."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn

from fedquilt.core.errors import InputError
from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.core.params import Params, at_home, under, zeros_like
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch
from fedquilt.methods.fedavg import FedAvg
from fedquilt.methods.long_tail import WithCounts, rebuilt, two_parts
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


def generic_loss(out: Any, params: Params, fixed: Mapping[str, Any], batch: Batch) -> Tensor:
    """Balanced softmax of the generic head, by the client's own class counts."""
    return balanced_softmax(out.generic, params, fixed, batch)


@dataclass(frozen=True, kw_only=True)
class FedRoD(WithCounts):
    """Loss: balanced_softmax(G(z)) + cross_entropy(G(z) + P(z)), where the second term moves P only.

    z are the body's features, G the generic head (averaged with the body), P the client's own (private). A client uses
    G + P, a stranger G.

    Args:
        base: FedAvg of a :class:`Twin`, whose ``own`` is private.

    Reference: Chen and Chao, On Bridging Generic and Personalized Federated Learning for Image Classification, 2022.
    """

    newcomer_head: ClassVar[tuple[str, ...]] = ("own",)  # the generic head is not tuned by anyone alone
    private_part: ClassVar[str] = "own"
    recipe: ClassVar[str] = "fedrod"

    def __post_init__(self) -> None:
        mine, private = under(self.private_part), self.base.parts.private
        if not any(mine(name) and private(name) for name in self.base.net.names):
            raise InputError(
                f"{type(self).__name__} needs a base whose network has a private part '{self.private_part}', and this "
                f"one has {', '.join(self.base.net.names[:3])}, ... Let {self.recipe}(net, ...) make it."
            )

    def global_model(self, state: Any) -> Params:
        """The generic model: a private part of zeros changes nothing."""
        own = self.base.init_client(Seed(0)).private
        return {**state.shared, **zeros_like(own)}

    def heads(self, download: Any, client: Any) -> Heads | None:
        """The generic head, and the client's: generic plus own."""
        head = under("head")
        body = {n: t for n, t in download.shared.items() if not head(n)}
        generic = Head(download.shared[WEIGHT], download.shared[BIAS])
        own = Head(client.private["own.weight"], client.private["own.bias"])
        return Heads(body, generic, own.plus(generic))


def doubled(
    objective: Objective | Net, module: Callable[..., nn.Module], private: str, rest: Mapping[str, Any]
) -> FedAvg:
    """FedAvg of a network with a second head, for both losses."""
    loss = Objective(rebuilt(objective, module), (generic_loss, cross_entropy))
    return FedAvg(objective=loss, parts=at_home(under(private)), **rest)


def fedrod(objective: Objective | Net, **rest: Any) -> FedRoD:
    """FedRoD whose own heads are linear; ``fedrod_hyper`` makes them from class shares."""
    return FedRoD(base=doubled(objective, Twin, "own", rest))
