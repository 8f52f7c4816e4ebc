"""What a federation accepts: arrays turned into columns, ids and fractions checked, each with a plain sentence."""

from __future__ import annotations

import logging
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import pairwise
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedquilt.core.columns import LARGEST
from fedquilt.core.plain import Array
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, in_order
from fedquilt.errors import InputError

log = logging.getLogger("fedquilt")
_CHANNELS = (1, 3, 4)
_LARGEST = 1e12  # of a Dirichlet draw's parameter; sums of some more are infinite
_MOST = 1_000_000  # classes; a larger label is a number of something else


def input_column(x: object, where: str, table: bool = False) -> Tensor:
    """Inputs as they are stored: floats as float32, whole numbers as int64, byte images as uint8, channels first.

    Floats of a ``table`` of two dimensions keep their digits (float64) and their missing cells (NaN): both are looked
    at column by column. Memory is shared with the caller's array where type and layout allow it.
    """
    tensor = _tensor(x, "x", where)
    if tensor.dim() == 0:
        raise InputError(f"{where}: x is a single number. Give an array with one row for each example.")
    if len(tensor) and not tensor.numel():
        raise InputError(f"{where}: x has shape {tuple(tensor.shape)}: its rows hold nothing. Give rows with values.")
    if tensor.dtype == torch.uint8:
        return channels_first(tensor).contiguous()
    if tensor.is_complex():
        raise InputError(f"{where}: x holds complex numbers. Give real ones, for example x.real and x.imag.")
    if not (tensor.is_floating_point() or tensor.dtype == torch.bool):
        return tensor.to(torch.int64).contiguous()
    if table and tensor.dim() == 2 and tensor.dtype in (torch.float64, torch.float32):
        _refuse_infinite(tensor, where)
        return tensor.contiguous()
    floats = tensor.to(torch.float32).contiguous()
    refuse_holes(floats, where)
    return floats


def channels_first(images: Tensor) -> Tensor:
    """Byte images [n, height, width] or [n, height, width, channels] as [n, channels, height, width]."""
    if images.dim() == 3:
        return images.unsqueeze(1)
    if images.dim() == 4 and images.shape[-1] in _CHANNELS and images.shape[1] not in _CHANNELS:
        return images.permute(0, 3, 1, 2)
    return images


def label_column(y: object, where: str) -> Tensor:
    """Labels as int64, whole and not negative, one for each row."""
    tensor = _tensor(y, "y", where)
    if tensor.numel() == 0:
        return torch.zeros(0, dtype=torch.int64)  # an empty list has no type to complain about
    if tensor.is_floating_point() or tensor.is_complex():
        raise InputError(
            f"{where}: y holds {str(tensor.dtype).removeprefix('torch.')}, but labels are whole numbers from 0. "
            "If these are class numbers, give y.astype('int64'); if they are targets of a regression, say so: "
            'task = fedquilt.tasks.Regression(), or task = "regression" in a recipe.'
        )
    if tensor.dim() != 1:
        raise InputError(
            f"{where}: y has shape {tuple(tensor.shape)}. Give one label for each row: y.reshape(-1). If a row "
            'may have several labels, say so: task = fedquilt.tasks.MultiLabel(), or task = "multi_label" in a recipe.'
        )
    labels = tensor.to(torch.int64).contiguous()
    if int(labels.min()) < 0:
        raise InputError(
            f"{where}: y has the negative label {int(labels.min())} ({int((labels < 0).sum())} rows). "
            "Labels count from 0; drop or relabel those rows."
        )
    return labels


def _tensor(values: object, name: str, where: str) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach()
    array = np.asarray(values)
    if array.dtype.kind not in "biufc":
        cure = "np.unique(y, return_inverse=True)[1] numbers text labels" if name == "y" else "give numbers"
        raise InputError(f"{where}: {name} holds {array.dtype}, not numbers; {cure}.")
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = _signed(array, f"{where}: {name}")
    if not array.flags.writeable or any(s < 0 for s in array.strides) or not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="), order="C", copy=True)
    return torch.from_numpy(array)


def _signed(array: Array, what: str) -> Array:
    """Unsigned numbers as int64, if they are not too large for it."""
    if array.size and array.max() > np.iinfo(np.int64).max:
        raise InputError(f"{what} has the value {array.max()}, too large for int64. Make it less.")
    return array.astype(np.int64)


def _refuse_infinite(floats: Tensor, where: str) -> None:
    rows = (floats.abs() > LARGEST).any(1)
    if rows.any():
        raise InputError(
            f"{where}: x has infinite values in {int(rows.sum())} of {len(floats)} rows (the first is row "
            f"{int(rows.nonzero()[0])}). Correct them, or leave those cells empty (NaN)."
        )


def refuse_holes(floats: Tensor, where: str) -> None:
    """Raise if there are numbers that no network can take."""
    rows = ~torch.isfinite(floats).flatten(1).all(1) if floats.dim() > 1 else ~torch.isfinite(floats)
    count = int(rows.sum())
    if count:
        first = int(rows.nonzero()[0])
        raise InputError(
            f"{where}: x has NaN or infinite values in {count} of {len(floats)} rows (the first is row {first}). "
            "Fill them in or drop those rows."
        )


