"""A run after a round, as a caller sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fedquilt.core.deployed import deployed_model, first_state
from fedquilt.core.exchange import Method
from fedquilt.core.params import Params
from fedquilt.core.plain import Row
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Site
from fedquilt.errors import InputError
from fedquilt.moved import renamed
from fedquilt.records.record import unpack
from fedquilt.results.shown import Shown
from fedquilt.rounds.rounds import RoundLog, Rounds


@dataclass(frozen=True)
class Snapshot:
    """A run after a round.

    Args:
        round: How many rounds are done.
        state: The server's state.
        metrics: The numbers of this round; those of an evaluation only when one was due.
        log: Every client update of the round: bytes, time, loss; and what was quarantined.
        evaluations: Scores per client, when an evaluation was due.

    Example:
        >>> from fedquilt import run
        >>> from fedquilt.testing import digits, fedavg
        >>> for snapshot in run(fedavg(), digits(), rounds=1):  # doctest: +SKIP
        ...     print(snapshot.round, snapshot.metrics["test_accuracy"], snapshot.digest())
    """

    round: int
    state: Any
    metrics: Row
    log: RoundLog
    evaluations: dict[ClientId, Row]
    _rounds: Rounds = field(repr=False)
    exams = renamed("exams", "evaluations")

    def _repr_html_(self) -> str:
        numbers = {name: value for name, value in self.metrics.items() if isinstance(value, bool | int | float)}
        rows = tuple((name, f"{value:.6g}") for name, value in numbers.items() if name != "round")
        return Shown(f"round {self.round}", ("metric", "value"), rows)._repr_html_()

    def _current(self) -> Rounds:
        if self._rounds.done != self.round:
            raise InputError(
                f"The run has already reached round {self._rounds.done}; use a snapshot before the next round."
            )
        return self._rounds

    @property
    def method(self) -> Method:
        """The method that is run."""
        return self._rounds.method

    @property
    def seed(self) -> Seed:
        """The seed of the run."""
        return self._rounds.seed

    def digest(self) -> str:
        """The hash of the whole state of the run: equal runs have equal digests, on every engine."""
        return self._current().digest()

    def global_model(self) -> Params | None:
        """What a new client would be given now."""
        return self._rounds.method.global_model(self.state)

    def personal_model(self, client: ClientId) -> Params:
        """What this client would use now."""
        return personal_model(self._current(), client)

    def client_state(self, client: ClientId) -> Any:
        """The method's state at this client."""
        return _client_state(self._current(), client)


def personal_model(rounds: Rounds, client: ClientId) -> Params:
    """What a client would use in the present state of a run."""
    download = rounds.next_exchange().downloaded(rounds.state, client, rounds.done, rounds.seed)
    return deployed_model(rounds.method, download, _client_state(rounds, client), partial(_site, rounds, client))


def _site(rounds: Rounds, client: ClientId) -> Site | None:
    """The rows that evaluations would let the client look at."""
    return rounds.source.site(client, max(rounds.done - 1, 0)) if client in rounds.source.ids else None


def _client_state(rounds: Rounds, client: ClientId) -> Any:
    if rounds.engine.keeps_states:
        raise InputError(f"The state of client {client!r} is at its own site.")
    frame = rounds.slots.get(client)
    if frame is not None:
        return unpack(frame).state
    return first_state(rounds.method, rounds.seed, client)
