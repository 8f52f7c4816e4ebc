"""A few entries of a matrix; the others come back as zeros."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedquilt.core.params import Names, Params, finite, is_weight
from fedquilt.core.seed import Seed
from fedquilt.core.select import at_least, chosen, jittered, marked, threshold
from fedquilt.errors import FrameError, InputError
from fedquilt.pieces.codecs.bits import bytes_for, from_bits, pack_bits, to_bits, unpack_bits, width_of
from fedquilt.pieces.codecs.matrices import Matrixwise
from fedquilt.pieces.codecs.sparse_values import Values
from fedquilt.pieces.codecs.sparse_wire import Form, sparse


def _check(share: float) -> None:
    if not 0 < share <= 1:
        raise InputError(f"share must be in (0, 1], got {share}.")


def _count(share: float, entries: int) -> int:
    return min(entries, max(1, round(share * entries)))


@dataclass(frozen=True)
class top_k(Matrixwise):
    """The k = max(1, round(share n)) entries of largest size of the n of a matrix, with their places.

    Wire form: the places ascending, ceil(log2 n) bits each, and the values (float32, so that ``chain`` can make them
    smaller). Biased: use it with error feedback.

    Args:
        share: Which share of the entries travels, in (0, 1].

    Reference: Aji and Heafield, Sparse Communication for Distributed Gradient Descent, 2017.
    """

    share: float = 0.01

    def __post_init__(self) -> None:
        _check(self.share)

    def size(self, rows: int, columns: int) -> int:
        """Bytes of a matrix."""
        entries = rows * columns
        count = _count(self.share, entries)
        return bytes_for(count * width_of(entries)) + 4 * count

    def code(self, matrix: Tensor, seed: Seed, memory: object = None) -> tuple[object, object]:
        """The places and the values."""
        flat = matrix.detach().flatten()
        count = _count(self.share, len(flat))
        places = np.sort(np.argpartition(flat.abs().numpy(), len(flat) - count)[len(flat) - count :])
        return (pack_bits(to_bits(places, width_of(len(flat)))), flat[torch.from_numpy(places)]), None

    def restore(self, part: object, rows: int, columns: int) -> Tensor:
        """The matrix of these places and values."""
        raw, values = _pair(part)
        entries = rows * columns
        count, width = _count(self.share, entries), width_of(entries)
        if not width:  # one entry needs no place
            places = np.zeros(count if not raw else -1, dtype=np.int64)
        else:
            places = from_bits(unpack_bits(raw, count * width), width).astype(np.int64)
        if count and (places[-1] >= entries or (np.diff(places) <= 0).any()):
            raise FrameError(f"places must ascend and be below {entries}.")
        return _filled(torch.from_numpy(places), values, rows, columns)


@dataclass(frozen=True)
class random_k(Matrixwise):
    """k = max(1, round(share n)) entries of the n of a matrix at random places, which follow from a seed.

    Wire form: the seed (8 bytes) and the values (float32) in the order of their places. The places are those of the k
    smallest of the first n numbers of PCG64.

    Args:
        share: Which share of the entries travels, in (0, 1].
        unbiased: Come back n / k times as large, so that the mean is right. Not with error feedback, which needs a
            codec that never makes things larger.

    Reference: Konecny et al., Federated Learning: Strategies for Improving Communication Efficiency, 2016.
    """

    share: float = 0.01
    unbiased: bool = True

    def __post_init__(self) -> None:
        _check(self.share)

    def size(self, rows: int, columns: int) -> int:
        """Bytes of a matrix."""
        return 8 + 4 * _count(self.share, rows * columns)

    def code(self, matrix: Tensor, seed: Seed, memory: object = None) -> tuple[object, object]:
        """The seed and the values."""
        flat = matrix.detach().flatten()
        values = flat[self._places(seed.value, len(flat))]
        if not bool(flat.isfinite().all()):  # it will be refused where it arrives, whichever entries were drawn
            values = torch.full_like(values, torch.nan)
        return (seed.value.to_bytes(8, "big"), values), None

    def restore(self, part: object, rows: int, columns: int) -> Tensor:
        """The matrix of this seed and these values."""
        raw, values = _pair(part)
        if len(raw) != 8:
            raise FrameError(f"a seed has 8 bytes, got {len(raw)}. Truncated?")
        places = self._places(int.from_bytes(raw, "big"), rows * columns)
        if self.unbiased and isinstance(values, Tensor) and len(places):
            values = values * (rows * columns / len(places))
        return _filled(places, values, rows, columns)

    def _places(self, seed: int, entries: int) -> Tensor:
        count = _count(self.share, entries)
        drawn = np.random.PCG64(seed).random_raw(entries)
        return torch.from_numpy(np.sort(np.argpartition(drawn, max(count - 1, 0))[:count]))


def _pair(part: object) -> tuple[bytes, object]:
    if not isinstance(part, tuple) or len(part) != 2 or not isinstance(part[0], bytes):
        raise FrameError("a sparse matrix travels as bytes and values.")
    return part


def _filled(places: Tensor, values: object, rows: int, columns: int) -> Tensor:
    if not isinstance(values, Tensor) or values.dtype is not torch.float32 or values.shape != places.shape:
        raise FrameError(f"{len(places)} values (float32) are needed, one for each place.")
    if not bool(values.isfinite().all()):
        raise FrameError("a value is not finite. Did training diverge?")
    whole = torch.zeros(rows * columns)
    whole[places] = values
    return whole.view(rows, columns)


@dataclass(frozen=True)
class localized:
    """Of each change only the largest numbers travel: one threshold over all tensors, or one for each.

    tau is the k-th largest |delta|, k = max(1, floor(keep * P)); what reaches it is sent, by :class:`sparse`.

    Args:
        keep: The density in (0, 1]; None takes ``keep`` of the download.
        values: How numbers travel: 'fp32', 'fp16', or 'sign' with a size for each tensor.
        form: How places travel: 'dense', 'bitmap', 'index' or 'coded' by their distances; 'smallest' of these.
        only: Which names are chosen from; the others travel whole.
        per: One threshold over 'all' tensors, or one for each 'tensor'.
        noise: Jitter of the magnitudes by which tau is chosen; see :func:`fedquilt.core.select.jittered`. Not private.

    Example:
        >>> from fedquilt.pieces.codecs import on
        >>> codec = on("delta", localized(keep=0.05))
    """

    keep: float | None = 0.05
    values: Values = "fp32"
    form: Form = "smallest"
    only: Names = is_weight
    per: Literal["all", "tensor"] = "all"
    noise: float = 0.0

    def __post_init__(self) -> None:
        if self.keep is not None and not 0 < self.keep <= 1:
            raise InputError(f"keep is the fraction of values to send, in (0, 1], got {self.keep}.")
        if self.per not in ("all", "tensor"):
            raise InputError(f"per must be 'all' or 'tensor', got {self.per!r}.")
        if self.noise < 0:
            raise InputError(f"noise must be >= 0, got {self.noise}.")
        self._wire()

    def _wire(self) -> sparse:
        return sparse(self.values, self.form, self.only)

    def encode(self, upload: Params, sent: object, memory: object, seed: Seed) -> tuple[object, object]:
        """Choose, then write."""
        keep = self.keep if self.keep is not None else getattr(sent, "keep", None)
        if keep is None:
            raise InputError("localized has no keep, and the download tells none. Give localized(keep=0.05), say.")
        part = {n: t for n, t in upload.items() if self.only(n) and t.is_floating_point()}
        if finite(part.values()):
            mask = self._mask(part, keep, seed)
        else:  # it goes as it is, to be refused where it arrives
            mask = {n: torch.ones_like(t, dtype=torch.bool) for n, t in part.items()}
        return self._wire().encode(upload | marked({n: part[n] for n in mask}, mask), sent, memory, seed)

    def _mask(self, part: Params, keep: float, seed: Seed) -> Params:
        """Which numbers are chosen, of all tensors that have any."""
        seen = part if not self.noise else jittered(part, self.noise, seed)
        mask: Params = {}
        for group in [list(part)] if self.per == "all" else [[n] for n in part]:
            if any(part[n].numel() for n in group):
                mask |= at_least({n: part[n] for n in group}, threshold({n: seen[n] for n in group}, keep))
        return mask

    def decode(self, wire: object, sent: object) -> Params:
        """As :class:`sparse`."""
        return self._wire().decode(wire, sent)


def density(delta: Params, only: Names = is_weight) -> float:
    """The share of weights that a marked change has chosen."""
    masks = chosen({n: t for n, t in delta.items() if only(n) and t.is_floating_point()})
    return sum(int(m.sum()) for m in masks.values()) / max(1, sum(m.numel() for m in masks.values()))
