"""Adapters in any model: where they go, what types they keep, what stays frozen, and what is refused."""

from __future__ import annotations

import copy
from collections import namedtuple
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import nn

from fedquilt.core.net import Net
from fedquilt.core.params import everything_but
from fedquilt.core.seed import Seed
from fedquilt.data import Federation
from fedquilt.errors import InputError
from fedquilt.methods.fedavg import FedAvg
from fedquilt.models import MaskedAutoencoder, ViT, adapted, audit, inject
from fedquilt.models.adapters import blocks_of
from fedquilt.pieces.optimizers import SGD
from helpers.engines import Counting
from helpers.toy import last

Pair = namedtuple("Pair", ["states", "other"])


@dataclass
class Output:
    last_hidden_state: torch.Tensor
    attentions: str = "kept"


class Block(nn.Module):
    """A block that returns its states in this form, and takes whatever it is given."""

    def __init__(self, form):
        super().__init__()
        self.norm, self.form = nn.LayerNorm(4), form

    def forward(self, x, *more, **options):
        states = self.norm(x) + len(more) + options.get("plus", 0)
        return {
            "tensor": states,
            "tuple": (states, "kept"),
            "named": Pair(states, "kept"),
            "object": Output(states),
            "list": [states],
        }[self.form]


class Stack(nn.Module):
    def __init__(self, form="tensor", depth=1):
        super().__init__()
        self.blocks = nn.ModuleList(Block(form) for _ in range(depth))

    def forward(self, x, *more, **options):
        return self.blocks[0](x, *more, **options)


def states_of(out):
    if isinstance(out, torch.Tensor):
        return out
    return out.last_hidden_state if isinstance(out, Output) else out[0]


@pytest.mark.parametrize("form", ["tensor", "tuple", "named", "object"])
def test_types_and_arguments_are_kept(form):
    model, x = Stack(form), torch.randn(2, 4, generator=Seed(0).torch())
    before = model(x, None, plus=3)
    inject(model, size=2)
    with torch.no_grad():
        model.adapters["blocks-0"].up.bias.fill_(0.5)
    after = model(x, None, plus=3)
    assert type(after) is type(before)
    torch.testing.assert_close(states_of(after), states_of(before) + 0.5)
    rest = {"tuple": lambda out: out[1], "named": lambda out: out.other, "object": lambda out: out.attentions}
    assert form == "tensor" or rest[form](after) == "kept"
    if form == "object":
        assert after is not before


def test_an_unknown_type_is_refused():
    with pytest.raises(InputError, match="A block returned list"):
        inject(Stack("list"), size=2)(torch.zeros(1, 4))


@pytest.mark.parametrize(
    ("where", "chosen"),
    [
        ("all", [0, 1, 2, 3, 4]),
        ("upper", [2, 3, 4]),
        (lambda i, many, path: path == "blocks.1" or i == many - 1, [1, 4]),
    ],
    ids=["all", "upper", "predicate"],
)
def test_where(where, chosen):
    model = inject(Stack(depth=5), where=where, size=2)
    assert list(model.adapters) == [f"blocks-{i}" for i in chosen]
    assert {n.split(".")[0] for n, p in model.named_parameters() if p.requires_grad} == {"adapters"}
    assert [n for n in model.state_dict() if not n.startswith("adapters.")] == list(Stack(depth=5).state_dict())


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (Stack(), {"where": "lower"}, "where must be one of 'all', 'upper', got 'lower'"),
        (Stack(), {"where": lambda *_: False}, "where chose none of the 1 blocks at blocks"),
        (Stack(), {"kind": "prefix"}, "kind must be one of 'bottleneck', 'low_rank'"),
        (Stack(), {"kind": "low_rank"}, "it has none of these. Its linear layers are"),
        (Stack(), {"size": 0}, "size must be a whole number of at least 1"),
        (Stack(), {"dropout": 1.0}, "dropout must be a number in"),
        (nn.Linear(2, 2), {}, "Linear has no list of blocks at any of these places: vit.encoder.layer"),
    ],
)
def test_what_cannot_be_done_is_told(model, options, message):
    with pytest.raises(InputError, match=message):
        inject(copy.deepcopy(model), **options)  # noqa: TID251 - each case has its own


def test_not_twice():
    with pytest.raises(InputError, match="already has adapters"):
        inject(inject(Stack(), size=2), size=2)


def test_attention_whose_layers_are_not_called_is_refused():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    with pytest.raises(InputError, match="out_proj is used by its parent without being called"):
        inject(_Encoder(layer), "low_rank", layers=["out_proj"])


