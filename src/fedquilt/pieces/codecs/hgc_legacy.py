"""Head-gradient compression as its authors' code does it, for comparison only."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedquilt.core.seed import Seed
from fedquilt.errors import FrameError, InputError
from fedquilt.pieces.codecs.bits import Bits, Floats, Ints, bytes_for, pack_bits, plus_minus, unpack_bits
from fedquilt.pieces.codecs.hgc import row_norms
from fedquilt.pieces.codecs.matrices import Matrixwise


@dataclass(frozen=True)
class hgc_legacy(Matrixwise):
    """Signs, and how many rows have which norm. For comparison: it mixes up rows. Use :class:`hgc`.

    With e_k = k r / (K - 1), where r is the largest row norm rounded up to a whole number, row i falls into bin
    d_i = #{k : e_k <= rho_i}. Only the counts C_k of the bins travel, so the decoder deals norms out to rows 0, 1, 2,
    ... in ascending order, whichever row they belong to, while signs keep their rows; a bin's norm is its upper edge;
    zeros count as negative.

    Wire form: C (K int64), the signs (bits), r (32 bytes, as the authors count it: here a whole number and zeros),
    and a bit for each bin that is not empty. The largest norm being a whole number puts a row into bin K, which does
    not exist: their code then stops with an index out of range; here it is an :class:`InputError`.

    Args:
        num_bins: K, one of 8, 16, 32, 64.
        bit_width: Another name for it.
    """

    num_bins: int = 16
    bit_width: int | None = None

    def __post_init__(self) -> None:
        if self.bit_width is not None:
            object.__setattr__(self, "num_bins", self.bit_width)
        if self.num_bins not in (8, 16, 32, 64):
            raise InputError(f"num_bins of hgc_legacy is 8, 16, 32 or 64, got {self.num_bins}.")

    def size(self, rows: int, columns: int) -> int:
        """Bytes of a matrix."""
        return 8 * self.num_bins + bytes_for(self.num_bins) + bytes_for(rows * columns) + 32

    def bins(self, norms: Floats) -> tuple[Ints, int]:
        """(d_i, r) of row norms."""
        largest = norms.max(initial=0.0)
        whole = math.ceil(largest) if 0 < largest < 2**62 else 1
        edges = np.arange(self.num_bins) * whole / (self.num_bins - 1)
        return np.searchsorted(edges, norms, side="right"), whole

    def code(self, matrix: Tensor, seed: Seed, memory: object = None) -> tuple[object, object]:
        """The bytes of a matrix."""
        norms = row_norms(matrix.detach())
        bins, whole = self.bins(norms)
        if np.isfinite(norms).all() and bins.max(initial=0) >= self.num_bins:
            raise InputError(
                f"hgc_legacy: the largest row norm, {norms.max()}, is a whole number, so its row falls into bin "
                f"{self.num_bins} of {self.num_bins}: the authors' code fails here. Use hgc."
            )
        counts = np.bincount(np.minimum(bins, self.num_bins - 1), minlength=self.num_bins)
        signs: Bits = (matrix.detach() > 0).numpy().view(np.uint8).reshape(-1)
        scale = whole if np.isfinite(norms).all() else -1
        tail = scale.to_bytes(32, "little", signed=True)
        return counts.astype("<i8").tobytes() + pack_bits(signs) + tail + pack_bits((counts > 0).view(np.uint8)), None

    def restore(self, part: object, rows: int, columns: int) -> Tensor:
        """The matrix, its rows mixed up."""
        bins, bits = self.num_bins, bytes_for(rows * columns)
        if not isinstance(part, bytes) or len(part) != self.size(rows, columns):
            raise FrameError(f"a coded matrix of {rows} x {columns} has {self.size(rows, columns)} bytes. Truncated?")
        counts = np.frombuffer(part, dtype="<i8", count=bins)
        signs = unpack_bits(part[8 * bins : 8 * bins + bits], rows * columns)
        whole = int.from_bytes(part[8 * bins + bits : 8 * bins + bits + 32], "little", signed=True)
        used = unpack_bits(part[8 * bins + bits + 32 :], bins)
        if not 1 <= whole <= 2**62:
            raise FrameError(f"the largest row norm is {whole}; it must be finite and at least 1.")
        if (counts < 0).any() or counts.max() > rows or counts.sum() != rows or ((counts > 0) != used).any():
            raise FrameError(f"the counts of the bins are not those of {rows} rows.")
        edges = np.arange(bins) * whole / (bins - 1) * used
        sizes = np.repeat(edges / math.sqrt(max(columns, 1)), counts).astype(np.float32)
        return torch.from_numpy(plus_minus(signs, rows, columns) * sizes[:, None])
