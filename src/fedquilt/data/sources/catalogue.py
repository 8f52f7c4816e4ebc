"""What is known of a data set before it is read: facts, terms, official files, and who reads them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedquilt.data.npz import Arrays
from fedquilt.errors import InputError

Reader = Callable[..., Arrays]
KEYS = "x_train, y_train, x_test, y_test"


@dataclass(frozen=True)
class File:
    """One official file.

    Args:
        name: What it is called in the folder of the data set.
        urls: Where it can be had, tried in turn; none when it cannot be downloaded without a person.
        size: Its bytes, or None when not known.
        checksum: ``sha256:...`` or ``md5:...`` as published; empty when not known.
        optional: The data set can be read without it.

    Example:
        >>> File("train.csv", size=1024, checksum="sha256:0123").optional
        False
    """

    name: str
    urls: tuple[str, ...] = ()
    size: int | None = None
    checksum: str = ""
    optional: bool = False


@dataclass(frozen=True)
class Hub:
    """The data set on the Hugging Face hub.

    Args:
        id: ``owner/name`` there.
        subset: Its configuration, where it has several.
        image, label, user: Names of the columns; without ``image`` its rows are not taken from the hub.
        train, test: Names of the splits.
        colour: Whether images are RGB; else they are grey.
    """

    id: str
    subset: str | None = None
    image: str = ""
    label: str = "label"
    user: str = ""
    train: str = "train"
    test: str = "test"
    colour: bool = True


@dataclass(frozen=True)
class DatasetEntry:
    """A data set that has a name.

    Args:
        name: The ``source`` of a recipe.
        licence, source: Its terms, and whom to cite.
        shape, count, classes: Of a stored row, of the training samples, of the labels; None when only reading tells.
        read: ``function(folder)`` for the official files, or its address "package.module:function"; a function
            without arguments when the data come with a package.
        npz: Reads ``NAME.npz``; likewise. None if there is no such form.
        needs: The package that brings the data; without one they are files.
        install: How to get that package.
        keys: What ``NAME.npz`` must hold.
        folder: The folder below the data folder, if it is not the name.
        markers: Files or folders, of which one shows that its folder is the right one.
        scattered: The reader gets the whole folder of the data set, because not everything lies beside the markers.
        files: The official files.
        by_hand: What a person has to do where files cannot simply be downloaded.
        hub: The same on the Hugging Face hub.
        texts: For a data set of texts, the address of ``function(folder)`` that gives them as they are.

    Example:
        >>> entry = DatasetEntry("mine", licence="CC0", source="my lab", classes=2)
        >>> entry.name
        'mine'
    """

    name: str
    licence: str
    source: str
    shape: tuple[int, ...] | None = None
    count: int | None = None
    classes: int | None = None
    read: Reader | str | None = None
    npz: Reader | str | None = "fedquilt.data.sources.readers:file"
    needs: str = ""
    install: str = ""
    keys: str = KEYS
    folder: str = ""
    markers: tuple[str, ...] = ()
    scattered: bool = False
    files: tuple[File, ...] = ()
    by_hand: str = ""
    hub: Hub | None = None
    texts: str | None = None

    @property
    def place(self) -> str:
        """The name of its folder below the data folder."""
        return self.folder or self.name

    @property
    def size(self) -> int | None:
        """How many bytes a download takes, or None when not all sizes are known."""
        sizes = [f.size for f in self.files if not f.optional]
        return sum(s for s in sizes if s is not None) if sizes and None not in sizes else None

    @property
    def downloadable(self) -> bool:
        """Whether every file that is needed has an address."""
        needed = [f for f in self.files if not f.optional]
        return bool(needed) and all(f.urls for f in needed)


def function_of(reader: Reader | str) -> Reader:
    """The reader behind an address."""
    if not isinstance(reader, str):
        return reader
    module, _, name = reader.partition(":")
    try:
        found: Reader = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InputError(f"The reader {reader} cannot be loaded: {error}. Update the package that names it.") from error
    return found


def call(reader: Reader | str, *given: Path, what: str) -> Arrays:
    """Read, and refuse what is not a data set."""
    found: Any = function_of(reader)(*given)
    if not isinstance(found, Arrays):
        raise InputError(f"The reader of {what} gave {type(found).__name__}. It must give fedquilt.data.Arrays.")
    return found
