"""Methods around FedAvg: their options are written once, and what is none of them goes to FedAvg."""

import inspect
from dataclasses import replace

import pytest

from fedquilt.core.describe import build, describe
from fedquilt.core.net import Net
from fedquilt.errors import InputError
from fedquilt.methods.averaging.scaffold import Scaffold
from fedquilt.methods.fedavg import FedAvg
from fedquilt.models.registry import make
from fedquilt.pieces.aggregators import mean, uniform_mean

NET = Net(make("mlp", (1, 8, 8), 10, hidden=(4,)))


def test_a_network_and_settings_are_the_same_as_a_base():
    made = Scaffold(NET, server_lr=0.5, batch_size=10, aggregate=mean)
    assert made == Scaffold(base=FedAvg(NET, batch_size=10), server_lr=0.5)
    assert made != Scaffold(NET, server_lr=0.5, batch_size=10)  # whose own default is an even mean
    assert Scaffold(NET).base.aggregate is uniform_mean


def test_it_can_be_replaced_and_described():
    made = Scaffold(NET, server_lr=0.5)
    assert replace(made, server_lr=2.0) == Scaffold(NET, server_lr=2.0)
    assert describe(build(describe(made))) == describe(made)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"server_rl": 1}, "Scaffold has no option 'server_rl'; did you mean 'server_lr'?"),
        ({"server_lr": 0.0}, "server_lr must be > 0"),
    ],
)
def test_wrong_options_are_named(given, says):
    with pytest.raises(InputError, match=says):
        Scaffold(NET, **given)


def test_a_base_has_its_settings_already():
    with pytest.raises(InputError, match="Scaffold has no option 'epochs'"):
        Scaffold(base=FedAvg(NET), epochs=2)
    with pytest.raises(InputError, match="either a network"):
        Scaffold()
    with pytest.raises(InputError, match="either a network"):
        Scaffold(NET, base=FedAvg(NET))


def test_its_signature_has_all_options():
    taken = inspect.signature(Scaffold).parameters
    assert (taken["server_lr"].default, taken["epochs"].default) == (1.0, 1)
    assert taken["aggregate"].default is uniform_mean
    assert "base" not in taken
