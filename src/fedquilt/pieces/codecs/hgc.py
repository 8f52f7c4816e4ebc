"""Head-gradient compression: one bit per entry and a few bits for the norm of each row."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedquilt.core.seed import Seed
from fedquilt.errors import FrameError, InputError
from fedquilt.pieces.codecs.bits import Bits, Floats, Ints, Whole, bytes_for, from_float, plus_minus, to_float, width_of
from fedquilt.pieces.codecs.matrices import Matrixwise
from fedquilt.pieces.codecs.stages import ALL, Lossless, Sections, read, write

SLACK = 1e-6  # a norm this close to an edge lies on it, as a share of the largest


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
        lossless: What is done to the bits after K, kept only if it is smaller: ``"deflate"``, ``"gaps"`` (Rice's
            code of the distances between rare signs), ``"adaptive"`` (an arithmetic coder with a model for each row: a
            few per cent smaller, slow; up to 2**20 entries), or ``"smallest"`` of these.
        bit_width: Another name for ``num_bins``.

    Reference: CEHGLS, with the index of every row, the exact maximum and the mark of dead columns that its code lacks.
    """

    num_bins: int = 16
    representative: Literal["midpoint", "upper", "unbiased"] = "midpoint"
    lossless: Lossless = "none"
    bit_width: int | None = None
    column_bits: ClassVar[int] = 0  # that tell the scale of a live column
    may_have: ClassVar[range] = range(1)  # of these

    def __post_init__(self) -> None:
        if self.bit_width is not None:
            object.__setattr__(self, "num_bins", self.bit_width)
        if not 2 <= self.num_bins <= 64:
            raise InputError(f"num_bins must be from 2 to 64, got {self.num_bins}.")
        if self.representative not in ("midpoint", "upper", "unbiased"):
            raise InputError(f"representative must be midpoint, upper or unbiased, got {self.representative!r}.")
        if self.lossless not in ALL:
            raise InputError(f"lossless must be one of {', '.join(ALL)}, got {self.lossless!r}.")
        if self.column_bits not in self.may_have:
            raise InputError(f"column_bits must be from 1 to {self.may_have[-1]}, got {self.column_bits}.")

    def size(self, rows: int, columns: int, live: int | None = None) -> int:
        """Bytes of a matrix of which so many columns are not all zero, before any lossless stage."""
        alive = columns if live is None else live
        fixed = rows * width_of(self.num_bins) + columns
        return bytes_for(40 + fixed + (rows + self.column_bits) * alive)

    def code(self, matrix: Tensor, seed: Seed, memory: object = None) -> tuple[object, object]:
        """The bits of a matrix."""
        matrix = matrix.detach()
        norms = row_norms(matrix)
        largest = float(np.float32(norms.max(initial=0.0)))
        live = live_columns(matrix)
        sections = Sections(
            self.indices(norms, largest, seed),
            live,
            column_codes(matrix, live, self.column_bits),
            sign_bits(matrix, live),
        )
        stage, body = write(sections, width_of(self.num_bins), self.column_bits, self.lossless)
        return to_float(largest) + bytes([stage << 6 | self.num_bins - 1]) + body, None

    def restore(self, part: object, rows: int, columns: int) -> Tensor:
        """The matrix of these bits."""
        if not isinstance(part, bytes) or len(part) < 5:
            raise FrameError(f"a coded matrix has at least 5 bytes, got {part!r:.40}. Truncated?")
        if part[4] & 63 != self.num_bins - 1:
            raise FrameError(f"a matrix coded with {(part[4] & 63) + 1} bins; {self.num_bins} are expected.")
        largest = from_float(part[:4], "the largest row norm")
        found = read(part[4] >> 6, part[5:], rows, columns, width_of(self.num_bins), self.column_bits)
        if rows and found.index.max() >= self.num_bins:
            raise FrameError(f"row index {found.index.max()} of {self.num_bins}.")
        scales = column_scales(found.codes, int(found.live.sum()), self.column_bits)
        return spread(found, self.norms(found.index, largest), scales)

    def indices(self, norms: Floats, largest: float, seed: Seed) -> Ints:
        """k_i of every row."""
        most = self.num_bins - 1
        if not math.isfinite(largest) or largest <= 0:
            return np.zeros(len(norms), dtype=np.int64)  # nothing to tell, or a scale that will be refused
        steps = norms / (largest / most)
        if self.representative == "unbiased":
            lower = np.floor(steps + SLACK * most)
            up = seed.numpy().random(len(norms)) < steps - lower
            drawn: Ints = np.clip(lower + up, 0, most).astype(np.int64)
            return drawn
        return np.where(norms > 0, np.clip(np.ceil(steps - SLACK * most), 1, most), 0).astype(np.int64)

    def norms(self, steps: Whole, largest: float) -> Floats:
        """b_i of every row."""
        step = largest / (self.num_bins - 1)
        middle = 0.5 if self.representative == "midpoint" else 0.0
        return np.where(steps > 0, (steps - middle) * step, 0.0)


