"""Methods that go wrong in ways of our own tests. They live in a module so that worker processes can import them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from fedquilt.core.exchange import Context, Exchange
from fedquilt.core.params import Params
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch, ClientId, Site
from fedquilt.core.train import Job, Trained
from fedquilt.errors import InputError
from fedquilt.testing.faults import Corrupted as Corrupted
from fedquilt.testing.faults import Corrupting as Corrupting
from fedquilt.testing.faults import Deadly as Deadly
from fedquilt.testing.faults import Without as Without
from fedquilt.testing.faults import Wraps as Wraps


@dataclass(frozen=True)
class wild_in:
    """A schedule by which everybody diverges in some rounds."""

    rounds: tuple[int, ...]

    def __call__(self, round: int) -> float:
        return 1e9 if round in self.rounds else 1.0


def boom(out: Any, params: Params, fixed: Mapping[str, Any], batch: Batch) -> Tensor:
    """A term that raises what ``start`` asked for."""
    if "boom" in fixed:
        raise fixed["boom"]
    return params["weight"].new_zeros(())


ERRORS = {"foreign": lambda: KeyError("boom"), "own": lambda: InputError("boom")}


@dataclass(frozen=True, kw_only=True)
class Failing(Wraps):
    """The base, but one stage raises at one client, which is known by its id and its number of rows."""

    base: Any
    stage: str
    client: int
    rows: int
    error: str = "foreign"

    def exchanges(self) -> tuple[Exchange, ...]:
        """The base's, with trouble."""
        (train,) = self.base.exchanges()
        objective = train.work.objective.plus(boom)
        work = replace(train.work, start=self.start, objective=objective, finish=self.finish)
        return (replace(train, down=self.down, work=work, up=self.up, check=self.check, cohort=self.cohort),)

    def _maybe(self, stage: str, here: bool) -> None:
        if stage == self.stage and here:
            raise ERRORS[self.error]()

    def cohort(self, state: Any, ids: Any, seed: Seed) -> Any:
        """Everyone."""
        self._maybe("cohort", True)
        return ids

    def down(self, state: Any, client_id: ClientId) -> Any:
        """As the base."""
        self._maybe("down", client_id == self.client)
        return self.base.down(state, client_id)

    def start(self, download: Any, client: Any, site: Site, context: Context) -> Job:
        """As the base; a mine for the objective."""
        here = site.samples == self.rows
        self._maybe("start", here)
        job: Job = self.base.start(download, client, site, context)
        mine = {"boom": ERRORS[self.error]()} if here and self.stage == "objective" else {}
        return replace(job, fixed={**job.fixed, **mine})

    def finish(self, job: Job, trained: Trained, client: Any, site: Site, context: Context) -> tuple[Any, Any]:
        """As the base."""
        self._maybe("finish", site.samples == self.rows)
        state, upload = self.base.finish(job, trained, client, site, context)
        return state, upload

    def check(self, state: Any, upload: Any) -> None:
        """As the base."""
        self._maybe("check", True)
        self.base.check(state, upload)

    def up(self, state: Any, replies: Any, context: Context) -> Any:
        """As the base."""
        list(replies)
        self._maybe("up", True)
        return state
