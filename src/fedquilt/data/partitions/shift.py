"""Shifts: the same data seen differently by different clients. Each is called with a federation and gives a new one.

Clients are dealt to the settings in turn, client i of the federation to setting i mod n; with one setting for each
client everyone has its own. The setting of each client is recorded as its planted group (``federation.groups``), so
that methods that look for groups can be scored; over groups that were there before, the pair of both is recorded.
The global test set stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedquilt.core.columns import PerColumn
from fedquilt.core.plain import Ints
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Columns
from fedquilt.data.checks import as_seed
from fedquilt.data.federation import Federation
from fedquilt.data.images import on_floats, rotated
from fedquilt.data.rows import ClientRows
from fedquilt.errors import InputError

Change = Callable[[Columns, int, Seed], Columns]  # a client's columns, the number of its setting, a seed


@dataclass(frozen=True)
class Rotation:
    """Images turned counter-clockwise: right angles exactly, others by bilinear sampling with zeros outside.

    The rotated groups of IFCA: Ghosh et al. 2020, arXiv:2006.04088.

    Example:
        >>> from fedquilt.testing import digits
        >>> Rotation((0, 90))(digits()).groups
        {0: 0, 1: 1, 2: 0, 3: 1}
    """

    angles: tuple[float, ...] = (0, 90, 180, 270)

    def __post_init__(self) -> None:
        _check_settings("Rotation", "angles", self.angles)

    def __call__(self, federation: Federation, seed: int | Seed = 0) -> Federation:
        x = federation.columns["x"]
        if x.dim() != 4:
            raise InputError(f"Rotation turns images [n, channels, height, width]; x has shape {tuple(x.shape)}.")
        if x.shape[2] != x.shape[3] and any(a % 180 for a in self.angles):
            raise InputError(f"Images of {x.shape[2]} x {x.shape[3]} can only be turned by 0 or 180; crop them square.")
        return _shifted(federation, len(self.angles), self._turned, as_seed(seed))

    def _turned(self, columns: Columns, setting: int, seed: Seed) -> Columns:
        return {**columns, "x": rotated(columns["x"], self.angles[setting])}


@dataclass(frozen=True)
class Noise:
    """Gaussian noise of its own level at each client: x + level * z. For images stored as bytes levels are on the scale
    0 to 1, and the result is rounded and clipped. Li et al. 2022, arXiv:2102.02079.

    Example:
        >>> from fedquilt.testing import digits
        >>> Noise((0.0, 0.5))(digits()).groups
        {0: 0, 1: 1, 2: 0, 3: 1}
    """

    levels: tuple[float, ...]

    def __post_init__(self) -> None:
        _check_settings("Noise", "levels", self.levels, least=0.0)

    def __call__(self, federation: Federation, seed: int | Seed = 0) -> Federation:
        _refuse_whole("Noise", federation)
        return _shifted(federation, len(self.levels), self._disturbed, as_seed(seed))

    def _disturbed(self, columns: Columns, setting: int, seed: Seed) -> Columns:
        x, level = columns["x"], self.levels[setting]
        if level == 0:
            return columns
        return {**columns, "x": on_floats(x, lambda v: v + level * torch.randn(v.shape, generator=seed.torch()))}


@dataclass(frozen=True)
class Light:
    """Brightness and contrast of its own at each client: x -> contrast * (x - m) + m + brightness, m the image's mean.

    For images stored as bytes brightness is on the scale 0 to 1, and the result is rounded and clipped.

    Args:
        brightness: What is added; 0 changes nothing.
        contrast: The factor about the mean, one for each brightness; 1 changes nothing, and is the default.

    Example:
        >>> from fedquilt.testing import digits
        >>> Light(brightness=(0.0, 0.2))(digits()).groups
        {0: 0, 1: 1, 2: 0, 3: 1}
    """

    brightness: tuple[float, ...]
    contrast: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        _check_settings("Light", "brightness", self.brightness)
        if self.contrast is not None:
            _check_settings("Light", "contrast", self.contrast, least=0.0)
            if len(self.contrast) != len(self.brightness):
                raise InputError(
                    f"Light: {len(self.brightness)} values of brightness but {len(self.contrast)} of contrast. "
                    "Give one contrast for each brightness."
                )

    def __call__(self, federation: Federation, seed: int | Seed = 0) -> Federation:
        _refuse_whole("Light", federation)
        return _shifted(federation, len(self.brightness), self._lit, as_seed(seed))

    def _lit(self, columns: Columns, setting: int, seed: Seed) -> Columns:
        add, times = self.brightness[setting], 1.0 if self.contrast is None else self.contrast[setting]
        if (add, times) == (0, 1):
            return columns

        def lit(x: Tensor) -> Tensor:
            mean = x.flatten(1).mean(1).reshape(-1, *[1] * (x.dim() - 1))
            return times * (x - mean) + mean + add

        return {**columns, "x": on_floats(columns["x"], lit)}


@dataclass(frozen=True)
class Colour:
    """A colour cast of its own at each client: channel c -> gains[c] * channel c, as another white balance gives.

    For images stored as bytes the result is rounded and clipped.

    Args:
        gains: For each setting a factor for each channel; all 1 changes nothing.

    Example:
        >>> Colour(((1.0, 0.8, 0.8), (0.8, 0.8, 1.0))).gains[1]
        (0.8, 0.8, 1.0)
    """

    gains: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        for given in self.gains or ((),):
            _check_settings("Colour", "gains", given, least=0.0)

    def __call__(self, federation: Federation, seed: int | Seed = 0) -> Federation:
        shape = tuple(federation.columns["x"].shape)
        for given in self.gains:
            if len(shape) != 4 or len(given) != shape[1]:
                raise InputError(f"Colour: {len(given)} gains, but x has shape {shape}. Give one for each channel.")
        return _shifted(federation, len(self.gains), self._cast, as_seed(seed))

    def _cast(self, columns: Columns, setting: int, seed: Seed) -> Columns:
        gains = torch.tensor(self.gains[setting], dtype=torch.float32)[:, None, None]
        return {**columns, "x": on_floats(columns["x"], lambda x: x * gains)}


@dataclass(frozen=True)
class LabelPermutation:
    """Groups that disagree on labels: y -> permutation[y]. Sattler et al. 2020, arXiv:1910.01991.

    Args:
        groups: How many groups; the first keeps its labels, the others draw permutations by the seed.
        permutations: Or the permutations themselves, one for each group.

    Example:
        >>> from fedquilt.testing import digits
        >>> LabelPermutation(2)(digits()).groups
        {0: 0, 1: 1, 2: 0, 3: 1}
    """

    groups: int = 2
    permutations: tuple[tuple[int, ...], ...] | None = None

    def __post_init__(self) -> None:
        if self.permutations is None and self.groups < 1:
            raise InputError(f"LabelPermutation: groups must be at least 1, got {self.groups!r}.")
        for given in self.permutations or ():
            if sorted(given) != list(range(len(given))):
                raise InputError(f"LabelPermutation: {given!r} is not a permutation of 0 to {len(given) - 1}.")

    def __call__(self, federation: Federation, seed: int | Seed = 0) -> Federation:
        classes, root = federation.classes or 0, as_seed(seed).fold("label permutation")
        drawn = self.permutations or tuple(
            tuple(root.fold(g).numpy().permutation(classes).tolist() if g else range(classes))
            for g in range(min(self.groups, len(federation.ids)))
        )
        if any(len(p) != classes for p in drawn):
            raise InputError(f"LabelPermutation: give permutations of the {classes} classes of this federation.")
        tables = [torch.tensor(p) for p in drawn]

        def permuted(columns: Columns, setting: int, seed: Seed) -> Columns:
            return {**columns, "y": tables[setting][columns["y"]]}

        return _shifted(federation, len(tables), permuted, root)


def _check_order(federation: Federation) -> None:
    """A shift comes before pooling, and before labels are taken away."""
    if federation.evaluated != federation.ids or federation.evaluation_valid is not federation.valid:
        raise InputError("A shift belongs to clients: apply it before the federation is pooled.")
    if federation.unlabelled is not None:
        raise InputError("Apply a shift first, and take labels away (without_labels) after it.")


def _shifted(federation: Federation, settings: int, change: Change, seed: Seed) -> Federation:
    """The federation with every client's samples gathered, changed by its setting, and stored as its own."""
    _check_order(federation)
    kinds = (federation.train, federation.valid, federation.test)
    pieces: list[Columns] = []
    places: list[list[Ints]] = [[], [], []]
    end = 0
    for number, client in enumerate(federation.ids):
        own = [rows[number] for rows in kinds]
        gathered = {name: column.index_select(0, torch.cat(own)) for name, column in federation.columns.items()}
        pieces.append(change(gathered, number % settings, seed.fold("shift", client)))
        for place, rows in zip(places, own, strict=True):
            place.append(np.arange(end, end + len(rows)))
            end += len(rows)
    columns = {name: torch.cat([p[name] for p in pieces]) for name in federation.columns}
    if columns["x"].is_floating_point() and not torch.isfinite(columns["x"]).all():
        raise InputError("The shift makes x infinite. Use smaller values.")
    train, valid, test = map(ClientRows.of, places)
    return replace(
        federation,
        columns=columns,
        train=train,
        valid=valid,
        evaluation_valid=valid,
        test=test,
        groups=_planted(federation, settings),
    )


