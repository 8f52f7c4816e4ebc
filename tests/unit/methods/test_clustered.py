"""Every clustered method: made from a network or around a base, rebuilt elsewhere, and not too deep."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from fedquilt.core.describe import build, describe
from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.errors import InputError
from fedquilt.methods.clustered.cfl import CFL
from fedquilt.methods.clustered.cgpfl import CGPFL, CGPFLMoreau
from fedquilt.methods.clustered.feddrift import FedDrift
from fedquilt.methods.clustered.fedgroup import FedGroup, FedGroupParams
from fedquilt.methods.clustered.fedper_grouped import FedPerGrouped
from fedquilt.methods.clustered.fedsoft import FedSoft
from fedquilt.methods.clustered.fesem import FeSEM
from fedquilt.methods.clustered.flhc import FLHC
from fedquilt.methods.clustered.grouped import Grouped
from fedquilt.methods.clustered.hcfl import HCFL
from fedquilt.methods.clustered.ifca import IFCA, IFCAGradient
from fedquilt.methods.clustered.lcfed import LCFed
from fedquilt.methods.clustered.pacfl import PACFL
from fedquilt.methods.clustered.regrouping import Regrouping
from fedquilt.methods.fedavg import FedAvg
from fedquilt.methods.on_base import OnBase
from fedquilt.models.registry import make
from fedquilt.pieces.clustering.private import Blur
from fedquilt.pieces.objectives import cross_entropy, prox

NET = Net(make("mlp", (1, 8, 8), 10, hidden=(4,)))
DISCOVERED: list[Any] = [FLHC, HCFL, FedGroup, FedGroupParams, CFL, PACFL, FedPerGrouped]
REGROUPED: list[Any] = [IFCA, IFCAGradient, FeSEM, CGPFL, CGPFLMoreau, LCFed, FedSoft, FedDrift]


@pytest.mark.parametrize("method", [*DISCOVERED, *REGROUPED])
def test_it_is_made_from_a_network_or_around_a_base(method: Any):
    made = method(NET, batch_size=10)
    assert made == method(base=FedAvg(NET, batch_size=10))
    assert replace(made) == made
    assert describe(build(describe(made))) == describe(made)


@pytest.mark.parametrize("method", [*DISCOVERED, *REGROUPED])
def test_it_takes_no_more_than_one_step_from_what_all_share(method: Any):
    shared = Grouped if method in DISCOVERED else Regrouping
    assert {c for c in method.__mro__ if issubclass(c, OnBase)} == {method, shared, OnBase}


@pytest.mark.parametrize("method", [*DISCOVERED, *REGROUPED])
def test_every_option_has_a_line_about_it(method: Any):
    """In the class, or in the one that it is from."""
    told = " ".join(c.__doc__ or "" for c in method.__mro__)
    assert [f.name for f in fields(method) if f.init and f.name not in told] == []


def test_a_base_may_have_another_loss():
    base = FedAvg(Objective(NET, (cross_entropy, prox(0.1))))
    train = HCFL(base=base, mu=2.0).exchanges()[0]
    assert train.work.objective.terms == (cross_entropy, prox(0.1), prox(2.0, "centre"))


def test_what_is_no_option_cannot_be_set():
    with pytest.raises(InputError, match="FedDrift has no option 'n_clusters'"):
        FedDrift(NET, n_clusters=2)
    with pytest.raises(InputError, match="FeSEM has no option 'heads'"):
        FeSEM(NET, heads=("head",))


def test_plain_options_make_the_pieces():
    method = HCFL(NET, retest_every=3, sketch_clip=2.0, sketch_noise=0.5, lambda_0=0.25)
    assert (method.retest.every, method.retest.margin) == (3, 0.1)
    assert method.blur == Blur(2.0, 0.5)
    assert method.weight(0) == 0.25
    assert [e.name for e in method.exchanges()] == ["train", "discover", "retest"]
