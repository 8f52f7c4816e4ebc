"""The largest changes only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from fedquilt.core.params import Names, Params, finite, is_weight
from fedquilt.core.seed import Seed
from fedquilt.core.select import at_least, chosen, jittered, marked, threshold
from fedquilt.errors import InputError
from fedquilt.pieces.codecs.sparse_values import Values
from fedquilt.pieces.codecs.sparse_wire import Form, sparse


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
            raise InputError(f"keep is the share of numbers that is sent, in (0, 1], got {self.keep}.")
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
