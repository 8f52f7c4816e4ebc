"""Centralised training: what one could reach if the data could be moved.

Training in the first round, and no more.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedquilt.core.holders import HasShared
from fedquilt.methods.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class Centralised(FedAvg):
    """One model trained on the union of all clients' training samples; not a federated method, but the upper frame.

    ``pools_data`` asks the runner to train on ``federation.pooled()``, a source with one client; models are still
    scored client by client. One round is ``epochs`` passes over everything.

    Reference: none; it is no federated method.

    Example:
        >>> from fedquilt import Net, models
        >>> method = Centralised(Net.of(models.MLP, features=64, classes=10))
    """

    pools_data = True


@dataclass(frozen=True, kw_only=True)
class SingleModel(Centralised):
    """One model trained on the union of all clients' samples in a single round of ``epochs_first`` (or ``epochs``)
    passes: the upper baseline of merging. In later rounds nobody is asked, and the model stays what it is.

    Reference: none; it is no federated method.

    Example:
        >>> from fedquilt import Net, models
        >>> method = SingleModel(Net.of(models.MLP, features=64, classes=10), epochs_first=5)
    """

    def plan(self, state: HasShared, round: int) -> tuple[str, ...]:
        """Train in the first round, then nothing."""
        return super().plan(state, round) if round == 0 else ()
