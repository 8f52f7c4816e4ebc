"""Dataset folders as PFLlib writes them, small."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np


def write_folder(
    root: Path,
    name: str = "MNIST",
    clients: int = 4,
    shape: tuple[int, ...] = (1, 28, 28),
    rows: int = 24,
    classes: int = 3,
) -> Path:
    """root/NAME with train, test and config.json; each class is a bright stripe of its own, values from -1 to 1."""
    rng = np.random.default_rng(0)
    folder = root / name
    for part, count in (("train", rows), ("test", rows // 2)):
        (folder / part).mkdir(parents=True)
        for client in range(clients):
            y = (np.arange(count) + client) % classes
            x = rng.uniform(-1, -0.6, size=(count, *shape)).astype(np.float32)
            for row, label in enumerate(y):
                x[row, ..., 4 * label : 4 * label + 4] += 1.5
            data: dict[str, Any] = {"x": np.clip(x, -1, 1), "y": y}
            np.savez_compressed(folder / part / f"{client}.npz", data=data)
    settings = {"num_clients": clients, "num_classes": classes, "non_iid": True, "balance": False, "partition": "dir"}
    (folder / "config.json").write_text(json.dumps({**settings, "alpha": 0.2, "batch_size": 10}))
    return folder