@dataclass(frozen=True)
class hgc_rc(hgc):
    """:class:`hgc` with a scale for each column too: closer to the truth for a few more bits.

    A live column of norm q_j travels as l_j = ceil(2**B sqrt(q_j / max q)), from 1 to 2**B; with
    u_j = ((l_j - 1/2) / 2**B)**2 and u scaled to length 1, an entry comes back as +-b_i u_j. Wire form: that of hgc,
    with l_j - 1 in B bits for each live column before the signs.

    Args:
        column_bits: B, from 1 to 8.
    """

    column_bits: int = 2  # type: ignore[misc] # an option here
    may_have: ClassVar[range] = range(1, 9)


def column_codes(matrix: Tensor, live: Bits, bits: int) -> Ints:
    """l_j - 1 of every live column."""
    if not bits:
        return np.zeros(0, dtype=np.int64)
    norms = row_norms(matrix.t())[live.astype(bool)]
    largest = norms.max(initial=0.0)
    if not 0 < largest < math.inf:
        return np.zeros(len(norms), dtype=np.int64)
    levels = 1 << bits
    steps = np.clip(np.ceil(levels * (np.sqrt(norms / largest) - SLACK)), 1, levels)
    codes: Ints = (steps - 1).astype(np.int64)
    return codes


def column_scales(codes: Whole, alive: int, bits: int) -> Floats:
    """One number for each live column, of length 1 together."""
    if not bits:
        return np.full(alive, 1 / math.sqrt(max(alive, 1)))
    scales = ((codes + 0.5) / (1 << bits)) ** 2
    return scales / max(float(np.sqrt((scales**2).sum())), 1e-300)


def row_norms(matrix: Tensor) -> Floats:
    """Euclidean norms; squares that float32 cannot hold are summed in float64."""
    norms: Floats = torch.linalg.vector_norm(matrix, dim=1).double().numpy()
    if len(norms) and not (norms.min() > 1e-12 and norms.max() < 1e12):
        norms = torch.linalg.vector_norm(matrix, dim=1, dtype=torch.float64).numpy()
    return norms


def live_columns(matrix: Tensor) -> Bits:
    """1 for each column that is not all zero."""
    live = (matrix[:16] != 0).any(dim=0)
    if not live.all():  # a few rows show most of the living
        rest = (~live).nonzero().flatten()
        live[rest] = (matrix[:, rest] != 0).any(dim=0)
    found: Bits = live.numpy().view(np.uint8)
    return found


def sign_bits(matrix: Tensor, live: Bits) -> Bits:
    """1 for each positive entry of the live columns, row by row."""
    chosen = matrix if live.all() else matrix[:, torch.from_numpy(live.view(bool))]
    found: Bits = (chosen > 0).numpy().view(np.uint8).reshape(-1)
    return found


def spread(found: Sections, rows: Floats, columns: Floats) -> Tensor:
    """+-rows_i columns_j on the live columns, 0 elsewhere."""
    values = plus_minus(found.signs, len(rows), len(columns))
    if len(columns) and (columns == columns[0]).all():
        values *= (rows * columns[0]).astype(np.float32)[:, None]
    else:
        values *= rows.astype(np.float32)[:, None] * columns.astype(np.float32)
    if len(columns) == len(found.live):
        return torch.from_numpy(values)
    whole = torch.zeros(len(rows), len(found.live))
    whole[:, torch.from_numpy(found.live.view(bool))] = torch.from_numpy(values)
    return whole
