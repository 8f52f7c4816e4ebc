"""Data sets of Hugging Face's ``datasets``, and partitions of Flower's ``flwr-datasets``, by the attributes they have.

Neither package is imported, except to load a data set by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedquilt.core.plain import JSON, Array
from fedquilt.data.imports.columns import labels, users
from fedquilt.data.npz import Arrays
from fedquilt.data.reading import Reading
from fedquilt.data.sizes import checked_image
from fedquilt.data.sources.formats.pictures import fitted
from fedquilt.data.sources.hub import loaded
from fedquilt.errors import InputError

Pair = tuple[Array, Array]


def of_hf(
    dataset: object, x: str | None = None, label: str | None = None, user: str | None = None, size: int | None = None
) -> Arrays:
    """A Dataset, a DatasetDict, or the name of one on the hub, as arrays.

    Of a DatasetDict, train and validation are divided; test is the test set of no client. Columns that are not named
    are found by their type: the image, the class label.
    """
    if isinstance(dataset, str):
        dataset = _loaded(dataset)
    if not isinstance(dataset, Mapping):
        return _arrays([dataset], x, label, user, size)
    parts = [dataset[name] for name in ("train", "validation", "valid") if name in dataset]
    if not parts:
        raise InputError(f"The data set has the parts {', '.join(dataset)}, and no train. Give one part: dataset[...].")
    tests = [dataset["test"]] if "test" in dataset else []
    whole = _arrays([*parts, *tests], x, label, user, size)
    count = sum(len(part) for part in parts)
    evaluation = (whole.x[count:], whole.y[count:]) if tests else (None, None)
    own = None if whole.user is None else whole.user[:count]
    return replace(whole, x=whole.x[:count], y=whole.y[:count], x_test=evaluation[0], y_test=evaluation[1], user=own)


def of_flwr(
    source: object, x: str | None = None, label: str | None = None, size: int | None = None
) -> tuple[dict[Any, dict[str, Pair] | Pair], Pair | None, int | None]:
    """Each client's samples, the test set of no client, and the number of classes, of a partitioner or
    FederatedDataset.

    Of a FederatedDataset, 'train' is what is divided; 'test', if divided as well, gives the clients' test samples, and
    undivided it belongs to no client.
    """
    partitioners = _partitioners(source)
    divided = [part for part in ("train", "test") if part in partitioners]
    pieces = [(*piece, part) for part in divided for piece in _partitions(source, partitioners[part], part)]
    wide = [] if "test" in divided else _test_split(source)
    whole = _arrays([piece[1] for piece in pieces] + wide, x, label, None, size)
    cuts = np.cumsum([len(piece[1]) for piece in pieces])
    rows = list(zip(np.split(whole.x, cuts), np.split(whole.y, cuts), strict=True))
    clients: dict[Any, Any] = {}
    for (client, _, part), pair in zip(pieces, rows[:-1], strict=True):
        clients.setdefault(client, {})[part] = pair
    if "test" not in divided:
        clients = {client: parts["train"] for client, parts in clients.items()}
    return clients, rows[-1] if wide else None, whole.classes


def _partitioners(source: object) -> dict[str, Any]:
    """What divides each part of the data; a partitioner by itself divides the training samples."""
    found = dict(getattr(source, "partitioners", {}) or {"train": source})
    if "train" not in found or not all(hasattr(made, "load_partition") for made in found.values()):
        raise InputError(
            f"{type(source).__name__} is not a partitioner, or does not partition 'train'. Use one of flwr-datasets."
        )
    return found


def _partitions(source: Any, partitioner: Any, part: str) -> list[tuple[Any, Any]]:
    federated = partitioner is not source
    load = (lambda i: source.load_partition(i, part)) if federated else partitioner.load_partition
    first = load(0)  # before it, a FederatedDataset has not given its partitioner any rows
    found = [first, *(load(i) for i in range(1, partitioner.num_partitions))]
    names = getattr(partitioner, "partition_id_to_natural_id", {})
    return [(names.get(i, i), rows) for i, rows in enumerate(found)]


def _test_split(source: Any) -> list[Any]:
    if not hasattr(source, "load_split"):
        return []
    try:
        return [source.load_split("test")]
    except ValueError:  # what it raises when there is no such part
        return []


def _arrays(parts: list[Any], x: str | None, label: str | None, user: str | None, size: int | None) -> Arrays:
    kinds = dict(parts[0].features)
    inputs, target = _columns(kinds, x, label, user)
    parts = [part for part in parts if len(part)]
    if not parts:
        raise InputError("The data set has no rows. Give at least one.")
    found = np.concatenate([_inputs(part[inputs], inputs, size) for part in parts])
    y, found_names = labels(np.concatenate([np.asarray(list(part[target])) for part in parts]), target)
    names = tuple(getattr(kinds[target], "names", None) or found_names)
    own = None if user is None else _users(parts, user)
    return Arrays(found, y, user=own, classes=len(names) or None, name="the data set", reading=Reading(names))


def _columns(kinds: Mapping[str, Any], x: str | None, label: str | None, user: str | None) -> tuple[str, str]:
    """The columns of inputs and labels: those named, or the only ones of their kind."""
    inputs = x or _one(kinds, "Image", "x", ())
    target = label or _one(kinds, "ClassLabel", "label", ("label", "labels"))
    lacking = [name for name in (inputs, target, user) if name and name not in kinds]
    if lacking:
        raise InputError(f"The data set has no column {lacking[0]!r}. Its columns are {', '.join(kinds)}.")
    return inputs, target


def _users(parts: list[Any], user: str) -> Array:
    """Who each row comes from; a test part need not name its users: it belongs to nobody."""
    given = [v for part in parts if user in part.features for v in part[user]]
    return users(np.asarray(given), f"Column {user!r}")


def _one(kinds: Mapping[str, JSON], kind: str, option: str, usual: tuple[str, ...]) -> str:
    found = [name for name, feature in kinds.items() if type(feature).__name__ == kind]
    found = found or [name for name in usual if name in kinds]
    if len(found) != 1:
        raise InputError(
            f"Which column is the {'input' if option == 'x' else 'label'}? Name it with {option}=...; the columns are "
            f"{', '.join(kinds)}."
        )
    return found[0]


def _inputs(values: Any, name: str, size: int | None) -> Array:
    rows = list(values)
    if hasattr(rows[0], "convert"):
        rows = [_image(row) if size is None else fitted(row, size) for row in (checked_image(r, name) for r in rows)]
    try:
        found = np.asarray(rows)
    except ValueError as error:
        raise InputError(f"The rows of {name!r} differ in length or size. For images, give size=64 or so.") from error
    if found.dtype.kind not in "biuf":
        raise InputError(f"Column {name!r} holds {type(rows[0]).__name__}, not numbers. Turn it into numbers first.")
    return found


def _image(image: Any) -> Array:
    return np.asarray(image) if image.mode == "L" else np.asarray(image.convert("RGB")).transpose(2, 0, 1)


def _loaded(name: str) -> Any:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise InputError(
            f'Loading {name} needs the package datasets. Install it: pip install "fedquilt[hf]".'
        ) from error
    return loaded(load_dataset, name)
