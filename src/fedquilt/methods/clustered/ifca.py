"""IFCA: clients get all models and train the one that fits them best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedquilt.core.exchange import Context, Exchange, Reply
from fedquilt.core.params import Params, lerp
from fedquilt.methods.clustered.regrouping import Regrouping
from fedquilt.methods.clustered.starts import Centres, HasVote, Starts
from fedquilt.methods.fedavg import Client
from fedquilt.pieces.aggregators import mean, uniform_mean

WHOLE = 10**9  # rows in a batch: all there are


@dataclass(frozen=True, init=False)
class IFCA(Regrouping[Centres, Client]):
    """k* = argmin_k F_i(w_k) on the client's training samples; it trains w_k*, and w_k <- average of those who chose k.

    Args:
        base, n_clusters, starts, heads: See :class:`Regrouping`.

    Reference: Ghosh et al., An Efficient Framework for Clustered Federated Learning, 2020, algorithm 1 (option II).

    Example:
        >>> from fedquilt import Net, models
        >>> method = IFCA(Net.of(models.MLP, features=64, classes=10), n_clusters=2)
    """

    starts: Starts = "seeds"
    heads: tuple[str, ...] = ()


@dataclass(frozen=True, init=False)
class IFCAGradient(Regrouping[Centres, Client]):
    """Clients send one gradient g_i of all their rows: w_k <- w_k - lr / |S| sum over those who chose k of g_i.

    S are all clients that were heard, so a cluster that few chose moves little. The base's epochs, steps and batch size
    do not matter, its learning rate does; plain SGD is meant.

    Args:
        base, n_clusters, starts, heads: See :class:`Regrouping`.

    Reference: Ghosh et al., 2020, algorithm 1 (option I).

    Example:
        >>> from fedquilt import Net, models
        >>> method = IFCAGradient(Net.of(models.MLP, features=64, classes=10), n_clusters=2)
    """

    starts: Starts = "seeds"
    heads: tuple[str, ...] = ()

    def exchanges(self) -> tuple[Exchange, ...]:
        """One step on one batch of all rows: its change is -lr g_i."""
        train, starts = super().exchanges()
        return train.training(steps=1, batch_size=WHOLE), starts

    def merge(self, model: Params, group: Sequence[Reply[HasVote]], heard: int, context: Context) -> Params:
        """The mean step of the group, in which clients count the same unless ``aggregate`` says otherwise, shortened by
        the share of clients that the group is."""
        aggregate = uniform_mean if self.base.aggregate is mean else self.base.aggregate
        merged = aggregate(model, group, context)
        return {**merged, **lerp(self.base.trained(model), merged, len(group) / heard)}
