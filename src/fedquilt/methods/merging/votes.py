"""What server and clients of Localize-and-Stitch keep and say."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedquilt.core.params import Names, Params
from fedquilt.core.table import Site
from fedquilt.pieces.merging.standing import Standing
from fedquilt.records.record import record


@record(name="fedquilt.methods.votes:Stitched")
class Stitched:
    """The server's state: the base's, the held-out accuracy of the merged model (None before it is known), if it is to
    be remembered, the last merge, and the share of their weights that clients really sent in the last round."""

    inner: Any
    accuracy: float | None
    standing: Standing | None = None
    sent: float | None = None

    @property
    def shared(self) -> Params:
        """The merged model."""
        shared: Params = self.inner.shared
        return shared


@record(name="fedquilt.methods.votes:Order")
class Order:
    """What a client is sent: the base's download, and which share of its changes it may send."""

    inner: Any
    keep: float


@record(name="fedquilt.methods.votes:Vote")
class MaskedVote:
    """What a client sends: the base's upload, and which classes it has rows of (None: all may vote)."""

    inner: Any
    seen: Tensor | None


def seen_classes(site: Site, delta: Params, head: Names) -> Tensor:
    """Which classes the client has training samples of."""
    rows = next(t.shape[0] for n, t in delta.items() if head(n))
    labels = site.train.columns["y"].index_select(0, site.train.all_rows())
    return torch.bincount(labels.long(), minlength=rows)[:rows] > 0


def without_rows(delta: Params, head: Names, seen: Tensor) -> Params:
    """The change with 0 in the head's rows of other classes."""
    kept = {
        n: torch.where(seen.view(-1, *[1] * (t.dim() - 1)), t, 0.0).to(t.dtype) for n, t in delta.items() if head(n)
    }
    return {**delta, **kept}
