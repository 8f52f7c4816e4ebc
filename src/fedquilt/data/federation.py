"""Federation: all clients and their data. Columns are stored once; a client is a set of row numbers."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike
from torch import Tensor

from fedquilt.core.columns import PerColumn
from fedquilt.core.describe import remembered
from fedquilt.core.plain import JSON, Ints, Row
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Columns, Prepare, Site, Table
from fedquilt.core.task import Task
from fedquilt.data import build, imports, look, sharing
from fedquilt.data.build import Extras, Given, Pair
from fedquilt.data.checks import as_seed, client_id, few
from fedquilt.data.lazy.datasets import columns_of
from fedquilt.data.npz import Arrays, arrays_of, load
from fedquilt.data.partitions.labels import Partition
from fedquilt.data.reading import Reading
from fedquilt.data.rows import ClientRows
from fedquilt.data.sources.sources import read
from fedquilt.data.tabular import Standardise, standardised
from fedquilt.errors import InputError
from fedquilt.moved import renamed


@dataclass(frozen=True, eq=False, repr=False)
class Federation:
    """The data of all clients, as engines see it (a :class:`fedquilt.core.table.Source`).

    Make one with a ``from_`` method; these check what they are given. Bytes (uint8) are taken for images, stored
    channels first and prepared with ``Pixels()`` unless ``prepare`` says otherwise; floats are stored as float32,
    other numbers as int64. Floats of two dimensions are a table: each column is standardised by the mean and deviation
    of the training samples (``standardise``: 'federation', of all clients' samples; 'clients', of each client's own;
    False, not at all; None, the rows are ready), missing cells (NaN) are the mean and flagged, and categories are 0/1
    columns.

    Args:
        columns: Tensors of equal length, shared by all clients: x, y and any others.
        ids: The clients that train, ascending: ints, strings or tuples of them.
        train, valid: Their rows.
        evaluated: The clients whose models are scored, ascending.
        evaluation_valid, test: The rows of those.
        global_columns: A test set that belongs to no client, or None.
        server_columns: Validation rows that belong to no client, or None; only the server looks at them.
        classes: How many classes there are, or None without labels; with a task, how many numbers a model makes of a
            row.
        prepare: Turns stored rows into what a network takes; a frozen dataclass, so that other processes can have it.
        groups: The planted group of each evaluated client, where there are such groups: what clustering should find.
        unlabelled: Training rows of ``ids`` whose labels nobody may see, or None; see
            :func:`fedquilt.data.without_labels`.
        preparation: What was done to the columns of a table, or None.
        reading: What the numbers stand for, where they were made of names or texts.
        task: What labels are, if they are not one class for each row: :mod:`fedquilt.tasks`.

    Example:
        >>> import numpy as np
        >>> x, y = np.random.default_rng(0).normal(size=(100, 4)), np.arange(100) % 2
        >>> data = Federation.from_clients({"oslo": (x[:60], y[:60]), "bergen": (x[60:], y[60:])})
        >>> data.ids, data.size("oslo")
        (('bergen', 'oslo'), 42)
    """

    columns: Mapping[str, Tensor]
    ids: tuple[ClientId, ...]
    train: ClientRows
    valid: ClientRows
    evaluated: tuple[ClientId, ...]
    evaluation_valid: ClientRows
    test: ClientRows
    global_columns: Columns | None = None
    classes: int | None = None
    prepare: Prepare | None = None
    groups: Mapping[ClientId, int] | None = None
    unlabelled: ClientRows | None = None
    server_columns: Columns | None = None
    preparation: PerColumn | None = None
    reading: Reading | None = None
    task: Task | None = None
    origin: Row | None = field(default=None, init=False)  # what ``replace`` gives is of another origin
    examined, exam = renamed("examined", "evaluated"), renamed("exam", "evaluation")

    @classmethod
    def from_clients(
        cls,
        clients: Given,
        test: float = 0.2,
        valid: float = 0.1,
        seed: int | Seed = 0,
        *,
        classes: int | None = None,
        global_test: Pair | None = None,
        prepare: Prepare | None = None,
        drop_empty: bool = False,
        standardise: Standardise = "federation",
        table: PerColumn | None = None,
        groups: Mapping[Any, Hashable] | None = None,
        task: Task | None = None,
    ) -> Federation:
        """From each client's own data: ``(x, y)``, split by the fractions, or a pair for each of train, valid, test.

        ``groups`` says which clients belong together, if that is known: ``{"oslo": "north", ...}``. What methods find
        is compared with it (the adjusted Rand index).
        """
        extras = Extras(global_test, classes, prepare, drop_empty, standardise, table, groups, task)
        return cls(**build.of_clients(clients, test, valid, as_seed(seed), extras).parts())

    @classmethod
    def from_arrays(
        cls,
        x: object,
        y: object,
        partition: Partition | None = None,
        clients: int | None = None,
        test: float = 0.2,
        valid: float = 0.1,
        seed: int | Seed = 0,
        *,
        global_test: Pair | None = None,
        user: object = None,
        classes: int | None = None,
        prepare: Prepare | None = None,
        drop_empty: bool = False,
        standardise: Standardise = "federation",
        table: PerColumn | None = None,
        user_test: object = None,
        groups: Mapping[Any, Hashable] | None = None,
        task: Task | None = None,
    ) -> Federation:
        """From one data set, divided over ``clients`` (20) by a partition (IID), or by the ``user`` of each row.

        With ``user``, every distinct user is a client, or ``clients`` of them drawn at random. Each client's samples
        are then split by the fractions. If ``user_test`` says whose the rows of ``global_test`` are, users are
        evaluated on those of their own, and nothing but ``valid`` is cut from their rows. The arrays are not copied
        where type and layout allow it. Where there are no labels, ``y`` is None. ``x`` may be a data frame, or an array
        of names and numbers; ``table`` says what the columns are where that was found out already. An array that is
        mapped from a file (``numpy.load(path, mmap_mode="r")``) is read batch by batch, unless it is a table.
        """
        extras = Extras(global_test, classes, prepare, drop_empty, standardise, table, groups, task)
        who = (user, user_test)
        return cls(**build.of_arrays((x, y), partition, clients, who, (test, valid), as_seed(seed), extras).parts())

    @classmethod
    def from_datasets(
        cls,
        clients: Mapping[Any, Any],
        test: float = 0.2,
        valid: float = 0.1,
        seed: int | Seed = 0,
        *,
        x: str | None = None,
        label: str | None = None,
        lazy: bool = True,
        global_test: object = None,
        classes: int | None = None,
        prepare: Prepare | None = None,
        drop_empty: bool = False,
        groups: Mapping[Any, Hashable] | None = None,
    ) -> Federation:
        """From a PyTorch data set for each client, split by the fractions, or one for each of train, valid, test.

        Items are ``(x, y)``, x alone, or dicts (``x`` and ``label`` name what of them); they are read when a batch
        needs them, and only labels are kept, unless ``lazy`` is False. Inputs are used as items give them: bytes and
        Pillow's images are scaled to 0..1 (``prepare``), floats stay. What is random in items follows from the run's
        seed. Of a DataLoader its data set is taken.

        Example:
            >>> import torch
            >>> from torch.utils.data import TensorDataset
            >>> own = TensorDataset(torch.randn(50, 3, 8, 8), torch.arange(50) % 2)
            >>> Federation.from_datasets({"oslo": own, "bergen": {"train": own, "test": own}})
            Federation(2 clients, 85 training samples, 2 classes)
        """
        names = (x, label)
        wide = None if global_test is None else columns_of(global_test, ("", "test"), "global_test", names, lazy)
        given = {name: _pairs(client_id(name), value, names, lazy) for name, value in clients.items()}
        extras = Extras(wide, classes, prepare, drop_empty, groups=groups)
        return cls(**build.of_clients(given, test, valid, as_seed(seed), extras).parts())

    @classmethod
    def from_dataset(
        cls,
        dataset: object,
        *args: Any,
        x: str | None = None,
        label: str | None = None,
        lazy: bool = True,
        **options: Any,
    ) -> Federation:
        """From one PyTorch data set, read as by :meth:`from_datasets`; then as ``from_arrays``."""
        pair = columns_of(dataset, ("", "whole"), "dataset", (x, label), lazy)
        if options.get("global_test") is not None:
            wide = columns_of(options["global_test"], ("", "test"), "global_test", (x, label), lazy)
            options = {**options, "global_test": wide}
        return cls.from_arrays(*pair, *args, **{"standardise": None, **options})

    @classmethod
    def from_frame(
        cls,
        frame: object,
        *args: Any,
        label: str | Sequence[str] = "label",
        user: str | None = None,
        features: Sequence[str] | None = None,
        text: imports.Words | str | None = None,
        categories: Sequence[str] = (),
        **options: Any,
    ) -> Federation:
        """From a data frame of pandas, polars or pyarrow, as :meth:`from_csv`."""
        arrays = imports.of_frame(frame, imports.labelled(label, options), user, features, text, categories)
        return cls.from_source(arrays, *args, natural=user is not None, **options)

    @classmethod
    @remembered
    def from_source(cls, source: str | Arrays, *args: Any, natural: bool = False, **options: Any) -> Federation:
        """From a named data set (see :func:`fedquilt.data.available`); then as ``from_arrays``.

        With ``natural``, the clients are the people the rows come from, where the data set says so. Rows of the named
        data sets are as they are published; tables of one's own are standardised, see :class:`Federation`.
        """
        arrays = read(source) if isinstance(source, str) else source
        if natural and arrays.user is None:
            raise InputError(f"{arrays.name} does not say who its rows come from. Give a partition instead of natural.")
        given: dict[str, Any] = {"global_test": arrays.global_test, "classes": arrays.classes} | (
            {"user": arrays.user, "user_test": arrays.user_test} if natural else {}
        )
        given |= {"table": arrays.table} | ({"standardise": None} if arrays.ready else {})
        made = cls.from_arrays(*arrays.pair, *args, **{**given, **options})
        return made if arrays.reading is None else replace(made, reading=arrays.reading)

    @classmethod
    @remembered
    def from_npz(cls, path: str | Path, *args: Any, user: str | None = None, **options: Any) -> Federation:
        """From an .npz with x and y, or x_train, y_train, x_test, y_test (the global test); then as ``from_arrays``.

        ``user`` names a column (user, or user_train) whose values are the natural clients.
        """
        arrays = arrays_of(load(Path(path)), str(path), user)
        return cls.from_source(arrays, *args, natural=user is not None, **options)

    @classmethod
    @remembered
    def from_folder(
        cls, path: str | Path, *args: Any, size: int = 64, lazy: bool | None = None, **options: Any
    ) -> Federation:
        """From images in class folders, at a common size; then as ``from_arrays``.

        ``path/CLASS/*.png``, or ``path/CLIENT/CLASS/*.png``, whose clients are kept unless a partition is given, or
        ``path/train/CLASS`` and ``path/test/CLASS``, the global test.

        With ``lazy`` the images need not fit in memory: they are decoded once into a file below the folder that
        FEDQUILT_CACHE names, which all processes share, and read from there batch by batch. By default more than 256 MB
        of decoded images are.
        """
        arrays = imports.of_folder(Path(path), size, lazy)
        divided = bool(args) or options.get("partition") is not None
        return cls.from_source(arrays, *args, natural=arrays.user is not None and not divided, **options)

    @classmethod
    @remembered
    def from_csv(
        cls,
        path: str | Path,
        *args: Any,
        label: str | Sequence[str] = "label",
        user: str | None = None,
        features: Sequence[str] | None = None,
        text: imports.Words | str | None = None,
        delimiter: str = ",",
        categories: Sequence[str] = (),
        **options: Any,
    ) -> Federation:
        """From a csv file with a header; then as ``from_arrays``.

        ``label`` names the column of classes (names are numbered in their order), ``user`` that of natural clients,
        ``features`` the columns to use (all others), or ``text`` the columns whose words are used instead. Columns
        that are not numbers are categories, and so are those that ``categories`` names.
        """
        arrays = imports.of_csv(
            Path(path), imports.labelled(label, options), user, features, delimiter, text, categories
        )
        return cls.from_source(arrays, *args, natural=user is not None, **options)

    @classmethod
    @remembered
    def from_parquet(
        cls,
        path: str | Path,
        *args: Any,
        label: str | Sequence[str] = "label",
        user: str | None = None,
        features: Sequence[str] | None = None,
        text: imports.Words | str | None = None,
        categories: Sequence[str] = (),
        **options: Any,
    ) -> Federation:
        """From a parquet file, as :meth:`from_csv`."""
        arrays = imports.of_parquet(Path(path), imports.labelled(label, options), user, features, text, categories)
        return cls.from_source(arrays, *args, natural=user is not None, **options)

    @classmethod
    @remembered
    def from_hf(
        cls,
        dataset: object,
        *args: Any,
        x: str | None = None,
        label: str | None = None,
        user: str | None = None,
        size: int | None = None,
        **options: Any,
    ) -> Federation:
        """From a Hugging Face data set, or its name on the hub (extra ``hf``); then as ``from_arrays``.

        ``x``, ``label`` and ``user`` name columns; the image and the class label are found without. ``size`` brings
        images to one size, as RGB.
        """
        arrays = imports.of_hf(dataset, x, label, user, size)
        return cls.from_source(arrays, *args, natural=user is not None, **options)

    @classmethod
    def from_flwr(
        cls,
        source: object,
        *args: Any,
        x: str | None = None,
        label: str | None = None,
        size: int | None = None,
        **options: Any,
    ) -> Federation:
        """From a partitioner (with its data set) or a FederatedDataset of flwr-datasets; then as ``from_clients``."""
        clients, wide, classes = imports.of_flwr(source, x, label, size)
        return cls.from_clients(clients, *args, **{"global_test": wide, "classes": classes, **options})

    @classmethod
    @remembered
    def from_pfllib(cls, folder: str | Path, valid: float = 0.1, seed: int | Seed = 0, **options: Any) -> Federation:
        """From a division that PFLlib wrote (dataset/NAME); its pickles are read without running anything.

        Clients and their test samples stay as they are; the fraction ``valid`` of the training samples is held out.
        """
        clients, classes = imports.of_pfllib(Path(folder), valid, as_seed(seed))
        return cls.from_clients(clients, **{"classes": classes, "standardise": None, **options})

    @classmethod
    def from_rows(
        cls,
        columns: Columns,
        clients: Mapping[Any, Mapping[str, ArrayLike]],
        *,
        global_test: Pair | None = None,
        classes: int | None = None,
        prepare: Prepare | None = None,
        drop_empty: bool = False,
        groups: Mapping[Any, Hashable] | None = None,
        task: Task | None = None,
    ) -> Federation:
        """From ready tensors and the row numbers of each client: ``{"a": {"train": [0, 1], "test": [2]}}``.

        ``groups`` says which clients belong together, as in :meth:`from_clients`.
        """
        extras = Extras(global_test, classes, prepare, drop_empty, groups=groups, task=task)
        return cls(**build.of_rows(columns, clients, extras).parts())

    def site(self, client: ClientId, round: int) -> Site:
        """The client's training and validation samples; the same in every round."""
        place = self.place(client)
        valid = self.valid[place]
        return Site(self._table(self.train[place]), self._table(valid) if len(valid) else None, self._bare(place))

    def _bare(self, place: int) -> Table | None:
        if self.unlabelled is None or not len(rows := self.unlabelled[place]):
            return None
        return Table({name: column for name, column in self.columns.items() if name != "y"}, rows, self.prepare)

    def evaluation(self, client: ClientId, split: str, round: int = 0) -> Table | None:
        """The client's 'valid' or 'test' rows, or None when it has none; the same after every round."""
        if split not in ("valid", "test"):
            raise InputError(f"A model is evaluated on 'valid' or 'test', got {split!r}.")
        rows = (self.test if split == "test" else self.evaluation_valid)[self.place(client, evaluated=True)]
        return self._table(rows) if len(rows) else None

    def size(self, client: ClientId) -> int:
        """How many training samples the client has."""
        return len(self.train[self.place(client)])

    @property
    def global_test(self) -> Table | None:
        """The test set that belongs to no client."""
        return None if self.global_columns is None else Table(self.global_columns, None, self.prepare)

    @property
    def server_valid(self) -> Table | None:
        """The validation samples that belong to no client."""
        return None if self.server_columns is None else Table(self.server_columns, None, self.prepare)

    def labels(self, client: ClientId, split: str = "train") -> Tensor:
        """The client's labels in 'train', 'valid' or 'test'."""
        return look.labels(self, client, split)

    def label_counts(self, split: str = "train") -> Ints:
        """How many rows of each class each client has: [clients, classes]; of another task, of like targets."""
        return look.label_counts(self, split)

    def majority(self) -> look.Majority:
        """How well answering the most frequent training label does: the least any method must beat. Of another task,
        its main metric for the answer that needs no input."""
        return look.majority(self)

    def summary(self) -> Row:
        """Counts and sizes, as plain values."""
        return look.summary(self)

    def fingerprint(self) -> str:
        """What data this is: sha256 over columns, rows, ids and ``prepare``; equal data give equal prints anywhere."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        return look.fingerprint(self)

    def prepared(self, prepare: PerColumn) -> Federation:
        """The same table, prepared with numbers that came from elsewhere: those that a whole federation agreed on."""
        return standardised(self, prepare)

    def pooled(self) -> Federation:
        """The same with one training client, 'pooled', for all train and all valid rows; evaluations stay as they
        are."""
        bare = None if self.unlabelled is None else self.unlabelled.together()
        return replace(self, ids=("pooled",), train=self.train.together(), valid=self.valid.together(), unlabelled=bare)

    def columns_for_sharing(self) -> dict[str, Tensor]:
        """Every tensor under a flat name; with :meth:`layout` this is the whole federation but ``prepare``."""
        return sharing.tensors(self)

    def layout(self) -> Row:
        """The rest, as plain values that can be packed."""
        return sharing.layout(self)

    @classmethod
    def from_shared(
        cls, tensors: Mapping[str, Tensor], layout: Mapping[str, JSON], prepare: Prepare | None
    ) -> Federation:
        """The federation on these very tensors; nothing is copied."""
        return cls(**sharing.parts(tensors, layout), prepare=prepare)

    def __repr__(self) -> str:
        what = f"{self.classes} classes" if self.task is None else self.task.name
        return f"Federation({len(self.ids)} clients, {len(self.train.index)} training samples, {what})"

    @cached_property
    def places(self) -> tuple[dict[ClientId, int], ...]:
        """Where each client stands in ``ids``, and in ``evaluated``."""
        return tuple({client: i for i, client in enumerate(ids)} for ids in (self.ids, self.evaluated))

    def place(self, client: ClientId, evaluated: bool = False) -> int:
        """Where the client stands in ``ids`` (or ``evaluated``), and so in the rows."""
        found = self.places[evaluated].get(client)
        if found is None:
            ids = self.evaluated if evaluated else self.ids
            raise InputError(f"There is no client {client!r} in this federation of {len(ids)}: {few(ids)}.")
        return found

    def _table(self, rows: Tensor) -> Table:
        return Table(self.columns, rows, self.prepare)


def _pairs(client: ClientId, value: Any, names: tuple[str | None, str | None], lazy: bool) -> Any:
    """The inputs and labels of a client's data set, or of that of each split."""
    if not isinstance(value, Mapping):
        return columns_of(value, (client, "whole"), f"client {client!r}", names, lazy)
    return {s: columns_of(own, (client, s), f"client {client!r}, {s}", names, lazy) for s, own in value.items()}
