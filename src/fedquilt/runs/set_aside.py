"""Rows set aside for pretraining, so that no client ever holds an image that the backbone was trained on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedquilt.core.errors import InputError
from fedquilt.core.seed import Seed
from fedquilt.data import Arrays


def rows_aside(count: int, share: float, seed: int) -> NDArray[Any]:
    """The row numbers, ascending, that are set aside of so many; the same for everybody who asks with this seed."""
    many = int(share * count)
    if not 0 < many < count:
        raise InputError(f"data.pretraining = {share} sets {many} of {count} rows aside; both parts need rows.")
    return np.sort(Seed(seed).fold("pretraining").numpy().permutation(count)[:many])


def set_aside(arrays: Arrays, share: float, seed: int) -> tuple[Arrays, Arrays]:
    """The training rows for pretraining, and the others, for clients. The common test set stays with the others."""
    chosen = np.zeros(len(arrays.y), np.bool_)
    chosen[rows_aside(len(arrays.y), share, seed)] = True
    return replace(_rows(arrays, chosen), x_test=None, y_test=None), _rows(arrays, ~chosen)


def _rows(arrays: Arrays, chosen: NDArray[Any]) -> Arrays:
    user = None if arrays.user is None else arrays.user[chosen]
    return replace(arrays, x=arrays.x[chosen], y=arrays.y[chosen], user=user)
