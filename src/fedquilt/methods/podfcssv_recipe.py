"""PODFCSSV and what it is compared with, from plain options."""

from __future__ import annotations

from typing import Any, Literal

from fedquilt.core.errors import InputError
from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.core.params import Parts, everything, nothing
from fedquilt.core.train import Optimizer
from fedquilt.methods.anchoring import Anchoring
from fedquilt.methods.fedavg import FedAvg, net_of
from fedquilt.methods.podfcssv import PODFCSSV, Begin, Clustering
from fedquilt.pieces.aggregators import mean, uniform_mean
from fedquilt.pieces.clustering.private import Blur
from fedquilt.pieces.optimizers import AdamW
from fedquilt.pieces.prototypes.bank import MergeOrAdd
from fedquilt.pieces.prototypes.gpad import GPAD
from fedquilt.pieces.prototypes.memory import Following, Novelty
from fedquilt.pieces.prototypes.spherical import Reseed

OPTIMIZER = AdamW(1e-4, weight_decay=0.05)  # as published


def podfcssv(
    objective: Objective | Net, lambda_proto: float = 1.0, k_init_prototypes: int = 5, merge_threshold: float = 0.85,
    server_ema_alpha: float = 0.1, gpad_base_tau: float = 0.5, gpad_temp_gate: float = 0.1,
    gpad_lambda_entropy: float = 0.1, soft_assign_temp: float = 0.1, hard_gate: bool = False, gate_grad: bool = False,
    distance: Literal["l2", "sq"] = "l2", anchored_only: bool = False, client_local_update_threshold: float = 0.7,
    client_local_ema_alpha: float = 0.1, kmeans_init: Begin = "warm", kmeans_max_iters: int = 100,
    kmeans_tol: float = 1e-4, reseed: Reseed = "random", prototype_mask: bool = True, center: bool = False,
    center_keep: float = 0.5, weighting: Literal["uniform", "samples"] = "uniform", merge_by_counts: bool = False,
    max_prototypes: int | None = None, evict: bool = False, concatenate_first: bool = False, shuffle: bool = False,
    novelty_size: int | None = None, novelty_k: int = 10, live_prototypes: bool = False,
    bootstrap_every: int | None = None, server_ema: float | None = None, min_cluster: int = 1,
    prototype_clip: float = 1.0, prototype_noise: float = 0.0, secret_noise: bool = False,
    optimizer: Optimizer = OPTIMIZER, **rest: Any,
) -> PODFCSSV:  # fmt: skip
    """PODFCSSV on FedAvg over the adapters; the network must be a masked autoencoder."""
    if weighting not in ("uniform", "samples"):
        raise InputError(f"weighting must be 'uniform' or 'samples', got {weighting!r}.")
    base = _base(objective, optimizer, aggregate=uniform_mean if weighting == "uniform" else mean, **rest)
    gpad = GPAD(
        gpad_base_tau, gpad_temp_gate, gpad_lambda_entropy, soft_assign_temp, hard_gate, distance, gate_grad,
        anchored_only or novelty_size is not None,
    )  # fmt: skip
    novelty = None if novelty_size is None else Novelty(novelty_size, novelty_k)
    follow = Following(client_local_update_threshold, client_local_ema_alpha)
    blur = Blur(prototype_clip, prototype_noise, secret_noise) if prototype_noise else None
    return PODFCSSV(
        base=base, loss=Anchoring(base.net, gpad, lambda_proto, follow, novelty), center=center,
        center_keep=center_keep, server_ema=server_ema, bootstrap_every=bootstrap_every,
        clustering=Clustering(
            k_init_prototypes, kmeans_init, kmeans_max_iters, kmeans_tol, reseed, prototype_mask, min_cluster,
            live_prototypes, blur,
        ),
        merge=MergeOrAdd(
            merge_threshold, server_ema_alpha, merge_by_counts, max_prototypes, evict, concatenate_first, shuffle
        ),
    )  # fmt: skip


def fedmae(
    objective: Objective | Net, weighting: Literal["uniform", "samples"] = "uniform", optimizer: Optimizer = OPTIMIZER,
    **rest: Any,
) -> PODFCSSV:  # fmt: skip
    """Adapters averaged, no prototypes: what PODFCSSV must beat."""
    return podfcssv(
        objective, lambda_proto=0.0, k_init_prototypes=0, weighting=weighting, optimizer=optimizer, **rest
    )  # fmt: skip


def mae_alone(objective: Objective | Net, optimizer: Optimizer = OPTIMIZER, **rest: Any) -> PODFCSSV:
    """Every client trains its own adapters on its own stream; nothing is averaged."""
    return _plain(_base(objective, optimizer, parts=Parts(shared=nothing, private=everything), **rest))


def mae_pooled(objective: Objective | Net, optimizer: Optimizer = OPTIMIZER, **rest: Any) -> PODFCSSV:
    """One set of adapters on the pooled rows of all clients; not federated."""
    return _plain(_base(objective, optimizer, **rest), pools_data=True)


def _plain(base: FedAvg, **rest: Any) -> PODFCSSV:
    return PODFCSSV(base=base, loss=Anchoring(base.net, lambda_proto=0.0), clustering=Clustering(k=0), **rest)


def _base(objective: Objective | Net, optimizer: Optimizer, **rest: Any) -> FedAvg:
    """FedAvg over the names that the network does not freeze."""
    net = net_of(objective)
    for name in ("patches", "width"):
        net.trait(name)  # says what is missing from a network that is no masked autoencoder
    return FedAvg(objective=net, optimizer=optimizer, **rest)
