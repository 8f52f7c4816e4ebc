"""What server and clients of PODFCSSV keep and say, and the local loss anchored to prototypes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedquilt.core.holders import Fixed
from fedquilt.core.net import Net
from fedquilt.core.params import Params
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch
from fedquilt.core.train import Memory
from fedquilt.methods.self_supervised.masked import guessed
from fedquilt.pieces.objectives import weighted_mean
from fedquilt.pieces.prototypes.bank import Arrivals, Bank
from fedquilt.pieces.prototypes.centre import Centre
from fedquilt.pieces.prototypes.gpad import GPAD
from fedquilt.pieces.prototypes.memory import FollowingPrototypes, Novelty
from fedquilt.records.declared import Between
from fedquilt.records.record import record


@record(name="fedquilt.methods.podfcssv_records:Anchors")
class Anchors:
    """The server's state: the adapters, the bank, the mean of features, and what became of the last prototypes.

    ``arrived`` counts all prototypes that ever came.
    """

    shared: Params
    bank: Bank
    centre: Centre
    arrivals: Arrivals
    arrived: int = 0


@record(name="fedquilt.methods.podfcssv_records:Keeper")
class Keeper:
    """A client's state, kept from round to round and from task to task.

    Its own adapters, if they are not shared ({} otherwise); its prototypes, as they are sent; rows near none of them;
    the optimiser's memory; and of the last client update the mean losses (reconstruction, anchoring) and how many rows
    moved a prototype.
    """

    private: Params
    prototypes: Tensor
    novel: Tensor
    memory: Memory | None = None
    losses: tuple[float, float] = (0.0, 0.0)
    followed: int = 0


@record(name="fedquilt.methods.podfcssv_records:Anchored")
class Anchored:
    """What a client is sent: adapters, the rows of the bank [M, D], and the mean to subtract [D]."""

    shared: Params
    bank: Tensor
    centre: Tensor


@record(name="fedquilt.methods.podfcssv_records:Learned")
class AdapterUpload:
    """What a client answers: how the adapters changed, prototypes [K, D], the rows behind each [K], and how many rows
    it trained on. With centring, prototypes are means of features as they are; otherwise they have length 1."""

    delta: Params
    prototypes: Tensor
    counts: Annotated[Tensor, torch.int64, Between(1, 10**9)]
    rows: int


@record(name="fedquilt.methods.podfcssv_records:Seen")
class PrototypeUpload:
    """What a client answers when it only looked at its data: as :class:`AdapterUpload`, without adapters."""

    prototypes: Tensor
    counts: Annotated[Tensor, torch.int64, Between(1, 10**9)]


# Beside the names of a model, as BatchNorm's statistics are: what a training step changes without a gradient.
OWN, NOVEL, TOLD = "prototypes:own", "prototypes:novel", "prototypes:told"


@dataclass(frozen=True)
class Anchoring:
    """mean(reconstruction) + lambda_proto GPAD(embedding - centre, bank); without a bank, the first term alone.

    ``fixed`` holds ``bank`` [M, D] and ``centre`` [D]. After the loss of a batch the client's own prototypes follow its
    rows (no gradient). With ``novelty``, rows are routed: those at or above GPAD's threshold are anchored and leave the
    own prototypes alone; others move the nearest own prototype; and those near none are collected.
    """

    net: Net
    gpad: GPAD = GPAD()  # noqa: RUF009 - frozen, so it can be shared
    lambda_proto: float = 1.0
    follow: FollowingPrototypes = FollowingPrototypes()  # noqa: RUF009
    novelty: Novelty | None = None

    @property
    def trainable(self) -> tuple[str, ...]:
        """Those of the network."""
        return self.net.trainable

    def __call__(self, params: Params, fixed: Fixed, batch: Batch) -> Tensor:
        out = guessed(self.net, params, batch)
        loss = weighted_mean(out.loss, batch.weight)
        told = [loss.detach(), torch.zeros_like(loss)]
        z = out.embedding.float() - fixed["centre"]
        if self.lambda_proto and len(fixed["bank"]):
            pull = self.gpad(z, fixed["bank"], batch.weight)
            told[1] = pull.detach()
            loss = loss + self.lambda_proto * pull
        moved = self._remember(params, fixed, z.detach())
        params[TOLD] = params[TOLD] + torch.stack([*told, torch.ones_like(told[0]), moved.to(told[0].dtype)])
        return loss

    def _remember(self, params: Params, fixed: Fixed, z: Tensor) -> Tensor:
        """The own prototypes after these rows; how many of them moved one."""
        own = params[OWN]
        if not len(own):
            return z.new_zeros(())
        if self.novelty is None:
            params[OWN], moved = self.follow(own, z)
            return moved.sum()
        if len(fixed["bank"]):
            found = self.gpad.gates(z, fixed["bank"])
            z = z[found.similarity < found.tau]
        own, moved = self.follow(own, z)
        seed = Seed(fixed["seed"]).fold("novelty", int(params[TOLD][2]))
        params[OWN], params[NOVEL] = self.novelty(own, params[NOVEL], z[~moved], self.follow, seed)
        return moved.sum()
