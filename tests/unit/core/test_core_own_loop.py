"""A training loop of one's own is a method's local work."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fedquilt import FedAvg, Federation, FedProx, Net, client_update, run
from fedquilt.errors import FedquiltError, InputError
from fedquilt.methods import HGLS, IFCA, Ditto, FedAvgBalanced, FedNova, FedPer, Moon, PerFedAvg, Scaffold
from fedquilt.models import MLP
from fedquilt.pieces.optimizers import SGD

FEDERATION = Federation.from_source("digits", clients=3)
NET = Net.of(MLP, features=64, classes=10, hidden=(16,))


@client_update
def plain(model, data_loader, context):
    """SGD as the library makes it, written by hand."""
    optimizer = torch.optim.SGD(model.parameters(), lr=context.lr)
    for x, y in data_loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y) + context.penalty(model)
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@client_update
def whole_loss(model, data_loader, context):
    """Adam on whatever loss the method has."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for x, y in data_loader:
        optimizer.zero_grad()
        context.loss(model, x, y).backward()
        optimizer.step()


@client_update
def forgetful(model, data_loader, context):
    """A loop that knows of no terms."""
    for x, y in data_loader:
        F.cross_entropy(model(x), y).backward()


def last(method, engine="local", rounds=3):
    *_, snapshot = run(method, FEDERATION, rounds=rounds, engine=engine)
    return snapshot


def test_it_learns_and_every_engine_gives_the_same() -> None:
    method = FedAvg(NET, client_update=plain, batch_size=32, optimizer=SGD(0.5))
    found = last(method)
    assert found.metrics["test_accuracy"] > 0.5
    assert last(method, "workers").digest() == found.digest()


def test_one_whole_batch_is_the_step_that_the_library_makes() -> None:
    """Whole batches: w <- w - lr grad, whichever loop makes it; so also with FedProx, whose term is added."""
    for make in (FedAvg, lambda net, **options: FedProx(net, mu=0.5, **options)):
        own = last(make(NET, client_update=plain, batch_size=2000, epochs=1), rounds=2).global_model()
        ours = last(make(NET, batch_size=2000, epochs=1), rounds=2).global_model()
        for name, value in ours.items():
            torch.testing.assert_close(own[name], value, rtol=1e-4, atol=1e-6)


def test_what_the_log_says() -> None:
    snapshot = last(FedAvg(NET, client_update=plain, batch_size=100), rounds=1)
    for update in snapshot.log.updates:
        assert update.steps == -(-FEDERATION.size(update.client) // 100)
        assert 0 < update.loss < 10
    silent = last(FedAvg(NET, client_update=whole_loss, batch_size=100), rounds=1)
    assert [update.loss for update in silent.log.updates] == [None] * 3


@pytest.mark.parametrize(
    "method",
    [
        FedPer(NET, client_update=whole_loss),
        Ditto(NET, client_update=whole_loss),
        IFCA(NET, n_clusters=2, client_update=whole_loss),
        FedAvgBalanced(NET, client_update=whole_loss),
        Moon(NET, client_update=whole_loss),
    ],
    ids=lambda method: type(method).__name__,
)
def test_methods_have_it_for_their_local_work(method) -> None:
    assert last(method).metrics["test_accuracy"] > 0.3


@pytest.mark.parametrize(
    ("method", "why"),
    [
        (FedProx(NET, client_update=forgetful), "never added"),
        (FedAvgBalanced(NET, client_update=plain), "never used"),
        (Moon(NET, client_update=plain), "needs the batch"),
        (PerFedAvg(NET, client_update=plain), "makes its own steps"),
        (HGLS(base=FedAvg(NET, client_update=plain), gradient="last_batch"), "the gradient of the last step"),
        (FedAvg(NET, client_update=lambda model, data_loader, context: 3), "returns numbers by name"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_what_a_method_adds_is_never_lost_in_silence(method, why: str) -> None:
    with pytest.raises(FedquiltError, match=why):
        last(method, rounds=1)


@pytest.mark.parametrize("make", [Scaffold, FedNova])
def test_methods_that_read_steps_refuse_it_before_the_run(make) -> None:
    with pytest.raises(InputError, match="cannot use a custom training loop"):
        make(NET, client_update=plain)


def test_lanes_refuse_it() -> None:
    with pytest.raises(InputError, match="one client at a time"):
        last(FedAvg(NET, client_update=plain), "lanes", rounds=1)


def test_what_cannot_be_called_so_is_refused() -> None:
    with pytest.raises(InputError, match=r"\(model, data_loader, context\)"):

        @client_update
        def wrong(model):
            pass

    with pytest.raises(InputError, match="got 3"):
        FedAvg(NET, client_update=3)


def test_a_dataset_gives_single_samples_too() -> None:
    seen: list[tuple[int, ...]] = []

    def look(model, data_loader, context):
        x, y = data_loader.dataset[0]
        seen.append((len(data_loader.dataset), *x.shape, *y.shape))

    last(FedAvg(NET, client_update=look), rounds=1)
    assert seen == [(FEDERATION.size(client), 1, 8, 8) for client in FEDERATION.ids]
