"""Net: a module as a pure function of named tensors."""

from __future__ import annotations

from functools import partial

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedquilt.core.net import Net, logits_of
from fedquilt.core.objective import Objective
from fedquilt.core.params import nothing, under
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch
from fedquilt.errors import InputError
from fedquilt.methods.fedavg import FedAvg
from fedquilt.pieces.objectives import cross_entropy
from helpers.toy import Normed, site_of, trained


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 4, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.code = nn.Linear(3, 3, bias=False)
        self.decode = nn.Linear(3, 3)
        self.decode.weight = self.code.weight
        self.register_buffer("seen", torch.zeros(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(torch.tanh(self.code(x)))


def drawn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(t, b[n]) for n, t in a.items())


def test_init_depends_on_the_seed_alone_and_disturbs_nothing():
    net = Net.of(nn.Linear, 4, 2)
    first = net.init(Seed(0))
    torch.rand(17)
    before = torch.get_rng_state()
    assert equal(net.init(Seed(0)), first)
    assert equal(Net.of(nn.Linear, 4, 2).init(Seed(0)), first)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(net.init(Seed(1))["weight"], first["weight"])


def test_names_in_module_order_parameters_and_persistent_buffers():
    net = Net.of(Normed, width=3)
    buffers = ["bn.running_mean", "bn.running_var", "bn.num_batches_tracked"]
    kept = ["first.weight", "first.bias", "bn.weight", "bn.bias", "head.weight", "head.bias"]
    assert list(net.names) == kept[:4] + buffers + kept[4:]
    assert list(net.trainable) == kept
    assert list(net.init(Seed(0))) == list(net.names)


def test_init_gives_tensors_of_its_own():
    """Neither another init nor a call is touched by what is done to them."""
    net = Net.of(nn.Linear, 2, 2)
    params = net.init(Seed(0))
    params["weight"].zero_()
    assert net.init(Seed(0))["weight"].abs().sum() > 0
    assert not params["weight"].requires_grad


@pytest.mark.parametrize(("build", "shape"), [(Recurrent, (5, 6, 3)), (Normed, (5, 64)), (Tied, (5, 3))], ids=str)
def test_a_call_equals_functional_call_and_follows_new_values(build, shape):
    """Forward and gradients, bit for bit, also when other values are bound in between."""
    net, module, batch = Net(build), build().eval(), Batch({"x": drawn(*shape)})
    for seed in (0, 1, 0):
        params = {n: t.requires_grad_(n in net.trainable) for n, t in net.init(Seed(seed)).items()}
        weights = [params[n] for n in net.trainable]
        expected = functional_call(module, params, batch.x, tie_weights=True)
        assert torch.equal(net(params, batch), expected)
        ours = torch.autograd.grad(net(params, batch).square().sum(), weights)
        theirs = torch.autograd.grad(expected.square().sum(), weights)
        assert all(map(torch.equal, ours, theirs))
        assert all(g.abs().sum() > 0 for g in ours)


def test_tied_weights_are_one_name_and_both_places_use_it():
    net = Net(Tied)
    assert net.names == ("code.weight", "decode.bias")
    params = {"code.weight": 2 * torch.eye(3), "decode.bias": torch.zeros(3)}
    x = drawn(4, 3)
    assert torch.allclose(net(params, Batch({"x": x})), 2 * torch.tanh(2 * x))


@pytest.mark.parametrize("frozen", [nothing, under("code")], ids=["shared", "frozen"])
def test_full_of_a_tied_net_is_a_complete_state_dict_of_separate_tensors(frozen):
    """Both names are there for load_state_dict, and safetensors, which refuses shared memory, can save them."""
    net, module = Net(Tied, frozen=frozen), Tied()
    full = net.full(net.init(Seed(0)))
    module.load_state_dict(full)
    assert torch.equal(full["code.weight"], full["decode.weight"])
    assert safetensors.torch.load(safetensors.torch.save(full)).keys() == full.keys()


def test_frozen_names_are_nowhere_but_in_full():
    net = Net(Normed, frozen=under("first", "bn"))
    params = net.init(Seed(0))
    assert list(params) == list(net.names) == list(net.trainable) == ["head.weight", "head.bias"]
    full = net.full(params)
    Normed().load_state_dict(full)  # strict: a complete model
    assert torch.equal(full["head.bias"], params["head.bias"])


def test_frozen_values_follow_the_net_s_seed_not_the_run_s():
    one, two = Net(Normed, frozen=under("first")), Net(Normed, frozen=under("first"))
    other = Net(Normed, frozen=under("first"), seed=1)
    name = "first.weight"
    assert torch.equal(one.full(one.init(Seed(0)))[name], two.full(two.init(Seed(5)))[name])
    assert not torch.equal(one.full({})[name], other.full({})[name])


def test_a_frozen_batchnorm_stays_byte_identical_and_in_evaluation_mode():
    """While it is frozen, a row's answer does not depend on the rest of its batch, not even in training mode."""
    net = Net(Normed, frozen=under("bn"))
    site = site_of(x=drawn(20, 64), y=torch.arange(20) % 10)
    before = {n: t.clone() for n, t in net.full({}).items()}
    params = net.init(Seed(0))
    after = trained(Objective(net, (cross_entropy,)), params, site, lr=0.1, batch_size=5).params
    assert not torch.equal(after["first.weight"], params["first.weight"])
    assert set(before) == {n for n in Normed().state_dict() if n.startswith("bn.")}
    assert equal(net.full({}), before)
    four = drawn(4, 64)
    together, alone = (net(params, Batch({"x": x}), train=True) for x in (four, four[:1]))
    assert torch.allclose(together[:1], alone, atol=1e-6)


def test_training_mode_is_left_again():
    """Dropout: random in training mode, the plain function outside it."""
    net = Net.of(nn.Dropout, 0.5)
    batch = Batch({"x": torch.ones(1000)})
    with Seed(0).ambient():
        assert set(net({}, batch, train=True).tolist()) == {0.0, 2.0}
    assert torch.equal(net({}, batch), batch.x)


def test_a_ready_made_module_gives_the_start_and_is_not_modified():
    module = Normed()
    before = {n: t.clone() for n, t in module.state_dict().items()}
    net = Net(module)
    params = net.init(Seed(0))
    assert equal(params, before)
    site = site_of(x=drawn(20, 64), y=torch.arange(20) % 10)
    after = trained(Objective(net, (cross_entropy,)), params, site, lr=0.1, batch_size=5).params
    assert not torch.equal(after["bn.running_mean"], params["bn.running_mean"])
    assert equal(module.state_dict(), before)
    assert module.training


def test_channels_last_is_a_layout_and_changes_only_the_last_digits():
    build = partial(nn.Conv2d, 3, 4, 3)
    outs = {}
    for last in (True, False, None):
        net = Net(build, channels_last=last)
        params = net.own(net.init(Seed(0)))
        outs[last] = net(params, Batch({"x": drawn(2, 3, 8, 8)}))
        layout = torch.contiguous_format if last is False else torch.channels_last
        assert outs[last].is_contiguous(memory_format=layout)
        assert params["weight"].is_contiguous(memory_format=layout)
    assert torch.equal(outs[True], outs[None])  # a 2-d convolution turns it on
    torch.testing.assert_close(outs[True].contiguous(), outs[False], rtol=1e-5, atol=1e-6)


def test_own_gives_copies():
    net = Net.of(nn.Linear, 2, 2)
    params = net.init(Seed(0))
    net.own(params)["weight"].zero_()
    assert params["weight"].abs().sum() > 0


def test_inputs_choose_the_columns_the_module_is_called_with():
    net = Net(partial(nn.Bilinear, 2, 3, 1), inputs=("left", "right"))
    params, batch = net.init(Seed(0)), Batch({"right": drawn(4, 3), "left": drawn(4, 2)})
    expected = nn.functional.bilinear(batch["left"], batch["right"], params["weight"], params["bias"])
    assert torch.equal(net(params, batch), expected)


def test_missing_values_are_named():
    net = Net.of(nn.Linear, 2, 2)
    with pytest.raises(InputError, match=r"lacks values for \['bias'\]"):
        net({"weight": torch.zeros(2, 2)}, Batch({"x": torch.zeros(1, 2)}))


def test_build_must_give_a_module():
    with pytest.raises(InputError, match=r"must return a torch\.nn\.Module, got int"):
        Net(lambda: 3).init(Seed(0))  # type: ignore[arg-type, return-value]


def test_logits_are_found_in_what_networks_return():
    class Output:
        logits = torch.ones(2)

    for out in (torch.ones(2), Output(), (torch.ones(2), "more"), [torch.ones(2)]):
        assert torch.equal(logits_of(out), torch.ones(2))
    for bad in ({}, (), "text", None):
        with pytest.raises(InputError, match=f"output of type {type(bad).__name__}"):
            logits_of(bad)


@pytest.mark.parametrize(
    ("layer", "last"),
    [
        (partial(nn.Conv2d, 4, 8, 1, stride=2), False),  # torch 2.13 corrupts memory here
        (partial(nn.Conv2d, 15, 8, 1, stride=(1, 2)), False),
        (partial(nn.Conv2d, 32, 8, 1, stride=2, groups=4), False),  # 8 channels per group
        (partial(nn.Conv2d, 16, 8, 1, stride=2), True),
        (partial(nn.Conv2d, 4, 8, 1), True),
        (partial(nn.Conv2d, 4, 8, (1, 3), stride=2), True),
        (partial(nn.Linear, 4, 2), False),
    ],
)
def test_channels_last_is_not_chosen_where_a_strided_pointwise_layer_has_few_channels(layer, last):
    beside = [] if layer.func is nn.Linear else [nn.Conv2d(3, 4, 3)]
    module = nn.Sequential(*beside, layer())
    assert Net(module)._resident().channels_last is last
    assert Net(module, channels_last=True)._resident().channels_last is True  # as asked for


class Wide(nn.Linear):
    """With an argument that one may misspell."""

    def __init__(self, width: int = 2) -> None:
        super().__init__(width, 2)


def test_arguments_that_a_module_does_not_take_are_refused() -> None:
    assert Net.of(Wide, width=3).names == ("weight", "bias")
    with pytest.raises(InputError, match=r"Wide: got an unexpected keyword argument 'widht'; did you mean 'width'\?"):
        Net.of(Wide, widht=3)
    with pytest.raises(InputError, match=r"Linear: missing a required argument: 'out_features'. It takes in_features"):
        Net.of(nn.Linear, 3)


@pytest.mark.parametrize(
    ("given", "told"), [(Wide, "got the class Wide"), (Wide(), "got the module Wide"), (3, "got int")]
)
def test_what_is_no_net_is_named(given: object, told: str) -> None:
    with pytest.raises(InputError, match=rf"a fedquilt\.Net or an Objective, {told}\. "):
        FedAvg(objective=given)  # type: ignore[arg-type]
