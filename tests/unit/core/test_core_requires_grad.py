"""Parameters that ``build`` leaves with ``requires_grad=False`` are frozen, as if they were named, in all methods."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from fedquilt.core.net import Net
from fedquilt.core.params import everything, under
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch
from fedquilt.data import Dirichlet, Federation
from fedquilt.data.sources.sources import read
from fedquilt.engines.local import Local
from fedquilt.errors import ExchangeError, InputError
from fedquilt.methods.averaging.local_only import LocalOnly
from fedquilt.methods.fedavg import FedAvg
from fedquilt.pieces.optimizers import SGD
from fedquilt.records.record import tensors_in, unpack
from fedquilt.registry import METHODS, lookup
from fedquilt.rounds.rounds import Rounds
from fedquilt.runs.runner import run
from helpers.engines import Counting
from helpers.partly import WIDTH, Drifting, Partly
from helpers.toy import Normed, last

HEAD = ("head.weight", "head.bias")
WEIGH = 4 * 10 * (WIDTH + 1)  # bytes of the head; the whole model has about 70,000
NET = Net(Partly)
WORK = {"optimizer": SGD(0.1), "batch_size": 16}


def few(clients: int = 3) -> Federation:
    x, y = (column[:120] for column in read("digits").pair)
    return Federation.from_arrays(x, y, Dirichlet(5.0), clients, classes=10, seed=0)


FEW = few()


def test_two_of_41_tensors_travel():
    """The frames of a run weigh what the head weighs; the same run with frozen= has the same bits and bytes."""
    assert len(Partly().state_dict()) == 41
    used = Counting()
    found = last(FedAvg(objective=NET, **WORK), FEW, engine=used)
    frames = [*used.uploads, *(task.down for task in used.tasks)]
    assert all(WEIGH < len(frame) < WEIGH + 500 for frame in frames)
    assert found.metrics["bytes_up"] < 3 * (WEIGH + 500)
    assert found.global_model().keys() == set(HEAD)
    named = last(FedAvg(objective=Net(Partly, frozen=under("features")), **WORK), FEW)
    assert named.digest() == found.digest()
    assert named.metrics["bytes_up"] == found.metrics["bytes_up"]


def test_other_processes_have_the_same_frozen_values(one_worker):
    method = FedAvg(objective=Net(Partly, seed=3), **WORK)
    assert last(method, FEW, engine=one_worker).digest() == last(method, FEW).digest()
    assert last(method, FEW).digest() != last(FedAvg(objective=NET, **WORK), FEW).digest()  # the net's seed counts


def test_clients_keep_what_is_trainable_only():
    rounds = Rounds(LocalOnly(NET, **WORK), FEW, Counting(), Seed(0))
    rounds.play()
    slots = [rounds.slots.get(client) for client in FEW.ids]
    assert all(slot is not None and len(slot) < 2 * WEIGH for slot in slots)
    assert unpack(slots[0]).state.private.keys() == set(HEAD)


OTHERS = {"fedbn", "podfcssv", "fedmae", "mae_alone", "mae_pooled"}  # want BatchNorm, a masked autoencoder
BODIES = {"fedbabu", "fedrep"}  # train a body alone, of which nothing is left


@pytest.mark.parametrize("kind", sorted(METHODS.keys() - OTHERS))
def test_no_method_sends_or_keeps_what_is_frozen(kind: str):
    """No tensor of any frame or state has the length of a frozen one; what is trained is trained."""
    build = partial(lookup("method", kind).load(), objective=NET, **WORK)
    if kind in BODIES:
        with pytest.raises((ExchangeError, InputError), match=r"nothing to train|none is shared.* frozen"):
            last(build(), FEW, rounds=1)
        return
    method = build()
    used = Counting()
    source = FEW.pooled() if getattr(method, "pools_data", False) else FEW
    rounds = Rounds(method, source, used, Seed(0))
    rounds.play()
    held = [unpack(slot) for c in source.ids if (slot := rounds.slots.get(c)) is not None]
    seen = [rounds.state, *held, *map(unpack, used.uploads), *(unpack(task.down) for task in used.tasks)]
    assert {WIDTH * 64, WIDTH * WIDTH}.isdisjoint(t.numel() for t in tensors_in(seen))
    assert rounds.evaluate(source.evaluated) is not None  # models are whole where they are used


def test_saved_models_are_whole_and_taken_back(tmp_path: Path):
    method = FedAvg(objective=NET, **WORK)
    for _ in run(method, FEW, rounds=1, folder=tmp_path, engine="local", personal_models=True):
        pass
    whole = load_file(tmp_path / "models/global.safetensors")
    module = Partly()
    module.load_state_dict(whole)  # strict
    batch = Batch({"x": torch.randn(5, 1, 8, 8)})
    assert torch.equal(module.eval()(batch.x), NET(NET.taken(whole), batch))
    assert load_file(tmp_path / "models/client-0.safetensors").keys() == whole.keys()
    whole["features.1.0.weight"] = whole["features.1.0.weight"] + 1
    with pytest.raises(InputError, match=r"'features\.1\.0\.weight' differs from the network's, where it is frozen"):
        NET.taken(whole)
    with pytest.raises(InputError, match="it is frozen"):
        NET(whole, batch)  # a state of old that still holds it


def test_a_part_without_trainable_parameters_is_frozen_with_its_statistics():
    net = Net(partial(Partly, norm=True))
    assert net.names == net.trainable == HEAD
    assert not net.normalises
    params, four = net.init(Seed(0)), torch.randn(4, 1, 8, 8)
    before = {n: t.clone() for n, t in net.full({}).items()}
    together, alone = (net(params, Batch({"x": x}), train=True) for x in (four, four[:1]))  # no dropout, no batch
    assert torch.allclose(together[:1], alone, atol=1e-6)
    assert all(torch.equal(t, net.full({})[n]) for n, t in before.items())


class Affineless(Normed):
    """Its BatchNorm's scale and shift are not trained, all around it is."""

    def __init__(self) -> None:
        super().__init__()
        self.bn.requires_grad_(False)


