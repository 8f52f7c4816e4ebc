"""How a federation comes about: from arrays per client, from one data set and a partition, or from row numbers."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from fedquilt.core.columns import PerColumn
from fedquilt.core.lazy import LazyColumn
from fedquilt.core.plain import Ints
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Columns, Prepare
from fedquilt.core.task import Task
from fedquilt.data.checks import (
    check_clients,
    check_fractions,
    client_id,
    count_classes,
    few,
    known_groups,
    label_column,
    ordered_ids,
    refuse_holes,
    same_kind,
)
from fedquilt.data.pairs import pair_columns
from fedquilt.data.partitions.labels import IID, Partition, by_user, check_parts
from fedquilt.data.prepare import Pixels
from fedquilt.data.rows import ClientRows, merged, split
from fedquilt.data.tabular import Standardise, blank_for, fit, has_holes, is_table, of_pieces, scope_of, standardised
from fedquilt.data.transforms import Transforms
from fedquilt.errors import InputError

SPLITS = ("train", "valid", "test")
Pair = tuple[Any, Any]  # inputs and labels: whatever numpy or torch takes for an array, or a data frame
Given = Mapping[Any, Pair | Mapping[str, Pair]]


@dataclass(frozen=True, eq=False)
class Holdings:
    """What a federation is made of: the columns, and whose rows are whose."""

    columns: Columns
    ids: tuple[ClientId, ...]
    train: ClientRows
    valid: ClientRows
    test: ClientRows
    global_columns: Columns | None = None
    classes: int | None = None
    prepare: Prepare | None = None
    groups: dict[ClientId, int] | None = None
    preparation: PerColumn | None = None
    task: Task | None = None

    def parts(self) -> dict[str, Any]:
        """The fields of a federation; everybody who trains is evaluated."""
        return {**vars(self), "evaluated": self.ids, "evaluation_valid": self.valid}


@dataclass(frozen=True)
class Extras:
    """What every way of making a federation takes beside the rows.

    ``standardise`` says how tables are prepared, and None that rows are ready; ``table`` what their columns are;
    ``groups`` what clients belong together, where the user knows; ``task`` what labels are, if they are no classes.
    """

    global_test: Pair | None = None
    classes: int | None = None
    prepare: Prepare | None = None
    drop_empty: bool = False
    standardise: Standardise = None
    table: PerColumn | None = None
    groups: Mapping[Any, Hashable] | None = None
    task: Task | None = None

    @property
    def tabular(self) -> bool:
        """Whether the rows, if they are a table, are stored as one."""
        asked = self.prepare is None and scope_of(self.standardise) is not None
        return asked or isinstance(self.prepare, PerColumn)

    def opened(self, inputs: Sequence[object], where: str) -> tuple[list[object], Extras]:
        """Data frames and arrays of names as stored rows, in each of these inputs and the global test set."""
        wide = [] if self.global_test is None else [self.global_test[0]]
        if not self.tabular or self.table is not None:
            return list(inputs), self
        (*found,), table = of_pieces([*inputs, *wide], where)
        if table is None:
            return list(inputs), self
        evaluation = None if self.global_test is None else (found.pop(), self.global_test[1])
        return found, replace(self, table=table, global_test=evaluation)

    def _as_table(self, made: Holdings) -> Holdings:
        """The rows as a table whose numbers are those of the training samples; narrow where they are none."""
        if isinstance(self.prepare, PerColumn):
            return replace(made, preparation=self.prepare)  # its numbers come later
        kinds = self._kinds(made)
        if kinds is not None:
            return standardised(made, fit([made], kinds))
        narrow, wide = _narrow(made.columns, "data"), made.global_columns
        return replace(made, columns=narrow, global_columns=None if wide is None else _narrow(wide, "global_test"))

    def _kinds(self, made: Holdings) -> PerColumn | None:
        """The columns of a table, without their numbers; None for what is no table, or needs no preparation."""
        x, scope = made.columns["x"], scope_of(self.standardise)
        if scope is None or not self.tabular or not is_table(x):
            return None
        kinds, wide = blank_for(x, self.table, scope), made.global_columns
        odd = has_holes(x, None if wide is None else wide["x"]) or any(c.category for c in kinds.columns)
        return kinds if scope != "none" or odd else None

    def complete(self, made: Holdings) -> Holdings:
        """Check the whole, add the global test set, the number of classes and the preparation."""
        x, prepare = made.columns["x"], self.prepare
        if prepare is None and x.dtype == torch.uint8:
            prepare = Pixels()
        if isinstance(prepare, Pixels | Transforms):
            prepare.check(x)
        wide = self._wide(x)
        labels = [c["y"] for c in (made.columns, wide or {}) if "y" in c]
        classes = self.classes
        if labels and self.task is None:
            classes = count_classes(labels, self.classes)
        groups = made.groups if self.groups is None else known_groups(self.groups, made.ids)
        whole = replace(made, global_columns=wide, classes=classes, prepare=prepare, groups=groups)
        return self._as_table(self._for_task(_without_empty(whole, self.drop_empty)))

    def _for_task(self, made: Holdings) -> Holdings:
        """With the task, fitted to the training targets of those who train; None stays None."""
        if self.task is None:
            return made
        if "y" not in made.columns:
            raise InputError(f"The data have no targets, and the task is {self.task.name}. Give y.")
        y = made.columns["y"]
        trained = self.task.fitted(y.index_select(0, made.train.index))
        return replace(made, task=trained, classes=trained.outputs(y))

    def _wide(self, like: Tensor) -> Columns | None:
        """The global test set, if there is one, as rows of this kind."""
        if self.global_test is None:
            return None
        wide = pair_columns(*self.global_test, "global_test", self.tabular, self.task)
        if not len(wide["x"]):
            raise InputError("The global test set has no rows. Leave it out, or give it at least one.")
        same_kind(like, wide["x"], "global_test")
        return wide


def of_clients(clients: Given, test: float, valid: float, seed: Seed, extras: Extras) -> Holdings:
    """One entry for each client: (x, y), which is split by the fractions, or a pair for each split."""
    check_fractions(test, valid)
    ids = ordered_ids(clients)
    given = {client_id(name): value for name, value in clients.items()}
    given, extras = _opened(given, extras)
    pieces: list[Columns] = []
    parts: dict[str, list[Ints]] = {name: [] for name in ("whole", *SPLITS)}
    end = 0
    for client in ids:
        own = dict(_pieces(client, given[client], extras))
        for name, rows in parts.items():
            count = len(own[name]["x"]) if name in own else 0
            rows.append(np.arange(end, end + count))
            end += count
            pieces += [own[name]] if count else []
    if not pieces:
        raise InputError(f"None of {len(ids)} clients has a row. Give data to at least one: {{'a': (x, y)}}.")
    whole, *fixed = (ClientRows.of(p) for p in parts.values())
    draws = [seed.fold("split", c).numpy().random(len(p)) for c, p in zip(ids, parts["whole"], strict=True)]
    cut = split(whole, test, valid, np.concatenate(draws))
    train, held, evaluation = (merged(a, b) for a, b in zip(cut, fixed, strict=True))
    return extras.complete(Holdings(_stacked(pieces), ids, train, held, evaluation))


def of_arrays(
    pair: Pair, partition: Partition | None, clients: int | None, who: Pair, fractions: Pair, seed: Seed, extras: Extras
) -> Holdings:
    """One data set, divided by a partition or by who each row, and each row of the test set, comes from."""
    check_fractions(*fractions)
    (user, user_test), groups = who, None
    (x,), extras = extras.opened([pair[0]], "data")
    columns = pair_columns(x, pair[1], "data", extras.tabular, extras.task)
    count = len(columns["x"])
    if not count:
        raise InputError("data: x and y are empty. Give at least one row.")
    if user is not None:
        if partition is not None:
            raise InputError("Both partition and user say who holds which row. Give one of them.")
        ids, parts = by_user(user, count, clients, seed)
        if user_test is not None and extras.global_test is not None:
            found = _own_tests(ids, user_test, user, extras)
            if found is not None:
                return _with_own_tests(columns, ids, parts, found, fractions[1], seed, extras)
    else:
        many = 20 if clients is None else clients
        check_clients(count, many)
        ids, parts = (
            tuple(range(many)),
            _divided(partition or IID(), columns, many, seed.fold("partition"), extras.task),
        )
        check_parts(parts, many, count)
        planted = getattr(partition, "group_of", None)
        groups = None if planted is None else dict(zip(ids, planted(many).tolist(), strict=True))
    rows = ClientRows.of(parts)
    cut = split(rows, *fractions, seed.fold("split").numpy().random(len(rows.index)))
    return extras.complete(Holdings(columns, ids, *cut, groups=groups))


def _own_tests(
    ids: Sequence[ClientId], user_test: object, user: object, extras: Extras
) -> tuple[list[Ints], Ints] | None:
    """Of the test set, the rows of each of these users, and those of people who have no training samples at all; None
    if it holds no row of any user."""
    assert extras.global_test is not None
    names = np.asarray(user_test)
    if names.shape != (len(extras.global_test[0]),):
        raise InputError(f"user_test has shape {names.shape}, but the test set {len(extras.global_test[0])} rows.")
    everybody, parts = by_user(names, len(names), None, Seed(0))
    place = dict(zip(everybody, parts, strict=True))
    own = [place.get(c, np.zeros(0, np.int64)) for c in ids]
    others = np.flatnonzero(~np.isin(names, np.unique(np.asarray(user))))
    return (own, others) if any(len(rows) for rows in own) else None


def _with_own_tests(
    columns: Columns,
    ids: tuple[ClientId, ...],
    parts: list[Ints],
    found: tuple[list[Ints], Ints],
    valid: float,
    seed: Seed,
    extras: Extras,
) -> Holdings:
    """Users who are evaluated on their own samples of the test set; those of people who never train are the global
    test."""
    assert extras.global_test is not None
    (own, others), (x, y) = found, extras.global_test
    tests = pair_columns(x, y, "test samples", extras.tabular, extras.task)
    same_kind(columns["x"], tests["x"], "test samples")
    base = len(columns["x"])
    whole = {name: torch.cat([column, tests[name]]) for name, column in columns.items()}
    rows = ClientRows.of(parts)
    train, held, _ = split(rows, 0.0, valid, seed.fold("split").numpy().random(len(rows.index)))
    wide = (np.asarray(x)[others], np.asarray(y)[others]) if len(others) else None
    made = Holdings(whole, ids, train, held, ClientRows.of([rows + base for rows in own]))
    return replace(extras, global_test=wide).complete(made)


def _divided(partition: Partition, columns: Columns, clients: int, seed: Seed, task: Task | None = None) -> list[Ints]:
    if "y" in columns:
        y = columns["y"].numpy()
        return partition(y if task is None else task.strata(y), clients, seed)
    if getattr(partition, "by_label", True):
        raise InputError(
            f"{type(partition).__name__} divides rows by their labels, and the data have none. Divide them by user, "
            "or by IID, LogNormal, PowerLaw or DirichletSizes."
        )
    return partition(np.zeros(len(columns["x"]), np.int64), clients, seed)


def of_rows(columns: Columns, clients: Mapping[Any, Mapping[str, ArrayLike]], extras: Extras) -> Holdings:
    """Row numbers for each client and split, into columns that are ready."""
    lengths = {name: len(column) for name, column in columns.items()}
    if "x" not in columns or len(set(lengths.values())) != 1:
        raise InputError(f"The columns must be of one length and include x; they have {lengths} rows.")
    if "y" in columns:
        y = columns["y"]
        targets = label_column(y, "columns") if extras.task is None else extras.task.targets(y, "columns")
        columns = {**columns, "y": targets}
    ids = ordered_ids(clients)
    given = {client_id(name): value for name, value in clients.items()}
    for client, splits in given.items():
        _check_splits(client, splits)
    parts = [[np.asarray(given[c].get(name, ()), np.int64).reshape(-1) for c in ids] for name in SPLITS]
    train, held, evaluation = (ClientRows.of(p) for p in parts)
    _check_rows((train, held, evaluation), ids, lengths["x"])
    return extras.complete(Holdings(columns, ids, train, held, evaluation))


def _check_rows(made: Sequence[ClientRows], ids: Sequence[ClientId], length: int) -> None:
    """Every row number exists, and no client has one twice: a test sample must not be a training sample."""
    flat = np.concatenate([r.index.numpy() for r in made])
    if len(flat) and not 0 <= flat.min() <= flat.max() < length:
        raise InputError(f"Row numbers go from {flat.min()} to {flat.max()}, but the columns have {length} rows.")
    seen, times = np.unique(np.concatenate([r.owners() for r in made]) * length + flat, return_counts=True)
    if (times > 1).any():
        client, row = divmod(int(seen[times > 1][0]), length)
        raise InputError(f"Client {ids[client]!r} has row {row} twice. A row is in one split of a client, once.")


def _opened(given: dict[ClientId, Any], extras: Extras) -> tuple[dict[ClientId, Any], Extras]:
    """Every client's inputs as stored rows, where they are tables of named columns."""
    places = [
        (client, name, pair)
        for client, value in given.items()
        for name, pair in (value.items() if isinstance(value, Mapping) else (("", value),))
        if isinstance(pair, tuple | list) and len(pair) == 2
    ]
    found, changed = extras.opened([pair[0] for _, _, pair in places], "data")
    if changed is extras:
        return given, extras
    made = {client: dict(value) if isinstance(value, Mapping) else value for client, value in given.items()}
    for (client, name, pair), x in zip(places, found, strict=True):
        if name:
            made[client][name] = (x, pair[1])
        else:
            made[client] = (x, pair[1])
    return made, changed


