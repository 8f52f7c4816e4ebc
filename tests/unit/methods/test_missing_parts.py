"""A method that trains a part of the network refuses a base without that part, before anything is run."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedquilt.core.net import Net
from fedquilt.core.params import Parts, at_home, either, everything, everything_but, nothing, under
from fedquilt.core.seed import Seed
from fedquilt.data import Federation
from fedquilt.errors import InputError
from fedquilt.methods.fedavg import FedAvg
from fedquilt.methods.personalised.fedrep import FedRep
from fedquilt.testing.methods import check


class TwoParts(nn.Module):
    """A body and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.head = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x: object) -> object:
        return self.head(self.features(x))


NET = Net(TwoParts)


def test_fedrep_without_a_head_is_refused() -> None:
    with pytest.raises(InputError, match=r"FedRep trains a head of its own.* none is private.*FedRep"):
        FedRep(base=FedAvg(objective=NET))
    with pytest.raises(InputError, match="head"):
        FedRep(base=FedAvg(objective=NET, parts=at_home(under("classifier"))))


def test_fedrep_without_a_body_is_refused() -> None:
    with pytest.raises(InputError, match=r"a body of its own.*none is shared"):
        FedRep(base=FedAvg(objective=NET, parts=Parts(shared=nothing, private=everything)))


def test_fedrep_with_both_is_taken() -> None:
    assert FedRep(base=FedAvg(objective=NET, parts=at_home(under("head")))).head_epochs == 10
    assert FedRep(NET, head_epochs=2).head_epochs == 2


@pytest.mark.parametrize(
    "parts",
    [
        at_home(under("fc")),
        at_home(either(under("head"), under("fc"))),
        Parts(shared=everything_but("fc"), private=under("fc")),
        Parts(private=under("fc")),
    ],
)
def test_parts_of_another_network_are_refused(parts: Parts) -> None:
    with pytest.raises(InputError, match=r"The network has no part 'fc'; its parts are features, head\."):
        FedAvg(NET, parts=parts).init_server(Seed(0))


def test_check_tells_of_parts_of_another_network() -> None:
    data = Federation.from_arrays(torch.zeros(12, 4), torch.arange(12) % 2, clients=3)
    told = check(FedAvg(NET, parts=Parts(private=under("fc"))), data, rounds=1, workers=False)
    assert any("The network has no part 'fc'" in line for line in told)


def test_parts_that_are_there_are_taken() -> None:
    assert FedAvg(NET, parts=at_home(under("head.bias"))).init_server(Seed(0)).shared.keys() == {
        "features.weight", "features.bias", "head.weight",
    }  # fmt: skip
