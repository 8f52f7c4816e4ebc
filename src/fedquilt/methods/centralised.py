"""Centralised training: what one could reach if the data could be moved."""

from __future__ import annotations

from dataclasses import dataclass

from fedquilt.methods.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class Centralised(FedAvg):
    """One model trained on the union of all clients' training rows; not a federated method, but the upper frame.

    ``pools_data`` asks the runner to train on ``federation.pooled()``, a source with one client; models are still
    scored client by client. One round is ``epochs`` passes over everything.

    Reference: none; it is no federated method.
    """

    pools_data = True