class _Encoder(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.blocks = nn.ModuleList([layer])


def test_low_rank_equals_a_changed_weight():
    """W x + (alpha / rank) B A x is what the merged weight W + (alpha / rank) B A gives."""
    with Seed(0).ambient():
        plain = MaskedAutoencoder(size=8, patch=2, width=16, depth=2, heads=2)
        tuned = inject(copy.deepcopy(plain), "low_rank", rank=3, alpha=6.0)  # noqa: TID251 - two of one
        assert list(tuned.adapters) == ["blocks-0-attn-qkv", "blocks-1-attn-qkv"]
        for part in tuned.adapters.values():
            nn.init.normal_(part.up.weight)
    with torch.no_grad():
        for i, part in enumerate(tuned.adapters.values()):
            plain.blocks[i].attn.qkv.weight += 2.0 * part.up.weight @ part.down.weight
    images = torch.randn(2, 3, 8, 8, generator=Seed(1).torch())
    torch.testing.assert_close(tuned.embed(images), plain.embed(images), atol=1e-5, rtol=1e-4)
    assert audit(tuned).trainable == 2 * 3 * (16 + 48)


def test_a_copied_model_has_adapters_of_its_own():
    """A copy answers by its own adapters, not by the original's."""
    first = inject(MaskedAutoencoder(size=8, patch=2, width=16, depth=1, heads=2), size=2)
    second = copy.deepcopy(first)  # noqa: TID251 - what Net does with a ready-made module
    images = torch.randn(2, 3, 8, 8, generator=Seed(1).torch())
    before = first.embed(images)
    with torch.no_grad():
        second.adapters["blocks-0"].up.bias[0] = 1.0
    assert torch.equal(first.embed(images), before)
    assert not torch.allclose(second.embed(images), before)


def test_other_models_take_adapters_too():
    model = inject(ViT(size=8, width=16, depth=2, heads=2, mlp=32), size=4)
    assert blocks_of(model)[0] == "features.blocks"
    assert list(model.adapters) == ["features-blocks-0", "features-blocks-1"]
    assert model(torch.zeros(1, 3, 8, 8)).shape == (1, 10)


def test_what_is_wholly_frozen_stays_in_evaluation_mode():
    """A backbone's dropout is off while the dropout of its adapters is on."""

    def build():
        return ViT(size=8, width=16, depth=1, heads=2, mlp=32, dropout=0.5)

    net = Net(partial(adapted, build, size=4, dropout=0.5), everything_but("adapters"))
    params = net.init(Seed(0))
    images = torch.randn(2, 3, 8, 8, generator=Seed(1).torch())
    plain = net.ask(params, "forward", images, train=True)
    assert torch.equal(
        plain, net.ask(params, "forward", images)
    )  # adapters add nothing yet, the backbone drops nothing
    moved = {n: torch.ones_like(t) for n, t in params.items()}
    with Seed(2).ambient():
        one, two = (net.ask(moved, "forward", images, train=True) for _ in "ab")
    assert not torch.equal(one, two)
    free = Net(build)
    with Seed(2).ambient():
        one, two = (free.ask(free.init(Seed(0)), "forward", images, train=True) for _ in "ab")
    assert not torch.equal(one, two)


@pytest.mark.parametrize("engine", ["local", "workers"])
def test_a_federation_trains_and_sends_adapters_only(engine, request):
    """The backbone is the same to the last bit after a run, here and in a worker, and is in no message."""
    build = partial(adapted, partial(ViT, size=8, width=16, depth=2, heads=2, mlp=32, classes=2), size=2)
    net = Net(build, everything_but("adapters"))
    draw = Seed(0).torch()
    y = torch.arange(40) % 2
    x = torch.randn(40, 3, 8, 8, generator=draw) + y[:, None, None, None]
    federation = Federation.from_arrays(x, y, clients=2, seed=0)
    method = FedAvg(objective=net, optimizer=SGD(0.1), batch_size=8)
    before = net.full(net.init(Seed(0)))
    used = Counting() if engine == "local" else request.getfixturevalue("one_worker")
    model = last(method, federation, rounds=2, engine=used).global_model()
    assert model.keys() == set(net.names)
    after = net.full(model)
    assert all(torch.equal(t, after[n]) for n, t in before.items() if not n.startswith("adapters."))
    assert any(not torch.equal(t, after[n]) for n, t in before.items() if n.startswith("adapters."))
    if engine == "local":
        weigh = sum(t.numel() * 4 for t in model.values())
        assert weigh == 4 * 2 * (2 * 16 * 2 + 2 + 16)
        assert all(weigh < len(frame) < weigh + 1000 for frame in used.uploads)  # the backbone has 20,000 bytes
    else:
        alone = last(method, federation, rounds=2).global_model()
        assert all(torch.equal(t, alone[n]) for n, t in model.items())
