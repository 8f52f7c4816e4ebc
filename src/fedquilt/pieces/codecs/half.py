"""Sixteen bits per entry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fedquilt.core.errors import FrameError, InputError
from fedquilt.core.seed import Seed
from fedquilt.pieces.codecs.matrices import Matrixwise


@dataclass(frozen=True)
class half(Matrixwise):
    """The nearest number of 16 bits.

    Args:
        kind: ``"float16"`` (11 digits of precision, up to 65504) or ``"bfloat16"`` (8 digits, float32's range).
    """

    kind: Literal["float16", "bfloat16"] = "float16"

    def __post_init__(self) -> None:
        if self.kind not in ("float16", "bfloat16"):
            raise InputError(f"half is float16 or bfloat16, got {self.kind!r}.")

    def size(self, rows: int, columns: int) -> int:
        """Bytes of a matrix."""
        return 2 * rows * columns

    def code(self, matrix: Tensor, seed: Seed, memory: Any = None) -> tuple[Any, Any]:
        """The matrix in 16 bits."""
        return matrix.detach().to(getattr(torch, self.kind)), None

    def restore(self, part: Any, rows: int, columns: int) -> Tensor:
        """The matrix in 32 bits."""
        if not isinstance(part, Tensor) or part.dtype is not getattr(torch, self.kind) or part.shape != (rows, columns):
            raise FrameError(f"{rows} x {columns} entries of {self.kind} are needed.")
        whole = part.float()
        if not bool(whole.isfinite().all()):
            raise FrameError(
                f"a number is not finite as {self.kind}. Did training diverge? bfloat16 has a wider range."
            )
        return whole
