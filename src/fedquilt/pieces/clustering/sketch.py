"""Sketches: a seeded random projection that keeps angles and sends d numbers instead of P.

S v with S [d, P] of independent N(0, 1/d): <S u, S v> is <u, v> on average; the error of a cosine is about 1/sqrt(d).
S follows from (seed, P, d) alone, so everybody who knows them makes the same sketch, and it is made in blocks: P x d
numbers are never in memory at once.

Reference: Johnson and Lindenstrauss, Extensions of Lipschitz mappings into a Hilbert space, 1984.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from fedquilt.core.seed import Seed
from fedquilt.errors import InputError

BLOCK = 4096  # columns of S at a time; part of the definition, since each block has a seed of its own


def blocks(length: int, size: int, seed: Seed) -> Iterator[tuple[slice, Tensor]]:
    """The projection, transposed, block by block: which entries of a vector, and [entries, size] numbers."""
    if size < 1:
        raise InputError(f"A sketch needs at least 1 number, got size {size}.")
    for low in range(0, length, BLOCK):
        high = min(low + BLOCK, length)
        draw = seed.fold("sketch", length, size, low).torch()
        yield slice(low, high), torch.randn(high - low, size, generator=draw) / math.sqrt(size)


def sketch(vector: Tensor, size: int, seed: Seed) -> Tensor:
    """The sketch of a vector [P], or of each row of [n, P]; a vector of at most ``size`` numbers stays as it is."""
    length = vector.shape[-1]
    if length <= size:
        return vector
    total = vector.new_zeros(*vector.shape[:-1], size, dtype=torch.float32)
    for place, part in blocks(length, size, seed):
        total = total + vector[..., place].float() @ part
    return total