def _refuse_whole(name: str, federation: Federation) -> None:
    x = federation.columns["x"]
    if x.dtype == torch.int64:
        raise InputError(
            f"{name} changes images and floats; x holds whole numbers, such as token ids. Give x as floats."
        )
    prepare = federation.prepare
    if isinstance(prepare, PerColumn) and any(c.category for c in prepare.columns):
        raise InputError(f"{name} changes numbers, and this table has categories. Leave them out with features=[...].")


def _planted(federation: Federation, settings: int) -> dict[ClientId, int]:
    """The group of each client: its setting, or the pair of its group before and its setting, numbered as they come."""
    before = federation.groups or dict.fromkeys(federation.ids, 0)
    pairs = {client: (before[client], number % settings) for number, client in enumerate(federation.ids)}
    numbers = {pair: n for n, pair in enumerate(dict.fromkeys(pairs.values()))}
    return {client: numbers[pair] for client, pair in pairs.items()}


def _check_settings(name: str, field: str, values: tuple[float, ...], least: float = -math.inf) -> None:
    if not values or not all(math.isfinite(v) and v >= least for v in values):
        bound = "" if least == -math.inf else f" of at least {least:g}"
        raise InputError(f"{name}: {field} must be one or more numbers{bound}, got {values!r}.")