def _narrow(columns: Columns, where: str) -> Columns:
    """Floats as float32; there must be no holes in them."""
    x = columns["x"]
    if not x.is_floating_point() or isinstance(x, LazyColumn):  # rows are looked at when they are read
        return columns
    refuse_holes(x, where)
    return {**columns, "x": x.float()}


def _pieces(client: ClientId, value: object, extras: Extras) -> Iterator[tuple[str, Columns]]:
    if isinstance(value, Mapping):
        _check_splits(client, value)
        for name, pair in value.items():
            yield name, _piece(pair, f"client {client!r}, {name}", extras)
    else:
        yield "whole", _piece(value, f"client {client!r}", extras)


def _piece(pair: object, where: str, extras: Extras) -> Columns:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise InputError(
            f"{where}: expected (x, y), got {type(pair).__name__}. Give (x, y) or "
            "{'train': (x, y), 'valid': (x, y), 'test': (x, y)}."
        )
    x, y = pair
    return pair_columns(x, y, where, extras.tabular, extras.task)


def _check_splits(client: ClientId, splits: Mapping[str, object]) -> None:
    odd = [name for name in splits if name not in SPLITS]
    if odd:
        raise InputError(f"Client {client!r} has a split {odd[0]!r}. The splits are train, valid and test.")


