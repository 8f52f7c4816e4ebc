"""A simulation's data and scores where some clients are malicious: their rows are spoilt, and they are not scored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedquilt.core.lazy import LazyColumn
from fedquilt.core.params import Params
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch, ClientId, Columns, Source, Table
from fedquilt.data import Federation, Stream
from fedquilt.errors import InputError
from fedquilt.metrics.classify import Scores, with_sums
from fedquilt.metrics.table import SUCCESS
from fedquilt.pieces.robust.attackers import Attackers
from fedquilt.rounds.client import Score


def attacked(source: Source, attackers: Attackers, seed: Seed) -> Source:
    """The source as it is with these attackers."""
    malicious = malicious_of(source, attackers, seed)
    if isinstance(source, Stream) and attackers.poisoning is not None:
        raise InputError("attack: samples of a stream are not poisoned. Take an attack that forges what is sent.")
    if isinstance(source, Federation) and attackers.poisoning is not None:
        source = _poisoned(source, attackers.poisoning, malicious, seed)
    return scored(source, malicious)


def malicious_of(source: Source, attackers: Attackers | None, seed: Seed) -> frozenset[ClientId]:
    """Which clients attack; nobody where there are no attackers."""
    if attackers is None or not isinstance(source, Federation | Stream):
        return frozenset()
    return attackers.among(source.ids, seed, source.size)


def scored(source: Source, malicious: frozenset[ClientId]) -> Source:
    """The same, of which only honest clients are scored."""
    if isinstance(source, Stream):
        return replace(source, tasks=tuple(_scored(task, malicious) for task in source.tasks)) if malicious else source
    return _scored(source, malicious) if isinstance(source, Federation) else source


def _scored(data: Federation, malicious: frozenset[ClientId]) -> Federation:
    """The same, of which only honest clients are scored."""
    honest = np.array([client not in malicious for client in data.evaluated], dtype=bool)
    if honest.all() or not honest.any():
        return data
    return replace(
        data,
        evaluated=tuple(c for c in data.evaluated if c not in malicious),
        evaluation_valid=data.evaluation_valid.keep(honest),
        test=data.test.keep(honest),
    )


def _poisoned(data: Federation, attack: Any, malicious: frozenset[ClientId], seed: Seed) -> Federation:
    """The same with the attackers' training rows spoilt, in columns of their own."""
    if data.classes is None:
        raise InputError("attack: there are no labels to poison. Take an attack that forges what is sent.")
    lazy = [name for name, column in data.columns.items() if isinstance(column, LazyColumn)]
    if "x" in lazy and hasattr(attack, "marked"):
        raise InputError("attack: rows that are read from files when they are needed cannot bear a mark.")
    columns: dict[str, Tensor] = dict(data.columns)
    copied: set[str] = set()
    _check_apart(data, malicious)
    for client in data.ids:
        if client not in malicious:
            continue
        rows = data.train[data.place(client)]
        own: Columns = {n: c if n in lazy else c.index_select(0, rows) for n, c in columns.items()}
        for name, column in attack.poisoned(own, data.classes, seed.fold("poisoned", client)).items():
            if name not in copied:
                columns[name] = columns[name].clone()
                copied.add(name)
            columns[name][rows] = column
    return replace(data, columns=columns)


def _check_apart(data: Federation, malicious: frozenset[ClientId]) -> None:
    """Spoilt rows are nobody else's."""
    theirs = torch.cat([data.train[data.place(c)] for c in data.ids if c in malicious] or [torch.zeros(0).long()])
    others = [data.train[data.place(c)] for c in data.ids if c not in malicious]
    if bool(torch.isin(torch.cat([*others, data.test.index, data.evaluation_valid.index]), theirs).any()):
        raise InputError("attack: clients that share rows with others cannot poison them. Give each its own rows.")


@dataclass(frozen=True)
class WithMarks:
    """Scores as before, and beside them how many rows of other classes are taken for the target with the mark on them,
    and of how many.

    Args:
        score: What scores rows as they are.
        attack: Whose mark.
    """

    score: Callable[..., Any]
    attack: Any

    def __call__(self, predict: Callable[[Params, Batch], Tensor], params: Params, table: Table) -> Any:
        found = self.score(predict, params, table)
        if not isinstance(found, Scores):
            return found
        rows = table.all_rows()
        rows = rows[table.columns["y"][rows] != self.attack.target]
        columns = {name: column.index_select(0, rows) for name, column in table.columns.items()}
        hits, count = 0, len(columns["y"])
        if count:
            marked = Table({**columns, "x": self.attack.marked(columns["x"])}, None, table.prepare)
            hits = int(self.score(predict, params, marked).called[self.attack.target])
        return with_sums({SUCCESS: torch.tensor([hits, count])}, found)


def score_under(score: Score | None, attackers: Attackers | None) -> Score | None:
    """How models are scored, where there are such attackers."""
    marks = score is not None and attackers is not None and hasattr(attackers.attack, "marked")
    return WithMarks(score, attackers.attack) if score is not None and attackers is not None and marks else score


def aggregator_of(method: Any) -> Callable[..., Params] | None:
    """How a method merges what clients learned, if that is a choice."""
    while method is not None:
        found: Callable[..., Params] | None = getattr(method, "aggregate", None)
        if found is not None:
            return found
        method = getattr(method, "base", None)
    return None
