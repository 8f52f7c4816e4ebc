"""Survey: what a federation must know of its tables before the first round, as one exchange of sums.

Each client tells counts, means and squared deviations of its columns, and the codes and counts of its categories'
levels (:class:`fedquilt.core.columns.ColumnSums`); the server adds them in ascending order of the clients. Nothing is
trained.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedquilt.core.columns import ColumnSums, PerColumn, check_sums, check_together, fitted, sums_of, without_numbers
from fedquilt.core.exchange import Context, Exchange, Reply
from fedquilt.core.params import Params
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch, ClientId, Site
from fedquilt.errors import InputError
from fedquilt.records.record import record


@record
class Surveyed:
    """The server's state: how tables are prepared; blank before clients were asked."""

    prepare: PerColumn


@record
class Question:
    """How many columns the server knows of: a site whose table is another one is found out."""

    columns: int


@record
class Nothing:
    """A client keeps nothing of a survey."""


@dataclass(frozen=True)
class Survey:
    """Ask every client for the sums of its table's columns, once.

    Args:
        blank: The columns, and whose numbers they are to be standardised by.
    """

    blank: PerColumn

    def init_server(self, seed: Seed) -> Surveyed:
        """Nothing is known yet."""
        return Surveyed(self.blank)

    def init_client(self, seed: Seed) -> Nothing:
        """Nothing."""
        return Nothing()

    def exchanges(self) -> tuple[Exchange, ...]:
        """One exchange."""
        return (Exchange("columns", self.down, self.work, self.up, check=self.check),)

    def plan(self, state: Surveyed, round: int) -> tuple[str, ...]:
        """That exchange."""
        return ("columns",)

    def down(self, state: Surveyed, client: ClientId) -> Question:
        """How many columns there are."""
        return Question(len(self.blank.columns))

    def work(self, sent: Question, client: Nothing, site: Site, context: Context) -> tuple[Nothing, ColumnSums]:
        """The sums of the stored training samples; where each client takes its own numbers, these stay at home."""
        x = site.train.columns["x"].index_select(0, site.train.all_rows())
        if x.dim() != 2 or x.shape[1] != sent.columns:
            raise InputError(f"the server asks for {sent.columns} columns, this site's rows are {tuple(x.shape[1:])}")
        told = sums_of(x, self.blank.columns)
        if self.blank.scope == "clients":
            none = torch.zeros_like(told.mean)
            told = replace(told, mean=none, squares=none)
        return client, told

    def check(self, state: Surveyed, upload: Any) -> None:
        """Raise unless the sums can be those of such columns."""
        check_sums(self.blank, upload)

    def up(self, state: Surveyed, replies: Iterable[Reply[ColumnSums]], context: Context) -> Surveyed:
        """All sums together."""
        told = [reply.upload for reply in replies]
        check_together(told)
        found = fitted(self.blank, told)
        return Surveyed(without_numbers(found) if self.blank.scope == "clients" else found)

    def observe(self, state: Surveyed, metrics: Mapping[str, float]) -> Surveyed:
        """Nothing is scored."""
        return state

    def global_model(self, state: Surveyed) -> None:
        """There is no model."""

    def personal_model(self, download: Question, client: Nothing) -> Params:
        """There is no model."""
        return {}

    def predict(self, params: Params, batch: Batch) -> Tensor:
        """There is no model."""
        raise InputError("A survey learns nothing, so it predicts nothing.")
