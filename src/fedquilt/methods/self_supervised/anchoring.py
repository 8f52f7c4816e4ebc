"""The local loss of PODFCSSV: guess hidden patches, stay near the bank; own prototypes follow on the way."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedquilt.core.holders import Fixed
from fedquilt.core.net import Net
from fedquilt.core.params import Params
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch
from fedquilt.methods.self_supervised.masked import guessed
from fedquilt.pieces.objectives import weighted_mean
from fedquilt.pieces.prototypes.gpad import GPAD
from fedquilt.pieces.prototypes.memory import FollowingPrototypes, Novelty

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
