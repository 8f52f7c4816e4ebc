"""A matrix as a product of two thin ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedquilt.core.seed import Seed
from fedquilt.errors import FrameError, InputError
from fedquilt.pieces.codecs.matrices import Matrixwise


@dataclass(frozen=True)
class power_sgd(Matrixwise):
    """PowerSGD: one step of power iteration from the last Q: P = orthonormal(M Q), Q = M^T P, and P Q^T comes back.

    Wire form: P [rows, k] and Q [columns, k] (float32, so that ``chain`` can make them smaller); a matrix for which
    that is not smaller travels as it is. Q is remembered at the client. Biased: use it with error feedback.

    Args:
        rank: k, at least 1.

    Reference: Vogels et al., PowerSGD, 2019.
    """

    rank: int = 2

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise InputError(f"rank must be at least 1, got {self.rank}.")

    def thin(self, rows: int, columns: int) -> bool:
        """Whether two factors are smaller than the matrix."""
        return self.rank * (rows + columns) < rows * columns

    def size(self, rows: int, columns: int) -> int:
        """Bytes of a matrix."""
        return 4 * (self.rank * (rows + columns) if self.thin(rows, columns) else rows * columns)

    def code(self, matrix: Tensor, seed: Seed, memory: object = None) -> tuple[object, object]:
        """The two factors; the second is also remembered."""
        matrix = matrix.detach()
        rows, columns = matrix.shape
        if not self.thin(rows, columns):
            return matrix, torch.zeros(0)
        if isinstance(memory, Tensor) and memory.shape == (columns, self.rank) and bool(memory.any()):
            start = memory
        else:
            start = torch.randn(columns, self.rank, generator=seed.torch())
        if not bool(matrix.isfinite().all()):  # it will be refused where it arrives
            return (torch.full((rows, self.rank), torch.nan), torch.full((columns, self.rank), torch.nan)), memory
        left = torch.linalg.qr(matrix @ start).Q
        right = matrix.t() @ left
        return (left, right), right

    def restore(self, part: object, rows: int, columns: int) -> Tensor:
        """The product."""
        if not self.thin(rows, columns):
            return _factor(part, rows, columns)
        if not isinstance(part, tuple) or len(part) != 2:
            raise FrameError("a matrix of low rank travels as two factors.")
        left, right = _factor(part[0], rows, self.rank), _factor(part[1], columns, self.rank)
        found: Tensor = left.contiguous() @ right.contiguous().t()  # the last bits may depend on the layout
        return found


def _factor(factor: object, rows: int, columns: int) -> Tensor:
    if not isinstance(factor, Tensor) or factor.dtype is not torch.float32 or factor.shape != (rows, columns):
        raise FrameError(f"a factor must be a float32 tensor of {rows} x {columns}.")
    if not bool(factor.isfinite().all()):
        raise FrameError("a factor is not finite. Did training diverge?")
    return factor
