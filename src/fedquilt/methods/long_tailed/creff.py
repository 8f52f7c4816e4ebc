"""CReFF: the server learns features from the clients' gradients and trains the classifier anew on them, balanced."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedquilt.core.exchange import Context, Exchange
from fedquilt.core.holders import HasPrivate
from fedquilt.core.params import Params
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Table
from fedquilt.errors import InputError
from fedquilt.methods.fedavg import FedAvg
from fedquilt.methods.long_tailed.with_gradients import WithGradients
from fedquilt.methods.on_base import OnBase
from fedquilt.pieces.class_gradients import WEIGHT, ClassGradients, head_gradient, head_of
from fedquilt.records.record import record


@record(name="fedquilt.methods.creff:Retrained")
class Retrained:
    """The model of FedAvg, the head trained anew, and the federated features [classes, features, width]."""

    shared: Params
    head: Params
    features: Tensor


@record(name="fedquilt.methods.creff:WithHead")
class WithHead:
    """What a client is sent: the model to train, and the head that is used instead of its own."""

    shared: Params
    head: Params


@dataclass(frozen=True, init=False)
class CReFF(OnBase):
    """FedAvg, whose head is replaced for use (not for training) by one trained on federated features.

    A client also sends, for each of its classes, the gradient of the cross-entropy along the replacing head. The server
    averages them over clients, moves its features until theirs point the same way (:func:`apart`), and trains a fresh
    head on the features, of which every class has equally many.

    Args:
        base: FedAvg of a network in two parts, features and a linear head.
        features: How many feature vectors the server keeps for each class.
        match_steps: Steps on the features in each round.
        match_lr: Their learning rate.
        retrain_epochs: Passes over the features for a fresh head, in batches of the base's size.
        retrain_lr: Their learning rate.

    Reference: Shang et al., Federated Learning on Heterogeneous and Long-Tailed Data via Classifier Re-Training with
    Federated Features, 2022.

    Example:
        >>> from fedquilt import Net, models
        >>> method = CReFF(Net.of(models.MLP, features=64, classes=10), features=50)
    """

    needs_classes = "learns features for each class"

    base: FedAvg
    features: int = 100
    match_steps: int = 100
    match_lr: float = 0.1
    retrain_epochs: int = 300
    retrain_lr: float = 0.01

    def __post_init__(self) -> None:
        counts, rates = (self.features, self.match_steps, self.retrain_epochs), (self.match_lr, self.retrain_lr)
        if min(counts) < 1 or not min(rates) > 0:
            raise InputError(
                "CReFF needs features, match_steps and retrain_epochs of at least 1 and learning rates > 0, "
                f"got {counts} and {rates}."
            )

    def init_server(self, seed: Seed) -> Retrained:
        """Random features and a random head."""
        shared = self.base.init_server(seed).shared
        classes, width = head_of(shared)[WEIGHT].shape
        features = torch.randn(classes, self.features, width, generator=seed.fold("features").torch())
        return Retrained(shared, self._fresh(seed), features)

    def _fresh(self, seed: Seed) -> Params:
        return head_of(self.base.net.init(seed.fold("head")))

    def exchanges(self) -> tuple[Exchange, ...]:
        """The base's exchange, with gradients along the replacing head."""
        return (WithGradients(self.base, self.down, self.learn, lambda sent: sent.head).exchange(),)

    def down(self, state: Retrained, client_id: ClientId) -> WithHead:
        """Both heads; the features stay at the server."""
        return WithHead(state.shared, state.head)

    def learn(self, state: Retrained, shared: Params, classes: ClassGradients, context: Context) -> Retrained:
        """Match the features, train the head anew."""
        features = self._matched(state, classes)
        return Retrained(shared, self._retrained(features, context), features)

    def _matched(self, state: Retrained, real: ClassGradients) -> Tensor:
        shown = real.shown.nonzero()[:, 0]
        wanted = {n: t[shown] for n, t in real.gradients.items()}
        z, y = state.features[shown], shown[:, None].expand(-1, self.features)
        for _ in range(self.match_steps):
            z = z.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(apart(head_gradient(state.head, z, y), wanted), z)
            z = z - self.match_lr * gradient
        return state.features.index_copy(0, shown, z.detach())

    def _retrained(self, features: Tensor, context: Context) -> Params:
        head = self._fresh(context.seed)
        rows = Table({"z": features.flatten(0, 1), "y": torch.arange(len(features)).repeat_interleave(self.features)})
        for batch in rows.batches(self.base.batch_size, self.retrain_epochs, context.seed.fold("retrain")):
            gradient = head_gradient(head, batch["z"], batch.y)
            head = {n: t - self.retrain_lr * gradient[n] for n, t in head.items()}
        return head

    def global_model(self, state: Retrained) -> Params:
        """The body with the head trained anew."""
        return {**state.shared, **state.head}

    def personal_model(self, download: WithHead, client: HasPrivate) -> Params:
        """The same."""
        return {**self.base.personal_model(download, client), **download.head}


def apart(one: Params, other: Params) -> Tensor:
    """The sum over rows of each tensor, the last axis being a row, of 1 - cosine."""
    return torch.stack([(1 - F.cosine_similarity(one[n], t, dim=-1)).sum() for n, t in other.items()]).sum()
