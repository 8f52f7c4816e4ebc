"""Map-style data sets of PyTorch, and whatever else has ``len`` and items, as columns whose rows are read on demand."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
)

from fedquilt.core.describe import describe
from fedquilt.core.lazy import LazyColumn
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId
from fedquilt.data.checks import input_column, label_column
from fedquilt.data.lazy.files import as_stored
from fedquilt.errors import InputError
from fedquilt.terminal import counted

INPUTS = ("x", "image", "img", "pixel_values", "input_ids")  # where items are dicts: the first of these that is there
LABELS = ("y", "label", "labels", "target")
Key = tuple[ClientId, str]
_held: WeakValueDictionary[str, DatasetRows] = WeakValueDictionary()  # for processes that are forked from this one
_numbers = itertools.count()


@dataclass(frozen=True, eq=False)
class DatasetRows:
    """The inputs of a data set's items, as they are stored in a federation.

    An item that is random, such as a randomly cropped image, follows from the seed of the client update, the pass over
    the samples and the item's number: the default generators of torch, numpy and Python are seeded before each.

    Args:
        dataset: Anything with items: what PyTorch calls a map-style data set.
        key: Whose it is, for what is random in it.
        where: The same for errors.
        shape: Of every item.
        labels: Of the items, which must not change.
        names: Of the input and the label, where items are dicts.
        held: Instead of all this: under what these rows are known in the process that this one was forked from.
    """

    dataset: Any = None
    key: Key = (0, "")
    where: str = ""
    shape: tuple[int, ...] = ()
    labels: Tensor | None = None
    names: tuple[str | None, str | None] = (None, None)
    held: str = ""

    def __post_init__(self) -> None:
        if self.held:
            found = _held.get(self.held)
            if found is None:
                raise InputError(
                    "A data set can be read by this process and those forked from it, not by one that was "
                    "started fresh "
                    "(as in notebooks, with threads, and on other machines). Make it a frozen dataclass, which can be "
                    "built again; or use lazy=False, or engine='local'."
                )
            self.__dict__.update(vars(found))

    def read(self, rows: Tensor, seed: Seed | None = None) -> Tensor:
        """The inputs of these items."""
        numbers = rows.tolist()
        pairs = list(self._items(numbers, (seed or Seed(0)).fold("dataset", self.key)))
        if self.labels is not None:
            self._check_labels(numbers, [y for _, y in pairs])
        if not pairs:
            return torch.zeros((0, *self.shape))
        return as_stored(torch.stack([x for x, _ in pairs]), numbers, self.where)

    def _items(self, numbers: Sequence[int], seed: Seed) -> Iterator[tuple[Tensor, object]]:
        with seed.everywhere():
            for number in numbers:
                seed.fold(number).sow()
                x, y = _parted(_item(self.dataset, number, self.where), self.names, self.where)
                if x.shape != self.shape:
                    raise InputError(
                        f"{self.where}: item {number} has the shape {tuple(x.shape)}, item 0 {self.shape}. All items "
                        "need one shape: resize or pad them in the data set."
                    )
                yield x, y

    def _check_labels(self, numbers: Sequence[int], found: Sequence[object]) -> None:
        assert self.labels is not None
        for number, value, told in zip(numbers, found, self.labels[list(numbers)].tolist(), strict=True):
            label = _label(value, self.where, number)
            if label != told:
                raise InputError(
                    f"{self.where}: item {number} has the label {label}, and {told} before (or in .targets). Labels "
                    "must stay what they are."
                )

    @property
    def inherited(self) -> bool:
        """Whether only a process forked from this one can read it."""
        return not _tellable(self.dataset)

    def __describe__(self) -> tuple[tuple[object, ...], dict[str, object]]:
        if not self.inherited:
            return (self.dataset, self.key, self.where, self.shape, self.labels, self.names), {}
        name = self.__dict__.setdefault("_name", f"{os.getpid()}.{next(_numbers)}")
        _held[name] = self
        return (), {"held": name}


def _tellable(dataset: object) -> bool:
    """Whether another process can build it again."""
    frozen = is_dataclass(dataset) and type(dataset).__dataclass_params__.frozen  # type: ignore[union-attr]
    if not frozen and not hasattr(type(dataset), "__describe__"):
        return False
    try:
        describe(dataset)
    except InputError:
        return False
    return True


def columns_of(
    given: object, key: Key, where: str, names: tuple[str | None, str | None] = (None, None), lazy: bool = True
) -> tuple[Tensor, Tensor | None]:
    """Inputs and labels of a data set; labels None if its items have none. Only labels are kept in memory if ``lazy``.

    Labels are those that the data set tells without reading items (``targets`` of torchvision's, a column of Hugging
    Face's); otherwise every item is read once.
    """
    dataset = _map_style(given, where)
    if not len(dataset):
        return torch.zeros(0, 1), torch.zeros(0, dtype=torch.int64)
    if type(dataset) is TensorDataset and len(dataset.tensors) == 2:  # it lies in memory, and nothing is done to it
        return input_column(dataset.tensors[0], where), label_column(dataset.tensors[1], where)
    x, y = _first(dataset, key, where, names)
    count, bare = len(dataset), DatasetRows(dataset, key, where, tuple(x.shape), None, names)
    labels = None if y is None else _labels(bare, count)
    like = input_column(x[None], where)
    column = LazyColumn(
        DatasetRows(dataset, key, where, tuple(x.shape), labels, names), (count, *like.shape[1:]), like.dtype
    )
    return (column if lazy else column.read(torch.arange(count))), labels


def _map_style(given: object, where: str) -> Any:
    """The data set, of a loader its own; it must have a length and numbered items."""
    if isinstance(given, DataLoader):
        _tell_dropped(given, where)
        return _map_style(given.dataset, where)
    if isinstance(given, tuple) and len(given) == 2 and hasattr(given[0], "shape"):
        raise InputError(f"{where}: (x, y) is a pair of arrays: use Federation.from_clients, or TensorDataset(x, y).")
    if told := _no_numbers(given):
        raise InputError(
            f"{where}: {type(given).__name__} {told}; clients' samples are shuffled and split by their numbers. Give "
            "a map-style data set, with __len__ and __getitem__: list(dataset) is one, if it fits in memory."
        )
    try:
        len(given)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError) as error:
        raise InputError(f"{where}: {type(given).__name__} has no length. Give its class a __len__.") from error
    return given


def _no_numbers(given: object) -> str:
    """Why its items cannot be had by their numbers; '' if they can."""
    if isinstance(given, IterableDataset):
        return "is an IterableDataset, read from its beginning only"
    sized = hasattr(given, "__len__") and hasattr(given, "__getitem__")
    if not sized and hasattr(given, "__iter__"):
        return "is read from its beginning only"
    return "is no data set" if not sized or isinstance(given, Mapping | str) else ""


def _tell_dropped(loader: DataLoader[Any], where: str) -> None:
    """Batches are drawn here, by seed; say what of a loader is therefore not used."""
    dropped = []
    if loader.collate_fn is not default_collate and loader.batch_size is not None:
        dropped.append(f"collate_fn={getattr(loader.collate_fn, '__name__', loader.collate_fn)!s}")
    if not isinstance(loader.sampler, RandomSampler | SequentialSampler):
        dropped.append(f"sampler={type(loader.sampler).__name__}")
    if dropped and not isinstance(loader.dataset, IterableDataset):
        warnings.warn(
            f"{where}: only the DataLoader's dataset is used, without its {' and '.join(dropped)}. Batches are drawn "
            "by the method and its seed; do in the data set what must be done to samples.",
            stacklevel=7,
        )


def _item(dataset: Any, number: int, where: str) -> object:
    try:
        return dataset[number]
    except Exception as error:  # whatever the data set of somebody else does
        raise InputError(
            f"{where}: item {number} of {type(dataset).__name__} cannot be read: {type(error).__name__}: {error}"
        ) from error


def _first(dataset: Any, key: Key, where: str, names: tuple[str | None, str | None]) -> tuple[Tensor, object]:
    """Item 0, which must be the same whenever it is read with the same seed."""
    found = []
    for _ in range(2):
        with Seed(0).fold("dataset", key).fold(0).everywhere():
            found.append(_parted(_item(dataset, 0, where), names, where))
    (x, y), (again, _) = found
    if x.shape == again.shape and not torch.equal(x.nan_to_num(), again.nan_to_num()):
        raise InputError(
            f"{where}: item 0 of {type(dataset).__name__} is another one each time, though the default generators were "
            "seeded. Draw from torch's, numpy's or Python's default generator, not from one of its own or the clock."
        )
    return x, y


def _parted(item: object, names: tuple[str | None, str | None], where: str) -> tuple[Tensor, object]:
    """The input and the label of an item; the label is None where there is none."""
    if isinstance(item, Mapping):
        return _parted_by_name(item, names, where)
    if isinstance(item, tuple | list):
        if len(item) not in (1, 2):
            raise InputError(
                f"{where}: items are {type(item).__name__}s of {len(item)}, not (x, y). Wrap the data set in one that "
                "gives the input and the label."
            )
        return _input(item[0], where), item[1] if len(item) == 2 else None
    return _input(item, where), None


def _parted_by_name(
    item: Mapping[Any, object], names: tuple[str | None, str | None], where: str
) -> tuple[Tensor, object]:
    x, y = (_named(item, name, usual) for name, usual in zip(names, (INPUTS, LABELS), strict=True))
    if x is None or (names[1] is not None and y is None):
        lacking, option = (names[0], "x") if x is None else (names[1], "label")
        what = f"no {lacking!r}" if lacking else f"none of {', '.join(INPUTS)}"
        raise InputError(f"{where}: items have {', '.join(map(str, item))}, {what}. Name one with {option}=...")
    return _input(item[x], where), None if y is None else item[y]


def _named(item: Mapping[Any, object], name: str | None, usual: Sequence[str]) -> str | None:
    return next((n for n in ((name,) if name is not None else usual) if n in item), None)


def _input(value: Any, where: str) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach()
    if hasattr(value, "convert") and hasattr(value, "getbands"):  # an image of Pillow's
        value = value if value.mode in ("L", "RGB") else value.convert("RGB")
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise InputError(
            f"{where}: the input of an item is {type(value).__name__} ({array.dtype}), not numbers. Turn it into a "
            "tensor in the data set."
        )
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    return torch.from_numpy(np.array(array))


def _label(value: Any, where: str, number: int) -> int:
    array = np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value)
    if array.size != 1 or array.dtype.kind not in "biu" or int(array.reshape(())) < 0:
        shown = repr(value)
        raise InputError(
            f"{where}: item {number} has the label {shown:.60}, but labels are whole numbers from 0. Number the "
            "classes in the data set (int(y), or target_transform)."
        )
    return int(array.reshape(()))


# Labels without reading items, where a data set tells them


def _labels(rows: DatasetRows, count: int) -> Tensor:
    told = _told(rows.dataset, rows.names[1])
    if told is None or len(told) != count:
        items = rows._items(range(count), Seed(0).fold("dataset", rows.key))
        found = [_label(y, rows.where, i) for i, (_, y) in enumerate(counted(items, count, f"reading {rows.where}"))]
        return torch.tensor(found)
    return label_column(told, rows.where)  # compared with each item when that is read


def _told(dataset: Any, name: str | None) -> Any:
    if isinstance(dataset, TensorDataset):
        return dataset.tensors[1] if len(dataset.tensors) == 2 else None
    if isinstance(dataset, Subset):
        inner = _told(dataset.dataset, name)
        return None if inner is None else np.asarray(inner)[np.asarray(dataset.indices, np.int64)]
    if isinstance(dataset, ConcatDataset):
        parts = [_told(part, name) for part in dataset.datasets]
        return None if any(p is None for p in parts) else np.concatenate([np.asarray(p) for p in parts])
    return _kept_by_name(dataset, name)


def _kept_by_name(dataset: Any, name: str | None) -> Any:
    """The labels that a data set keeps under a name: a column, or torchvision's ``targets``."""
    if hasattr(dataset, "column_names") and hasattr(dataset, "with_format"):  # Hugging Face's
        column = next((n for n in ((name,) if name else LABELS) if n in dataset.column_names), None)
        return None if column is None else _whole_numbers(dataset.with_format(None)[column][:])
    if getattr(dataset, "target_transform", None) is None and hasattr(dataset, "targets"):
        return _whole_numbers(dataset.targets)
    return None


def _whole_numbers(values: Any) -> Any:
    """Values that can be labels; None for others, which items may still turn into labels."""
    found = np.asarray(values)
    return found if found.ndim == 1 and found.dtype.kind in "iu" else None