def _stacked(pieces: Sequence[Columns]) -> Columns:
    if len({tuple(piece) for piece in pieces}) > 1:
        raise InputError("Some clients have labels and others have none. Give all of them y, or None in its place.")
    for number, piece in enumerate(pieces):
        same_kind(pieces[0]["x"], piece["x"], f"piece {number + 1} of the clients' data")
        if "y" in piece and len(piece["y"]) and piece["y"].shape[1:] != pieces[0]["y"].shape[1:]:
            raise InputError(
                f"piece {number + 1} of the clients' data has targets of shape {tuple(piece['y'].shape[1:])}, the "
                f"first of {tuple(pieces[0]['y'].shape[1:])}. Give all clients targets of one shape."
            )
    return {name: torch.cat([p[name] for p in pieces]) for name in pieces[0]}


def _without_empty(made: Holdings, drop: bool) -> Holdings:
    has = made.train.counts() > 0
    if not len(has):
        raise InputError("There are no clients. Give at least one.")
    if has.all():
        return made
    empty = [c for c, ok in zip(made.ids, has, strict=True) if not ok]
    if not drop or not has.any():
        raise InputError(
            f"{len(empty)} of {len(made.ids)} clients have no training samples: {few(empty)}. Give them data, or "
            "leave them out with drop_empty=True."
        )
    ids = tuple(c for c, ok in zip(made.ids, has, strict=True) if ok)
    groups = None if made.groups is None else {client: made.groups[client] for client in ids}
    return replace(made, ids=ids, groups=groups, **{name: getattr(made, name).keep(has) for name in SPLITS})
