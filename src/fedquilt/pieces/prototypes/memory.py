"""A client's own prototypes while it trains: each follows the rows near it; what is near none is collected."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedquilt.core.seed import Seed
from fedquilt.errors import InputError
from fedquilt.pieces.prototypes.spherical import spherical_kmeans


@dataclass(frozen=True)
class FollowingPrototypes:
    """Row by row, in order: the nearest prototype p, if cos >= threshold, becomes (1 - alpha) p + alpha z at length 1.

    Args:
        threshold: The least cosine, in [-1, 1].
        alpha: How far a prototype moves, in [0, 1].
    """

    threshold: float = 0.7
    alpha: float = 0.1

    def __post_init__(self) -> None:
        if not (-1 <= self.threshold <= 1 and 0 <= self.alpha <= 1):
            given = f"{self.threshold} and {self.alpha}"
            raise InputError(f"The local threshold must be in [-1, 1] and its alpha in [0, 1], got {given}.")

    def __call__(self, prototypes: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """(the prototypes after these rows [K, D], which rows moved one [B])."""
        moved = np.zeros(len(z), dtype=bool)
        if not len(prototypes) or not len(z):
            return prototypes, torch.from_numpy(moved).to(z.device)
        rows = F.normalize(z.detach().float(), dim=1).cpu().numpy()
        own = prototypes.detach().float().cpu().numpy().copy()
        cosines = rows @ own.T
        for i, row in enumerate(rows):
            j = int(cosines[i].argmax())
            if cosines[i, j] >= self.threshold:
                new = (1 - self.alpha) * own[j] + self.alpha * row
                length = np.sqrt(new @ new)
                own[j] = new / length if length > 1e-6 else own[j]
                cosines[i + 1 :, j] = rows[i + 1 :] @ own[j]  # later rows see the prototype where it is now
                moved[i] = True
        return torch.from_numpy(own).to(prototypes.device), torch.from_numpy(moved).to(z.device)


@dataclass(frozen=True)
class Novelty:
    """Rows near no prototype are collected; a full buffer is clustered, and each centroid is followed or becomes new.

    Args:
        size: Rows of a full buffer.
        clusters: How many centroids it gives.
    """

    size: int = 256
    clusters: int = 10

    def __post_init__(self) -> None:
        if not 1 <= self.clusters <= self.size:
            raise InputError(f"novelty_k must be in 1..novelty_size ({self.size}), got {self.clusters}.")

    def __call__(
        self, prototypes: Tensor, buffer: Tensor, fresh: Tensor, follow: FollowingPrototypes, seed: Seed
    ) -> tuple[Tensor, Tensor]:
        """(prototypes, buffer) after these rows [n, D] were found near none."""
        held = torch.cat([buffer, F.normalize(fresh.detach().float(), dim=1)])
        while len(held) >= self.size:
            found = spherical_kmeans(held[: self.size].cpu(), self.clusters, seed.fold(len(prototypes)))
            held = held[self.size :]
            for centroid in found.centroids.to(prototypes.device):
                prototypes, moved = follow(prototypes, centroid[None])
                if not bool(moved[0]):
                    prototypes = torch.cat([prototypes, centroid[None]])
        return prototypes, held
