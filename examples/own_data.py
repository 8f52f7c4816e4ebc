"""Data of one's own: a function that gives x and y, or a Federation where it is clear who has what."""

import numpy as np

from fedquilt import Federation


def hospital(shift: float, patients: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Made-up measurements; every hospital's scanner has its own offset."""
    rng = np.random.default_rng(seed)
    x = rng.normal(shift, 1.0, (patients, 8)).astype(np.float32)
    return x, (x[:, 0] - shift + 0.5 * rng.normal(size=patients) > 0).astype(np.int64)


def hospitals() -> Federation:
    """Three hospitals, each a client."""
    rows = {"oslo": hospital(0.0, 400, 1), "bergen": hospital(0.5, 250, 2), "bodø": hospital(-0.5, 90, 3)}
    return Federation.from_clients(rows, test=0.25, valid=0.1)


def pooled() -> tuple[np.ndarray, np.ndarray]:
    """The rows of one hospital, to be dealt to clients by the recipe."""
    return hospital(0.0, 600, 4)
