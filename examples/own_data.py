"""Data and a network of one's own: three lines for the data, one for the network.

Run: python examples/own_data.py
"""

from __future__ import annotations

import numpy as np
import torch

from fedquilt import FedAvg, Federation, Net, run


class Classifier(torch.nn.Sequential):
    """Any torch.nn.Module that can be built without arguments."""

    def __init__(self) -> None:
        super().__init__(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))


def hospital(shift: float, patients: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Made-up measurements; every hospital's scanner has its own offset."""
    rng = np.random.default_rng(seed)
    x = rng.normal(shift, 1.0, (patients, 8)).astype(np.float32)
    return x, (x[:, 0] - shift + 0.5 * rng.normal(size=patients) > 0).astype(np.int64)


def main() -> float:
    """Train across three hospitals; returns the accuracy."""
    # Own data: three lines.
    oslo, bergen, bodo = hospital(0.0, 400, 1), hospital(0.5, 250, 2), hospital(-0.5, 90, 3)
    federation = Federation.from_clients({"oslo": oslo, "bergen": bergen, "bodø": bodo}, test=0.25, valid=0.1)
    method = FedAvg(objective=Net(Classifier), batch_size=16)  # own network: one

    *_, snapshot = run(method, federation, rounds=15)
    for client, scores in snapshot.evaluations.items():
        print(f"{client}: accuracy {scores['deployed']['test'].accuracy:.3f}")
    print(f"mean over hospitals: {snapshot.metrics['test_accuracy']:.3f}")
    return snapshot.metrics["test_accuracy"]


if __name__ == "__main__":
    main()
