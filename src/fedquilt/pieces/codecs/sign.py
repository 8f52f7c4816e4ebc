"""One bit per entry and one scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedquilt.core.errors import FrameError
from fedquilt.core.seed import Seed
from fedquilt.pieces.codecs.bits import Bits, bytes_for, from_float, pack_bits, plus_minus, to_float, unpack_bits
from fedquilt.pieces.codecs.matrices import Matrixwise


@dataclass(frozen=True)
class sign(Matrixwise):
    """+-s with s = mean |g|, which of all scales has the least squared error. A zero counts as negative.

    Wire form: s (float32), then a bit per entry, row by row (1: positive). Biased: use it with error feedback.

    Reference: Karimireddy et al., Error Feedback Fixes SignSGD, 2019.
    """

    def size(self, rows: int, columns: int) -> int:
        """Bytes of a matrix."""
        return bytes_for(32 + rows * columns)

    def code(self, matrix: Tensor, seed: Seed, memory: Any = None) -> tuple[Any, Any]:
        """The bytes of a matrix."""
        entries = matrix.numel()
        scale = float(matrix.abs().sum(dtype=torch.float64)) / max(entries, 1)
        bits: Bits = (matrix.detach() > 0).numpy().view(np.uint8).reshape(-1)
        return to_float(scale) + pack_bits(bits), None

    def restore(self, part: Any, rows: int, columns: int) -> Tensor:
        """The matrix of these bytes."""
        if not isinstance(part, bytes) or len(part) != self.size(rows, columns):
            raise FrameError(f"{rows} x {columns} signs take {self.size(rows, columns)} bytes. Truncated?")
        scale = np.float32(from_float(part[:4], "the scale"))
        values = plus_minus(unpack_bits(part[4:], rows * columns), rows, columns)
        values *= scale
        return torch.from_numpy(values)
