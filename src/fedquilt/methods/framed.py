"""The network of FedLoGe: one body under a fixed frame, a global head and a local head."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedquilt.core.params import Params
from fedquilt.core.table import Batch
from fedquilt.methods.long_tail import two_parts
from fedquilt.pieces.etf import Frame
from fedquilt.pieces.objectives import cross_entropy


class Three(NamedTuple):
    """Scores of the global head, of the fixed frame, and of the local head. Only the frame's move the features."""

    logits: Tensor
    universal: Tensor
    own: Tensor


class Fixed(nn.Module):
    """Scores by fixed class vectors, without bias."""

    vectors: Tensor

    def __init__(self, vectors: Tensor) -> None:
        super().__init__()
        self.register_buffer("vectors", vectors)

    def forward(self, f: Tensor) -> Tensor:
        """Class scores."""
        return f @ self.vectors.T


class Framed(nn.Module):
    """A network in two parts with a frame and a second head ``own``; both heads read features without moving them.

    Args:
        build: Makes the network.
        frame: Makes the settings of the frame, from the numbers of classes and features.
        temperature: A learned factor on the frame's scores that starts here; None for none.
        cosine: Whether the frame sees features of length 1.
    """

    def __init__(
        self, build: Callable[[], nn.Module], frame: Callable[[int, int], Frame], temperature: float | None,
        cosine: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.features, self.head = two_parts(build)
        self.own = nn.Linear(self.head.in_features, self.head.out_features)
        self.frame = Fixed(frame(self.head.out_features, self.head.in_features).build())
        self.temperature = None if temperature is None else nn.Parameter(torch.tensor(temperature))
        self.cosine = cosine

    def forward(self, x: Tensor) -> Three:
        """All three kinds of class scores."""
        f = self.features(x)
        seen, universal = f.detach(), self.frame(F.normalize(f) if self.cosine else f)
        if self.temperature is not None:
            universal = self.temperature * universal
        return Three(self.head(seen), universal, self.own(seen))


def universal_loss(out: Any, params: Params, fixed: Mapping[str, Any], batch: Batch) -> Tensor:
    """Cross-entropy of the frame's scores, times ``fixed["pace"]``."""
    pace = fixed["pace"]
    return cross_entropy(out.universal if pace == 1 else pace * out.universal, params, fixed, batch)


def own_loss(out: Any, params: Params, fixed: Mapping[str, Any], batch: Batch) -> Tensor:
    """Cross-entropy of the local head's scores."""
    return cross_entropy(out.own, params, fixed, batch)
