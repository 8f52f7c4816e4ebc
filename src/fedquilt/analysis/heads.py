"""A run read from its folder: what was learned, which classes a client knows, and which heads there are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedquilt.analysis.afterwards import config_in, learned_from
from fedquilt.analysis.newcomers import LearnedRun, download_of
from fedquilt.config.config import Config
from fedquilt.config.data import federations_of
from fedquilt.core.deployed import deployed_model, first_state
from fedquilt.core.net import Net
from fedquilt.core.params import Params
from fedquilt.core.table import ClientId
from fedquilt.data import Federation
from fedquilt.errors import InputError
from fedquilt.models.registry import net as net_called
from fedquilt.pieces.realign import BIAS, WEIGHT, Head, Heads
from fedquilt.records.record import unpack
from fedquilt.runs.build import row_shape
from fedquilt.storage.folder import RunFolder
from fedquilt.storage.slots import entries_of


@dataclass(frozen=True)
class PlayedRun:
    """A run after its last snapshot."""

    folder: Path
    config: Config
    federation: Federation
    learned: LearnedRun

    @classmethod
    def of(cls, folder: Path) -> PlayedRun:
        """From the folder; the data are made anew by its recipe."""
        config = config_in(folder)
        federation, _ = federations_of(config)
        if not isinstance(federation, Federation):
            raise InputError(f"The data of '{folder}' are a stream; scores under long tails are of data that stay.")
        return cls(folder, config, federation, learned_from(config, folder, federation))

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """Those that train."""
        return tuple(self.federation.ids)

    @cached_property
    def counts(self) -> Tensor:
        """Training rows of each client and class: what says which classes a client knows."""
        return torch.from_numpy(self.federation.label_counts("train"))

    @cached_property
    def plain(self) -> Net:
        """The network of the recipe, as it is before a method adds to it."""
        chosen = self.config.model
        return net_called(chosen.kind, row_shape(self.federation), self.federation.classes or 2, **chosen.options)

    @cached_property
    def _slots(self) -> Any:
        found = RunFolder(self.folder)
        kept = found.newest(self.config.identity(), self.federation.fingerprint())
        found.slots.now = {} if kept is None else dict(entries_of(kept.slots))
        return found.slots

    def state(self, client: ClientId) -> tuple[Any, bool]:
        """A client's state, and whether it was ever asked."""
        frame = self._slots.get(client)
        if frame is not None:
            return unpack(frame).state, True
        return first_state(self.learned.method, self.learned.seed, client), False

    def download(self, client: ClientId) -> Any:
        """What the next round would bring."""
        return download_of(self.learned, client)

    @cached_property
    def whole(self) -> Params | None:
        """The global model."""
        return self.learned.method.global_model(self.learned.state)

    def personal(self, client: ClientId) -> Params:
        """The client's model."""
        round = max(self.learned.done - 1, 0)
        site = partial(self.federation.site, client, round)
        return deployed_model(self.learned.method, self.download(client), self.state(client)[0], site)

    def heads(self, client: ClientId | None = None) -> Heads | None:
        """Body and heads of a client (or as far as all share them), if its models are a body and a linear head.

        A method may say which by ``heads(download, client_state)``. Otherwise the global model's head is the general
        one, and the personal model's, where it differs, the client's own.
        """
        method, who = self.learned.method, self.clients[0] if client is None else client
        state, asked = self.state(who)
        alone = client is None or not asked
        told = getattr(method, "heads", None)
        if told is not None:
            found: Heads | None = told(self.download(who), state)
            return found._replace(own=None) if found is not None and alone else found
        if self.whole is None or not self._plain(self.whole):
            return None
        mine = self.whole if alone else method.personal_model(self.download(who), state)
        if not self._plain(mine):
            return None
        return _split(self.whole, mine)

    @cached_property
    def personalised(self) -> bool:
        """Whether clients that were asked have a head of their own."""
        first = next((c for c in self.clients if self.state(c)[1]), None)
        heads = None if first is None else self.heads(first)
        return heads is not None and heads.own is not None

    def _plain(self, model: Params) -> bool:
        """Whether it is a model of the recipe's own network, with a linear head."""
        return model.keys() == set(self.plain.names) and {WEIGHT, BIAS} <= model.keys()


def _split(whole: Params, mine: Params) -> Heads:
    """The body of a client's model, the head of the global one, and its own, if the models differ."""
    same = all(torch.equal(t, whole[n]) for n, t in mine.items())
    body = {n: t for n, t in mine.items() if n not in (WEIGHT, BIAS)}
    return Heads(body, Head(whole[WEIGHT], whole[BIAS]), None if same else Head(mine[WEIGHT], mine[BIAS]))