def test_statistics_among_trainable_layers_are_learned_and_sent():
    """A lone layer is no part: its parameters are frozen, its buffers are what training changes."""
    net = Net(Affineless)
    statistics = {"bn.running_mean", "bn.running_var", "bn.num_batches_tracked"}
    assert set(net.names) == {"first.weight", "first.bias", *HEAD, *statistics}
    assert set(net.trainable) == set(net.names) - statistics
    assert net.normalises
    used = Counting()
    model = last(FedAvg(objective=net, **WORK), FEW, engine=used).global_model()
    assert int(model["bn.num_batches_tracked"]) > 0
    assert model["bn.running_mean"].abs().sum() > 0
    assert unpack(used.uploads[0]).upload.delta.keys() == set(net.names)


def test_a_pass_that_changes_what_is_frozen_is_refused():
    """Otherwise clients would see each other's inputs through it."""
    with pytest.raises(ExchangeError, match=r"changed \['mean'\], which is frozen.* buffer \(register_buffer\)"):
        last(FedAvg(objective=Net(Drifting), **WORK), FEW, rounds=1)


@pytest.mark.parametrize(
    "net", [Net(Normed, frozen=everything), Net(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).requires_grad_(False))]
)
def test_nothing_to_train_is_said(net: Net):
    with pytest.raises(ExchangeError, match="There is nothing to train: every parameter is frozen"):
        last(FedAvg(objective=net, **WORK), FEW, rounds=1)


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_hook_of_a_parameter_is_refused_instead_of_never_called(register: str):
    def build() -> nn.Module:
        module = nn.Sequential(nn.Linear(4, 2))
        getattr(module[0].weight, register)(lambda *_: None)
        return module

    with pytest.raises(InputError, match=r"Parameter '0\.weight' of Sequential has a hook"):
        _ = Net(build).names


@pytest.mark.filterwarnings("ignore:Full backward hook")
def test_a_backward_hook_of_a_module_is_called():
    called: list[str] = []

    def build() -> nn.Module:
        module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        module[1].register_full_backward_hook(lambda *_: called.append("once"))
        return module

    federation = Federation.from_source("digits", clients=2)
    rounds = Rounds(FedAvg(Net(build), batch_size=100), federation, Local(), Seed(0))
    rounds.play()
    assert len(called) >= 2 * 7  # batches of 100 of 700 samples and more, at two clients
