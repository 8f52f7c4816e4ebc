"""Streams in which every client has a list of data sets of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedquilt.core.errors import InputError
from fedquilt.data.federation import Federation
from fedquilt.data.stream_kinds import Divide, Shift, Stages, no_shift
from fedquilt.data.streams import Stream


@dataclass(frozen=True, kw_only=True)
class ClientDatasets(Stages):
    """In stage t, client i has the whole of the data set ``sources[i][t]``. Every data set has classes of its own.

    Args:
        sources: For each client the names of its data sets, as many for each.
        size: Side to which images are brought, in three colours; None if they have one shape already.
    """

    sources: tuple[tuple[str, ...], ...]
    size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.sources or not self.sources[0] or len({len(names) for names in self.sources}) > 1:
            raise InputError(f"sources must list data sets for each client, as many for each, got {self.sources!r}.")
        if self.size is not None and self.size < 1:
            raise InputError(f"size must be at least 1, got {self.size}.")

    def __call__(self, divide: Divide, shift: Shift | None) -> Stream:
        no_shift(shift)
        names = list(dict.fromkeys(name for own in self.sources for name in own))
        whole = {name: divide(name) for name in names}
        first, end = dict[str, int](), 0
        for name in names:
            first[name], end = end, end + (whole[name].classes or 0)
        made = {name: self._columns(whole[name], first[name]) for name in names}
        tasks = [_task([(whole[n], made[n]) for n in stage], end) for stage in zip(*self.sources, strict=True)]
        return self._stream(tasks)

    def _columns(self, federation: Federation, first: int) -> dict[str, Tensor]:
        """The rows of a data set, with images of the common shape and labels from ``first`` on."""
        x = federation.columns["x"]
        if self.size is not None:
            if x.dim() != 4:
                raise InputError(f"size is for images, but a data set has rows of shape {tuple(x.shape[1:])}.")
            x = torch.cat([_resized(part, self.size) for part in x.split(1000)])
        return {"x": x, "y": federation.columns["y"] + first}


def _resized(x: Tensor, size: int) -> Tensor:
    """Images [n, C, H, W] of bytes or floats as [n, 3, size, size] of the same kind."""
    wide = x.float() if x.shape[1] == 3 else x.float().expand(-1, 3, -1, -1)
    if tuple(x.shape[2:]) != (size, size):
        wide = F.interpolate(wide, size=(size, size), mode="bilinear", antialias=True)
    return wide if x.is_floating_point() else wide.round().clamp(0, 255).to(x.dtype)


def _task(parts: Sequence[tuple[Federation, dict[str, Tensor]]], classes: int) -> Federation:
    """One client for each data set."""
    clients, base = {}, 0
    for client, (federation, columns) in enumerate(parts):
        splits = {"train": federation.train, "valid": federation.valid, "test": federation.test}
        clients[client] = {name: (rows.index + base).numpy() for name, rows in splits.items()}
        base += len(columns["y"])
    shapes = {tuple(columns["x"].shape[1:]) for _, columns in parts}
    if len(shapes) > 1:
        raise InputError(f"The data sets have images of shapes {sorted(shapes)}. Give stream.size.")
    kinds = {(str(columns["x"].dtype), repr(federation.prepare)) for federation, columns in parts}
    if len(kinds) > 1:
        raise InputError(f"The data sets of a stage must be prepared alike, but are {' and '.join(map(str, kinds))}.")
    together = {name: torch.cat([columns[name] for _, columns in parts]) for name in ("x", "y")}
    return Federation.from_rows(together, clients, classes=classes, prepare=parts[0][0].prepare)
