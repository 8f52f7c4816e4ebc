"""Head-gradient compression: one bit per entry and a few bits for the norm of each row."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedquilt.core.errors import FrameError, InputError
from fedquilt.core.seed import Seed
from fedquilt.pieces.codecs.adaptive import Decoder, Encoder, contexts
from fedquilt.pieces.codecs.bits import (
    Bits, bytes_for, from_bits, from_float, pack_bits, to_bits, to_float, unpack_bits, width_of,
)  # fmt: skip
from fedquilt.pieces.codecs.matrices import Matrixwise

SLACK = 1e-6  # a norm this close to an edge lies on it
MOST_ADAPTIVE = 2**20  # entries that are coded bit by bit
_PLAIN, _DEFLATED, _ADAPTIVE = range(3)
Lossless = Literal["none", "deflate", "adaptive", "smallest"]


@dataclass(frozen=True)
class hgc(Matrixwise):
    """Signs, and the norm of each row in K - 1 steps of the largest.

    With the row norms rho_i, their maximum R and D = R / (K - 1), row i travels as k_i = ceil(rho_i / D) (0 only for
    a row of zeros) and its signs; columns of zeros are marked and stay zero. It comes back as +-b_i / sqrt(c) on the
    c live columns, where b_i is (k_i - 1/2) D, so rows keep their norm up to D / 2. A zero in a live column counts
    as negative.

    Wire form, one stream of bits: R (float32), stage (2 bits), K - 1 (6 bits), every k_i (ceil(log2 K) bits), a bit per
    column (1: live), and the signs of the live columns row by row (1: positive). :meth:`size` gives its bytes.

    Args:
        num_bins: K, from 2 to 64.
        representative: ``"midpoint"``; ``"upper"``: k_i D; ``"unbiased"``: rho_i / D rounded up or down at random such
            that the mean is rho_i.
        lossless: What is done to the bits after R and K, kept only if it is smaller: ``"deflate"``, ``"adaptive"`` (an
            arithmetic coder with a model for each row; up to 2**20 entries), or ``"smallest"`` of these.
        bit_width: Another name for ``num_bins``.

    Reference: CEHGLS, with the index of every row, the exact maximum and the mark of dead columns that its code lacks.
    """

    num_bins: int = 16
    representative: Literal["midpoint", "upper", "unbiased"] = "midpoint"
    lossless: Lossless = "none"
    bit_width: int | None = None

    def __post_init__(self) -> None:
        if self.bit_width is not None:
            object.__setattr__(self, "num_bins", self.bit_width)
        if not 2 <= self.num_bins <= 64:
            raise InputError(f"num_bins must be from 2 to 64, got {self.num_bins}.")
        if self.representative not in ("midpoint", "upper", "unbiased"):
            raise InputError(f"representative must be midpoint, upper or unbiased, got {self.representative!r}.")
        if self.lossless not in ("none", "deflate", "adaptive", "smallest"):
            raise InputError(f"lossless must be none, deflate, adaptive or smallest, got {self.lossless!r}.")

    def size(self, rows: int, columns: int, live: int | None = None) -> int:
        """Bytes of a matrix of which so many columns are not all zero, before any lossless stage."""
        return bytes_for(40 + self._bits(rows, columns, columns if live is None else live))

    def _bits(self, rows: int, columns: int, live: int) -> int:
        return rows * width_of(self.num_bins) + columns + rows * live

    def code(self, matrix: Tensor, seed: Seed, memory: Any = None) -> tuple[Any, Any]:
        """The bits of a matrix."""
        norms = row_norms(matrix)
        largest = np.float32(norms.max(initial=0.0))
        index = to_bits(self.indices(norms, float(largest), seed), width_of(self.num_bins))
        live = live_columns(matrix)
        signs = sign_bits(matrix, live)
        return to_float(float(largest)) + self._staged(index, live, signs), None

    def _staged(self, index: Bits, live: Bits, signs: Bits) -> bytes:
        """The cheapest of the stages that are allowed, with its mark."""
        body = pack_bits(index, live, signs)
        best = bytes([_PLAIN << 6 | self.num_bins - 1]) + body
        if self.lossless in ("deflate", "smallest"):
            best = min(best, bytes([_DEFLATED << 6 | self.num_bins - 1]) + deflated(body), key=len)
        if self.lossless in ("adaptive", "smallest") and len(signs) <= MOST_ADAPTIVE:
            rows = len(index) // width_of(self.num_bins)
            encoder = Encoder()
            encoder.bits(index, np.arange(len(index)))  # each with a context of its own: as it is
            encoder.bits(live, np.zeros(len(live), dtype=np.int64))
            encoder.bits(signs, contexts([len(signs) // max(rows, 1)] * rows))
            best = min(best, bytes([_ADAPTIVE << 6 | self.num_bins - 1]) + encoder.finish(), key=len)
        return best

    def restore(self, part: Any, rows: int, columns: int) -> Tensor:
        """The matrix of these bits."""
        largest, stage, body = opened(part, self.num_bins)
        index, live, signs = self._unstaged(stage, body, rows, columns)
        scales = self.norms(index, largest) / math.sqrt(max(int(live.sum()), 1))
        return spread(signs, live, torch.from_numpy(scales.astype(np.float32))[:, None])

    def _unstaged(self, stage: int, body: bytes, rows: int, columns: int) -> tuple[Any, Bits, Bits]:
        width = width_of(self.num_bins)
        fixed = rows * width + columns
        if stage == _ADAPTIVE:
            if rows * columns > MOST_ADAPTIVE:
                raise FrameError(f"adaptive coding of {rows} x {columns} entries; {MOST_ADAPTIVE} are the most.")
            decoder = Decoder(body)
            index = decoder.bits(np.arange(rows * width))
            live = decoder.bits(np.zeros(columns, dtype=np.int64))
            signs = decoder.bits(contexts([int(live.sum())] * rows))
            decoder.finish()
        else:
            if stage == _DEFLATED:
                body = inflated(body, bytes_for(fixed + rows * columns))
            if len(body) < bytes_for(fixed):
                raise FrameError(f"{rows} rows and {columns} columns need {bytes_for(fixed)} bytes. Truncated?")
            head = np.unpackbits(np.frombuffer(body, dtype=np.uint8, count=bytes_for(fixed)))
            live = head[rows * width : fixed]
            bits = unpack_bits(body, fixed + rows * int(live.sum()))
            index, signs = bits[: rows * width], bits[fixed:]
        steps = from_bits(index, width)
        if len(steps) and steps.max() >= self.num_bins:
            raise FrameError(f"row index {steps.max()} of {self.num_bins}.")
        return steps, live, signs

    def indices(self, norms: Any, largest: float, seed: Seed) -> Any:
        """k_i of every row."""
        most = self.num_bins - 1
        if not math.isfinite(largest) or largest <= 0:
            return np.zeros(len(norms), dtype=np.int64)  # nothing to tell, or a scale that will be refused
        steps = norms / (largest / most)
        if self.representative == "unbiased":
            lower = np.floor(steps + SLACK)
            up = seed.numpy().random(len(norms)) < steps - lower
            return np.clip(lower + up, 0, most).astype(np.int64)
        return np.where(norms > 0, np.clip(np.ceil(steps - SLACK), 1, most), 0).astype(np.int64)

    def norms(self, steps: Any, largest: float) -> Any:
        """b_i of every row."""
        step = largest / (self.num_bins - 1)
        middle = 0.5 if self.representative == "midpoint" else 0.0
        return np.where(steps > 0, (steps - middle) * step, 0.0)


def row_norms(matrix: Tensor) -> Any:
    """Euclidean norms in float64; where float32 suffices to sum squares it is used."""
    return torch.linalg.vector_norm(matrix.detach(), dim=1, dtype=torch.float64).numpy()


def live_columns(matrix: Tensor) -> Bits:
    """1 for each column that is not all zero."""
    found: Bits = (matrix.detach() != 0).any(dim=0).numpy().astype(np.uint8)
    return found


def sign_bits(matrix: Tensor, live: Bits) -> Bits:
    """1 for each positive entry of the live columns, row by row."""
    chosen = matrix.detach() if live.all() else matrix.detach()[:, torch.from_numpy(live.astype(bool))]
    found: Bits = (chosen > 0).numpy().view(np.uint8).reshape(-1)
    return found


def spread(signs: Bits, live: Bits, scales: Tensor) -> Tensor:
    """+-scales on the live columns (given per row, or for every entry), 0 elsewhere."""
    rows, alive = len(scales), int(live.sum())
    values = torch.from_numpy(signs.astype(np.float32)).view(rows, alive).mul_(2).sub_(1).mul_(scales)
    if alive == len(live):
        return values
    whole = torch.zeros(rows, len(live))
    whole[:, torch.from_numpy(live.astype(bool))] = values
    return whole


def opened(part: Any, bins: int) -> tuple[float, int, bytes]:
    """Scale, stage and the rest of a part."""
    if not isinstance(part, bytes) or len(part) < 5:
        raise FrameError(f"a coded matrix has at least 5 bytes, got {part!r:.40}. Truncated?")
    stage = part[4] >> 6
    if stage > _ADAPTIVE or part[4] & 63 != bins - 1:
        raise FrameError(f"a matrix coded with {(part[4] & 63) + 1} bins in stage {stage}; {bins} bins are expected.")
    return from_float(part[:4], "the largest row norm"), stage, part[5:]


def deflated(body: bytes) -> bytes:
    """Raw deflate at its best."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(body) + packer.flush()


def inflated(body: bytes, most: int) -> bytes:
    """What was deflated, if it is no longer than ``most``."""
    unpacker = zlib.decompressobj(-15)
    try:
        out = unpacker.decompress(body, most + 1)
    except zlib.error as error:
        raise FrameError(f"deflated bits are damaged: {error}.") from error
    if len(out) > most or not unpacker.eof or unpacker.unused_data:
        raise FrameError("deflated bits do not end where they should. Truncated or damaged?")
    return out
