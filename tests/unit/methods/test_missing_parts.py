"""A method that trains a part of the network refuses a base without that part, before anything is run."""

from __future__ import annotations

import pytest
from torch import nn

from fedquilt.core.net import Net
from fedquilt.core.params import Parts, at_home, everything, nothing, under
from fedquilt.errors import InputError
from fedquilt.methods.fedavg import FedAvg
from fedquilt.methods.personalised.fedrep import FedRep


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
