"""IFCA: clients get all models and train the one that fits them best."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedquilt.core.exchange import Exchange, Reply, Turn
from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.core.params import Names, Params, everything, everything_but, lerp, pick
from fedquilt.core.seed import Seed
from fedquilt.methods.fedavg import FedAvg, Upload, net_of
from fedquilt.methods.regrouping import Regrouping
from fedquilt.methods.starts import Starts, Vote
from fedquilt.pieces.aggregators import uniform_mean

WHOLE = 10**9  # rows in a batch: all there are


@dataclass(frozen=True, kw_only=True)
class IFCA(Regrouping):
    """k* = argmin_k F_i(w_k) on the client's training rows; it trains w_k*, and w_k <- average of those who chose k.

    Args:
        base: How one model is trained and averaged.
        n_clusters, starts: See :class:`Regrouping`.
        apart: The names of which each cluster has its own; all others are one part, averaged over everybody.

    Reference: Ghosh et al., An Efficient Framework for Clustered Federated Learning, 2020, algorithm 1 (option II).
    """

    apart: Names = everything
    starts: Starts = "seeds"

    def init_server(self, seed: Seed) -> Any:
        """The names that clusters share are taken from the first model."""
        fresh = super().init_server(seed)
        common = pick(everything_but(self.apart), fresh.models[0])
        return replace(fresh, models=tuple(pick(self.apart, m) for m in fresh.models), common=common)

    def place(self, state: Any, replies: Iterable[Reply[Vote]], turn: Turn) -> Any:
        """Starts of what clusters have apart."""
        return super().place(state, [self._apart(r) for r in replies], turn)

    def up(self, state: Any, replies: Iterable[Reply[Vote]], turn: Turn) -> Any:
        """Average what is apart within clusters and what is common over everybody."""
        heard = list(replies)
        after = super().up(state, [self._apart(r) for r in heard], turn)
        if not state.common:
            return after
        shared = everything_but(self.apart)
        rest = [Reply(r.client, r.examples, Upload(pick(shared, r.upload.delta))) for r in heard]
        return replace(after, common=self.base.aggregate(state.common, rest, turn))

    def _apart(self, reply: Reply[Vote]) -> Reply[Vote]:
        return replace(reply, upload=replace(reply.upload, delta=pick(self.apart, reply.upload.delta)))


@dataclass(frozen=True, kw_only=True)
class IFCAGradient(IFCA):
    """Clients send one gradient g_i of all their rows: w_k <- w_k - lr / |S| sum over those who chose k of g_i.

    S are all clients that were heard, so a cluster that few chose moves little. The base's epochs, steps and batch size
    do not matter, its learning rate does; plain SGD is meant.

    Reference: Ghosh et al., 2020, algorithm 1 (option I).
    """

    def exchanges(self) -> tuple[Exchange, ...]:
        """One step on one batch of all rows: its change is -lr g_i."""
        train, starts = super().exchanges()
        return train.training(steps=1, batch_size=WHOLE), starts

    def merge(self, model: Params, group: Sequence[Reply[Any]], heard: int, turn: Turn) -> Params:
        """The mean step of the group, shortened by the share of clients that it is."""
        merged = uniform_mean(model, group, turn)
        return {**merged, **lerp(self.base.trained(model), merged, len(group) / heard)}


def _settings(objective: Objective | Net, heads: tuple[str, ...], rest: dict[str, Any]) -> dict[str, Any]:
    apart = net_of(objective).under(*heads) if heads else everything
    return {"base": FedAvg(objective=objective, **rest), "apart": apart}


def ifca(
    objective: Objective | Net, n_clusters: int = 3, starts: Starts = "seeds", heads: tuple[str, ...] = (), **rest: Any
) -> IFCA:
    """IFCA on FedAvg; with ``heads``, clusters have only these parts of the network for themselves."""
    return IFCA(n_clusters=n_clusters, starts=starts, **_settings(objective, heads, rest))


def ifca_gradient(
    objective: Objective | Net, n_clusters: int = 3, starts: Starts = "seeds", heads: tuple[str, ...] = (), **rest: Any
) -> IFCAGradient:
    """IFCA whose clients send gradients."""
    return IFCAGradient(n_clusters=n_clusters, starts=starts, **_settings(objective, heads, rest))