def same_kind(like: Tensor, x: Tensor, where: str) -> None:
    """Raise unless these rows are of the shape and type of those elsewhere."""
    floats = x.is_floating_point() and like.is_floating_point()
    if x.shape[1:] != like.shape[1:] or (x.dtype != like.dtype and not floats):
        raise InputError(
            f"{where}: rows of x are {tuple(x.shape[1:])} {x.dtype}, but elsewhere they are "
            f"{tuple(like.shape[1:])} {like.dtype}. All clients need inputs of one shape and type."
        )


def client_id(value: object) -> ClientId:
    """A client id in its one form: an int, a string, or a tuple of them."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, tuple):
        return tuple(client_id(part) for part in value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    raise InputError(
        f"A client id must be an int, a string, or a tuple of them, got {value!r} ({type(value).__name__}). "
        "Rename the client, for example with str(id)."
    )


def ordered_ids(values: Iterable[object]) -> tuple[ClientId, ...]:
    """Ids in their one form and order; twice the same is refused."""
    ids = in_order([client_id(v) for v in values])
    for before, after in pairwise(ids):
        if before == after:
            raise InputError(f"Two clients have the id {after!r}. Give every client its own.")
    return ids


def check_fractions(test: float, valid: float) -> None:
    """Raise unless both fractions are in [0, 1) and leave something to train on."""
    for name, value in (("test", test), ("valid", valid)):
        if not (isinstance(value, int | float) and math.isfinite(value) and 0 <= value < 1):
            raise InputError(f"{name} must be a fraction from 0 to below 1, got {value!r}. 0 means no such split.")
    if test + valid >= 1:
        raise InputError(f"test + valid is {test + valid:g}, which leaves nothing to train on. Keep it below 1.")


def check_clients(rows: int, clients: int, name: str = "", minimum: int = 0) -> None:
    """Raise unless there can be this many clients, each with the minimum."""
    if isinstance(clients, bool) or not isinstance(clients, int | np.integer) or clients < 1:
        raise InputError(f"clients must be a whole number of at least 1, got {clients!r}.")
    if clients > rows:
        raise InputError(f"{clients} clients cannot share {rows} rows: some would have none. Ask for fewer clients.")
    if minimum * clients > rows:
        raise InputError(
            f"{name}: {clients} clients with at least {minimum} rows each need {minimum * clients} "
            f"rows, but there are {rows}. Lower minimum or clients."
        )


def check_positive(name: str, field: str, value: float, cure: str) -> None:
    """Raise unless a setting is a number above 0 that can be drawn with."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InputError(f"{name}: {field} must be a number, got {value!r}. {cure}.")
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{name}: {field} must be more than 0, got {value!r}. {cure}.")
    if value > _LARGEST:
        raise InputError(f"{name}: {field} must be at most {_LARGEST:g}, got {value:g}. {cure}.")


def check_minimum(name: str, minimum: int) -> None:
    """Raise unless this can be the fewest rows of a client."""
    if not isinstance(minimum, Integral) or minimum < 0:
        raise InputError(f"{name}: minimum must be 0 or more, got {minimum!r}.")


def count_classes(labels: Iterable[Tensor], classes: int | None) -> int:
    """How many classes there are: as given, or the largest label plus one; then it is said if no row has label 0."""
    ends = [tuple(map(int, y.aminmax())) for y in labels if len(y)]
    largest = max((high for _, high in ends), default=-1)
    if largest >= _MOST:
        raise InputError(
            f"y has the label {largest}, which would make as many classes (at most {_MOST:,} can be). Number the "
            "classes from 0: np.unique(y, return_inverse=True)[1]."
        )
    if classes is None:
        _tell_no_zero(min((low for low, _ in ends), default=0), largest)
        return largest + 1
    if isinstance(classes, bool) or not isinstance(classes, int) or classes <= largest:
        raise InputError(f"classes is {classes!r}, but y has the label {largest}. Give {largest + 1} or more.")
    return classes


def _tell_no_zero(smallest: int, largest: int) -> None:
    if smallest > 0:
        log.warning(
            "note: no row has label 0: y has labels from %d to %d, which are taken for %d classes. If yours begin at "
            "%d, number them from 0: y - %d; or say how many there are: classes=%d.",
            *(smallest, largest, largest + 1, smallest, smallest, largest + 1),
        )


def known_groups(groups: Mapping[Any, Hashable], ids: Sequence[ClientId]) -> dict[ClientId, int]:
    """The group of every client, numbered as they come."""
    given = {client_id(name): group for name, group in groups.items()}
    lacking, odd = [c for c in ids if c not in given], [c for c in given if c not in set(ids)]
    if lacking or odd:
        what = f"lacks the clients {few(lacking)}" if lacking else f"names {few(odd)}, who are no clients here"
        raise InputError(f"groups {what}. Give every client's group: {{{few(ids[:1]) or 'client'}: 'north', ...}}.")
    numbers = {group: n for n, group in enumerate(dict.fromkeys(given[c] for c in ids))}
    return {client: numbers[given[client]] for client in ids}


def as_seed(seed: int | Seed) -> Seed:
    """A seed from a plain number."""
    return seed if isinstance(seed, Seed) else Seed(int(seed))


def few(ids: Sequence[ClientId]) -> str:
    """The first ids, for an error message."""
    return ", ".join(map(repr, ids[:5])) + (", ..." if len(ids) > 5 else "")
