"""Sites whose data are PyTorch data sets of their own, random ones: the same numbers as in a simulation of them all."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr")

from fedquilt import FedAvg, Federation, Net
from fedquilt.core.seed import Seed
from fedquilt.engines.flower.inprocess import InProcess
from fedquilt.engines.local import Local
from fedquilt.metrics.classify import classify
from fedquilt.rounds.rounds import Rounds
from helpers.nodes import flower, site
from helpers.torch_data import Jittered, Linear

SIZES = {"a": 14, "b": 23}


def test_what_is_random_at_a_site_follows_from_its_client() -> None:
    method = FedAvg(Net(Linear), batch_size=8)
    whole = Federation.from_datasets({c: Jittered(n, n) for c, n in SIZES.items()}, classes=4)
    sites = [Federation.from_datasets({c: Jittered(n, n)}, classes=4) for c, n in SIZES.items()]
    engine = flower(InProcess({number: site(own) for number, own in enumerate(sites, start=11)}))
    here = Rounds(method, whole, Local(), Seed(3), score=classify)
    there = Rounds(method, engine.gather(2), engine, Seed(3), score=classify)
    for _ in range(2):
        assert not [rounds.play() for rounds in (here, there)][1].quarantined
    assert here.digest() == there.digest()
    assert repr(here.evaluate(list(SIZES))) == repr(there.evaluate(list(SIZES)))
