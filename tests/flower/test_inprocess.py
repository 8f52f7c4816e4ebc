"""Every method on Flower's own messages, in this process: the same numbers as on the local engine."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr")

from conformance.cases import CASES, Case
from fedquilt.core.errors import InputError
from fedquilt.core.seed import Seed
from fedquilt.engines.local import Local
from fedquilt.engines.rounds import Rounds
from fedquilt.metrics.classify import classify
from fedquilt.metrics.reconstruct import reconstruct
from helpers.nodes import flower, grid


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("place", ["memory", "disk"])
def test_flower_equals_local(case: Case, place, tmp_path):
    if case.alone:
        with pytest.raises(InputError, match="cannot run on a real federation"):
            flower(grid(case.federation)).gather(2).pooled()
        return
    engine = flower(grid(case.federation, 2, tmp_path if place == "disk" else None))
    score = reconstruct if case.guesses else classify
    there = Rounds(case.method, engine.gather(2), engine, Seed(3), score=score)
    here = Rounds(case.method, case.federation, Local(), Seed(3), score=score)
    for _ in range(2):
        logs = [rounds.play() for rounds in (here, there)]
        assert not logs[1].quarantined
        assert logs[0].bytes_up == logs[1].bytes_up
        assert logs[0].bytes_down == logs[1].bytes_down
    assert here.digest() == there.digest()
    clients = list(case.federation.examined)
    assert repr(here.examine(clients)) == repr(there.examine(clients))
