"""Every registered method can be had from a recipe and plays a round there, with the options it is registered with."""

from __future__ import annotations

import pytest

from fedquilt.config.config import parse
from fedquilt.core.seed import Seed
from fedquilt.engines.local import Local
from fedquilt.errors import InputError
from fedquilt.registry import METHODS
from fedquilt.rounds.rounds import Rounds
from fedquilt.runs.build import federation_of, method_of
from helpers.guessing import fitting

SMALL = {"data": {"clients": 3, "limit": 150}, "model": {"kind": "mlp", "hidden": [12]}}


@pytest.mark.parametrize("kind", sorted(METHODS.keys() - {"fedbn"}))
def test_one_round_by_default_settings(kind: str) -> None:
    config = parse({**fitting(SMALL, kind), "method": {"kind": kind}})
    federation = federation_of(config)
    method = method_of(config, federation)
    source = federation.pooled() if getattr(method, "pools_data", False) else federation
    rounds = Rounds(method, source, Local(), Seed(0))
    assert rounds.play().quarantined == []


def test_capture_of_the_engine_reaches_the_network() -> None:
    for asked in ("auto", True, False):
        config = parse({**SMALL, "engine": {"capture": asked}})
        assert method_of(config, federation_of(config)).net.capture is asked
    with pytest.raises(InputError, match=r"engine\.capture"):
        parse({**SMALL, "engine": {"capture": "never"}})


def test_fedbn_wants_batch_norm() -> None:
    config = parse({**SMALL, "method": {"kind": "fedbn"}})
    with pytest.raises(InputError, match="this network has none"):
        method_of(config, federation_of(config))
