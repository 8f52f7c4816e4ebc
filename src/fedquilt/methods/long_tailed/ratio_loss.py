"""Ratio Loss: classes that the global model has neglected weigh more in everybody's loss."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedquilt.core.exchange import Context, Exchange
from fedquilt.core.holders import HasPrivate
from fedquilt.core.objective import Objective
from fedquilt.core.params import Params
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Site
from fedquilt.core.train import Job
from fedquilt.errors import InputError
from fedquilt.methods.fedavg import FedAvg
from fedquilt.methods.long_tailed.with_gradients import WithGradients
from fedquilt.methods.on_base import OnBase
from fedquilt.pieces.class_gradients import WEIGHT, ClassGradients, head_of
from fedquilt.pieces.objectives import class_weighted
from fedquilt.records.record import record

SHARE = 0.8  # a weight speaks for a class if no other class moves it by more than this share
MOST = 5000.0
NOT_MOVED = 10.0  # the ratio where the other classes do not move a class's weights at all


@record(name="fedquilt.methods.ratio_loss:Weighed")
class Weighed:
    """The model and the weight of each class in the loss: the server's state, and what a client is sent."""

    shared: Params
    weights: Tensor


def ratios(pushes: Tensor) -> Tensor:
    """R_p = |sum of class p's pushes| / |sum of the other classes' mean push|, over the weights that speak for p.

    ``pushes`` [classes, ...] says how training on each class alone would move each weight of the last layer. A weight
    speaks for the class that moves it up most, if no other moves it more than 0.8 times as far, up or down.
    """
    best, whose = pushes.max(0)
    alone = ((pushes.abs() > SHARE * best.abs()).sum(0) == 1) & (best > 0)
    others = (pushes.sum(0) - best) / (len(pushes) - 1)
    nothing = torch.zeros(len(pushes), dtype=pushes.dtype)
    mine, rest = (nothing.index_add(0, whose[alone], t[alone]) for t in (best, others))
    return torch.where(rest == 0, NOT_MOVED, mine.abs() / rest.abs()).clamp(max=MOST)


@dataclass(frozen=True, init=False)
class RatioLoss(OnBase):
    """Loss of a row: (alpha + beta R_y) times its cross-entropy, R from the round before; in the first round 1 times.

    R is made (:func:`ratios`) from the gradients of the clients' own samples at the model they were sent, class by
    class, averaged over clients; a class absent from a round keeps its weight.

    Args:
        base: FedAvg of a network in two parts, features and a linear head.
        alpha: Weight of every class, > 0.
        beta: How much the ratio adds, >= 0; alpha 1 and beta 0 is FedAvg.

    Reference: Wang et al., Addressing Class Imbalance in Federated Learning, 2021.

    Example:
        >>> from fedquilt import Net, models
        >>> method = RatioLoss(Net.of(models.MLP, features=64, classes=10), beta=0.2)
    """

    needs_classes = "weighs classes"

    base: FedAvg
    alpha: float = 1.0
    beta: float = 0.1

    def __post_init__(self) -> None:
        if not (self.alpha > 0 and self.beta >= 0):
            raise InputError(f"Ratio Loss needs alpha > 0 and beta >= 0, got {self.alpha} and {self.beta}.")

    def init_server(self, seed: Seed) -> Weighed:
        """All classes weigh the same."""
        shared = self.base.init_server(seed).shared
        return Weighed(shared, torch.ones(len(head_of(shared)[WEIGHT])))

    def exchanges(self) -> tuple[Exchange, ...]:
        """The base's exchange, with gradients and weights."""
        gradients = WithGradients(self.base, self.down, self.learn)

        def start(download: Weighed, client: HasPrivate, site: Site, context: Context) -> Job:
            job = gradients.start(download, client, site, context)
            return replace(job, fixed={**job.fixed, "weights": download.weights})

        objective = Objective(self.base.net, (class_weighted,))
        return (gradients.exchange().training(start=start, objective=objective),)

    def down(self, state: Weighed, client_id: ClientId) -> Weighed:
        """All that the server has."""
        return state

    def learn(self, state: Weighed, shared: Params, classes: ClassGradients, context: Context) -> Weighed:
        """Weigh the classes that were shown, for the next round."""
        shown = classes.shown.nonzero()[:, 0]
        if len(shown) < 2:
            return Weighed(shared, state.weights)
        new = self.alpha + self.beta * ratios(-classes.gradients[WEIGHT][shown].double())
        return Weighed(shared, state.weights.index_copy(0, shown, new.to(state.weights.dtype)))
