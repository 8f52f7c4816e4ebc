"""Exchanges and cohorts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from fedquilt.core.exchange import Exchange, at_random, everyone, fraction, plain
from fedquilt.core.seed import Seed
from fedquilt.errors import InputError
from fedquilt.methods.on_base import OnBase
from helpers.toy import fedavg

IDS = tuple(range(10))


def test_everyone_is_everyone():
    assert everyone(None, IDS, Seed(0)) == IDS


@pytest.mark.parametrize(("share", "count"), [(0.3, 3), (0.39, 3), (0.01, 1), (1.0, 10)])
def test_a_fraction_is_rounded_down_but_asks_someone(share, count):
    """max(1, int(share * 10))"""
    assert len(fraction(share)(None, IDS, Seed(0))) == count


def test_a_draw_is_ascending_without_repeats_and_follows_the_seed():
    draws = [at_random(4)(None, IDS, Seed(0).fold(r)) for r in range(200)]
    assert all(len(set(d)) == 4 and list(d) == sorted(d) for d in draws)
    assert draws[0] == at_random(4)(None, IDS, Seed(0).fold(0))
    counts = [sum(c in d for d in draws) for c in IDS]
    # each client is in a draw with probability 0.4: 80 +- 6.9 (one deviation of a binomial) of 200; 5 deviations
    assert all(45 < c < 115 for c in counts)
    assert at_random(99)(None, IDS, Seed(0)) == IDS


@pytest.mark.parametrize("bad", [lambda: fraction(0.0), lambda: fraction(1.1), lambda: at_random(0)])
def test_impossible_cohorts_are_refused(bad):
    with pytest.raises(InputError, match="got"):
        bad()


def test_an_exchange_is_named_like_a_function():
    with pytest.raises(InputError, match="identifier, got 'two words'"):
        Exchange("two words", len, len, len)


def test_the_plain_codec_changes_nothing():
    upload, memory = object(), object()
    assert plain.encode(upload, None, memory, Seed(0)) == (upload, memory)
    assert plain.decode(upload, None) is upload


def test_on_base_forwards_every_question_but_plan():
    @dataclass(frozen=True)
    class Same(OnBase):
        base: Any

    base = fedavg()
    method, state = Same(base), base.init_server(Seed(0))
    assert method.exchanges() == base.exchanges()
    assert method.plan(state, 0) == ("train",)
    assert method.global_model(method.observe(state, {})) is state.shared
    client = method.init_client(Seed(0))
    assert method.personal_model(base.down(state, 0), client) == state.shared
