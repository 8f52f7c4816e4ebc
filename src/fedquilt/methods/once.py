"""One round, and no more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.methods.centralised import Centralised
from fedquilt.methods.on_base import OnBase


@dataclass(frozen=True, kw_only=True)
class Once(OnBase):
    """The base for its first round; in all later ones nobody is asked, and the model stays what it is."""

    base: Any

    def plan(self, state: Any, round: int) -> tuple[str, ...]:
        """As the base in the first round, then nothing."""
        return self.base.plan(state, round) if round == 0 else ()


def single_model(objective: Objective | Net, **rest: Any) -> Once:
    """One model trained on the union of all clients' rows in a single round of ``epochs_first`` (or ``epochs``) passes:
    the upper frame of merging."""
    return Once(base=Centralised(objective=objective, **rest))
