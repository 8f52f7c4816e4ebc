"""A node whose numbers are out of scale: on a federation, where states stay at the sites, as on every engine."""

from __future__ import annotations

from typing import Any

from fedquilt.core.net import Net
from fedquilt.core.params import Parts, everything_but, under
from fedquilt.core.seed import Seed
from fedquilt.engines.local import Local
from fedquilt.models.registry import make
from fedquilt.pieces.optimizers import SGD
from fedquilt.rounds.rounds import Rounds
from helpers.nodes import flower, grid
from helpers.sabotage import Without, wild_in
from helpers.tampering import spoilt, tampered
from helpers.toy import fedavg, points

FOUR = points(12, 20, 16, 14)
OWN = Parts(shared=everything_but(under("head")), private=under("head"))


def method(**settings: Any) -> Any:
    return fedavg(objective=Net(make("mlp", (2,), 2, hidden=(4,))), parts=OWN, **settings)


def test_a_liar_is_left_out_and_its_own_state_goes_back(monkeypatch):
    """Node 14 has client 3 alone."""
    monkeypatch.setattr("fedquilt.rounds.rounds.MOST_VOID", 1)  # none is
    engine = flower(tampered(FOUR, 14, spoilt(1e30), nodes=4))
    rounds = Rounds(method(), engine.gather(4), engine, Seed(0))
    honest = Rounds(Without(base=method(), client=3), FOUR, Local(), Seed(0))
    for _ in range(3):
        (left_out,) = rounds.play().quarantined
        assert left_out.client == 3
        assert "be out of scale: the norm of 'shared'" in left_out.reason
        honest.play()
        assert rounds.digest() == honest.digest()


def test_void_rounds_leave_states_at_the_sites_as_they_were():
    """Everybody diverges in two rounds of three, and what was kept before is asked for afterwards."""
    wild = method(optimizer=SGD(0.1), schedule=wild_in((1, 2)))
    engine, rounds = flower(grid(FOUR)), []
    for source, used in ((engine.gather(2), engine), (FOUR, Local())):
        rounds.append(Rounds(wild, source, used, Seed(0)))
        logs = []
        for _ in range(4):
            logs.append(rounds[-1].play())
            used.saved(rounds[-1].done)  # nothing older will be asked for
        assert [log.void is not None for log in logs] == [False, True, True, False]
    assert rounds[0].digest() == rounds[1].digest()
