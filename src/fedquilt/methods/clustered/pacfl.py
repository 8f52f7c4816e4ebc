"""PACFL: clusters by principal angles between the clients' data, found before any training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedquilt.core.exchange import Context, Exchange, Reply, everyone
from fedquilt.core.table import ClientId, Site, in_order
from fedquilt.errors import InputError
from fedquilt.methods.clustered.discovery import Linkage
from fedquilt.methods.clustered.grouped import Discovery, Grouped, Groups, down_anchor
from fedquilt.methods.fedavg import C, Download
from fedquilt.pieces.clustering.agglomerative import LINKAGES
from fedquilt.pieces.clustering.tree import Cut, by_distances
from fedquilt.records.record import record


@record(name="fedquilt.methods.pacfl:Basis")
class Basis:
    """The directions in which a client's data lie: [features, directions], columns of length 1."""

    basis: Tensor


def basis_of(site: Site, directions: int) -> Tensor:
    """For each class, the first left singular vectors of its rows as columns [features, rows], side by side."""
    batch = site.train.whole()
    rows, labels = batch.x.flatten(1), batch.y
    if not rows.is_floating_point():
        raise InputError(f"PACFL compares real-valued inputs, but the column x holds {rows.dtype}.")
    parts = [
        torch.linalg.svd(rows[labels == c].double().T, full_matrices=False).U[:, :directions]
        for c in labels.unique(sorted=True)
    ]
    return torch.cat(parts, 1).float() if parts else torch.zeros(rows.shape[1], 0)


def angle(a: Tensor, b: Tensor) -> float:
    """The smallest angle between a column of a and a column of b, in degrees; singular vectors have no sign."""
    if not a.shape[1] or not b.shape[1]:
        return 90.0
    return float(torch.rad2deg(torch.arccos((a.double().T @ b.double()).abs().max().clamp(max=1.0))))


def angles(bases: Mapping[ClientId, Tensor]) -> NDArray[np.float64]:
    """Of all pairs in order, condensed as scipy has it."""
    ids = list(bases)
    return np.array([angle(bases[a], bases[b]) for i, a in enumerate(ids) for b in ids[i + 1 :]])


@dataclass(frozen=True, init=False)
class PACFL(Grouped[Groups]):
    """The first round begins with an exchange on which every client sends a few singular vectors of each of its
    classes; clients whose data lie in like directions train together from then on. d(i, j) = min arccos |u . v| over
    the vectors u of client i and v of client j, in degrees.

    These vectors show what the data look like: whoever must not see the data should not see them either.

    Args:
        base, budget: See :class:`Grouped`.
        directions: Singular vectors of each class.
        threshold_degrees: Merge while the linkage distance is below this angle.
        n_clusters: If set, so many clusters instead.
        linkage: average, complete or single.

    Reference: Vahidian et al., Efficient Distribution Similarity Identification in Clustered Federated Learning via
    Principal Angles Between Client Data Subspaces, 2023.

    Example:
        >>> from fedquilt import Net, models
        >>> method = PACFL(Net.of(models.MLP, features=64, classes=10), threshold_degrees=10.0)
    """

    needs_classes = "compares clients' rows class by class"

    directions: int = 3
    threshold_degrees: float = 4.9
    n_clusters: int | None = None
    linkage: Linkage = "average"

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.cut  # checks it
        if self.directions < 1:
            raise InputError(f"directions must be at least 1, got {self.directions}.")
        if self.linkage not in LINKAGES or self.linkage == "ward":
            raise InputError(f"linkage must be average, complete or single, got {self.linkage!r}.")

    @cached_property
    def cut(self) -> Cut:
        """Where merging stops."""
        return Cut(self.threshold_degrees) if self.n_clusters is None else Cut(k=self.n_clusters)

    @cached_property
    def discovery(self) -> Discovery:
        """Before the first round; the exchange needs nothing, but a client's present model is made with what it
        brings."""
        exchange = Exchange("discover", down_anchor, self.show, self.form, cohort=everyone, check=self.check_basis)
        return Discovery(exchange)

    def show(self, download: Download, client: C, site: Site, context: Context) -> tuple[C, Basis]:
        """The directions of this client's data."""
        return client, Basis(basis_of(site, self.directions))

    def check_basis(self, state: Groups, upload: Basis) -> None:
        """Columns of length 1."""
        basis = upload.basis
        if basis.dim() != 2 or not torch.allclose(basis.square().sum(0), torch.ones(basis.shape[1]), atol=1e-3):
            raise InputError(f"A client's basis should have columns of length 1; it has shape {tuple(basis.shape)}.")

    def form(self, state: Groups, replies: Iterable[Reply[Basis]], context: Context) -> Groups:
        """Cluster by angles; every cluster starts from the first model."""
        heard = {r.client: r.upload.basis for r in replies}
        if not heard:
            return state
        bases = {c: heard[c] for c in in_order(list(heard))}
        found = by_distances(list(bases), angles(bases), self.linkage, self.cut)
        return replace(state, models=(state.models[0],) * found.k, clusters=found)
