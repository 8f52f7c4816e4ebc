"""FedAvg as one would write it by hand, and the same run by fedquilt: the numbers are equal.

Run: python examples/plain_fedavg.py

No library is needed to understand FedAvg: a loop over rounds, a loop over clients, a loop over batches, a mean. The
only things borrowed from fedquilt are the data and the seeds, so that both see the same batches.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from fedquilt import FedAvg, Federation, Net, Seed, run
from fedquilt.data import Dirichlet
from fedquilt.models import MLP
from fedquilt.pieces.optimizers import SGD

ROUNDS, BATCH, LR = 3, 16, 0.1


def build() -> torch.nn.Module:
    """The model."""
    return MLP(features=64, classes=10, hidden=(32,))


def plain(federation: Federation, start: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """FedAvg without the library."""
    model, seed = build(), Seed(0)
    weights = start
    for number in range(ROUNDS):
        total = {name: torch.zeros_like(w, dtype=torch.float64) for name, w in weights.items()}
        samples = 0
        for client in federation.ids:
            model.load_state_dict(weights)
            optimizer = torch.optim.SGD(model.parameters(), lr=LR)
            rows = federation.site(client, number).train
            order = seed.fold("work", "train", number, client).fold("batches")
            for batch in rows.batches(BATCH, 1, order):
                optimizer.zero_grad()
                F.cross_entropy(model(batch.x), batch.y).backward()
                optimizer.step()
            for name, w in model.state_dict().items():
                total[name] += (w - weights[name]).double() * len(rows)
            samples += len(rows)
        weights = {name: w + (total[name] / samples).float() for name, w in weights.items()}
    return weights


def main() -> float:
    """Run both; returns the largest difference between any two weights."""
    torch.set_num_threads(1)
    federation = Federation.from_source("digits", partition=Dirichlet(0.5), clients=5)
    method = FedAvg(objective=Net(build), optimizer=SGD(LR), batch_size=BATCH)
    by_hand = plain(federation, Net(build).init(Seed(0).fold("server")))
    for snapshot in run(method, federation, rounds=ROUNDS, engine="local"):
        print(f"round {snapshot.round}: accuracy {snapshot.metrics['test_accuracy']:.3f}")
    by_library = snapshot.global_model()
    difference = max(float((by_hand[n] - by_library[n]).abs().max()) for n in by_hand)
    print(f"largest difference between the two models: {difference}")
    return difference


if __name__ == "__main__":
    main()
