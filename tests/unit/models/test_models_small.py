"""Small networks: parameter counts with their derivation, the features/head split, and refusals."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from fedquilt.core.describe import build, describe
from fedquilt.core.net import Net
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch
from fedquilt.errors import InputError
from fedquilt.models import MLP, CNNCifar, CNNMnist, FedAvgCNN, LeNet5, LogisticRegression, make


def count(module):
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("module", "features", "head"),
    [
        (partial(LogisticRegression, 784, 10), 0, 7850),  # 784 * 10 + 10
        (partial(MLP, 784, 10), 157_000, 2010),  # 784 * 200 + 200; 200 * 10 + 10
        (partial(MLP, 64, 3, (32, 16)), 64 * 32 + 32 + 32 * 16 + 16, 16 * 3 + 3),
        (partial(MLP, 64, 3, ()), 0, 64 * 3 + 3),
        (LeNet5, 61_706 - 850, 850),  # 156 + 2416 + 48120 + 10164 + 850 = 61706, as LeCun's with full connections
        (partial(LeNet5, channels=3, size=32), 61_706 - 850 + 2 * 25 * 6, 850),
        (FedAvgCNN, 576_896, 5130),  # 832 + 51264 + (1024 * 512 + 512)
        (partial(FedAvgCNN, channels=3, size=32), 873_408, 5130),  # 2432 + 51264 + (1600 * 512 + 512)
        (CNNMnist, 260 + 5020 + 320 * 50 + 50, 510),  # 1*25*10+10; 10*25*20+20; 20*4*4 inputs: 21,840 in all
        (CNNCifar, 2_473_610 - 5130, 5130),  # 1792 + 73856 + 295168 + (4096 * 512 + 512) + 5130
        (partial(CNNCifar, channels=1, size=8), 640 + 73_856 + 295_168 + 256 * 512 + 512, 5130),
        (partial(FedAvgCNN, classes=62, hidden=128), 832 + 51_264 + 1024 * 128 + 128, 128 * 62 + 62),
    ],
)
def test_parameter_counts(module, features, head):
    made = module()
    assert (count(made.features), count(made.head)) == (features, head)
    assert {n.split(".")[0] for n, _ in made.named_parameters()} <= {"features", "head"}


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (partial(LogisticRegression, 12, 4), (12,)),
        (partial(LogisticRegression, 12, 4), (3, 2, 2)),
        (partial(MLP, 12, 4, (5,)), (12,)),
        (partial(MLP, 12, 4, (5,)), (1, 3, 4)),
        (partial(LeNet5, 4), (1, 28, 28)),
        (partial(LeNet5, 4, 3, 32), (3, 32, 32)),
        (partial(FedAvgCNN, 4), (1, 28, 28)),
        (partial(FedAvgCNN, 4, 3, 32), (3, 32, 32)),
        (partial(FedAvgCNN, 4, 1, 16), (1, 16, 16)),
        (partial(CNNMnist, 4, dropout=0.0), (1, 28, 28)),
        (partial(CNNCifar, 4), (3, 32, 32)),
    ],
)
def test_forward_is_head_of_features(module, shape):
    made = module()
    x = torch.randn(2, *shape, generator=Seed(0).torch())
    scores = made(x)
    assert scores.shape == (2, 4)
    assert torch.equal(scores, made.head(made.features(x)))


@pytest.mark.parametrize(
    ("module", "shape", "message"),
    [
        (
            partial(LogisticRegression, 784, 10),
            (5, 64),
            r"LogisticRegression takes rows of shape \(784,\).*got .*\(64,\)",
        ),
        (partial(MLP, 4, 2), (4,), r"MLP takes rows of shape \(4,\)"),
        (LeNet5, (5, 1, 32, 32), r"LeNet5 takes rows of shape \(1, 28, 28\), got rows of shape \(1, 32, 32\)"),
        (LeNet5, (1, 28, 28), r"a single one needs a batch axis"),
        (FedAvgCNN, (5, 28, 28, 1), r"FedAvgCNN takes .*\(1, 28, 28\), got .*\(28, 28, 1\).*channels first"),
    ],
)
def test_a_wrong_shape_is_refused_with_both_shapes(module, shape, message):
    with pytest.raises(InputError, match=message):
        module()(torch.zeros(shape))


@pytest.mark.parametrize(
    ("make_one", "message"),
    [
        (lambda: LeNet5(size=30), "28x28 or 32x32, got size 30"),
        (lambda: FedAvgCNN(size=15), "at least 16x16, got size 15"),
        (lambda: CNNMnist(size=15), "at least 16x16, got size 15"),
        (lambda: CNNMnist(dropout=1.0), r"dropout must be a number in \[0, 1\), got 1.0"),
        (lambda: CNNCifar(size=7), "at least 8x8, got size 7"),
        (lambda: FedAvgCNN(hidden=0), "hidden must be a whole number of at least 1, got 0"),
        (lambda: MLP(4, 2, (8, -1)), r"hidden\[1\] must be a whole number of at least 1, got -1"),
        (lambda: LogisticRegression(4, 0), "classes must be a whole number"),
        (lambda: LogisticRegression(4.0, 2), "features must be a whole number of at least 1, got 4.0"),
    ],
)
def test_wrong_sizes_are_refused(make_one, message):
    with pytest.raises(InputError, match=message):
        make_one()


@pytest.mark.parametrize("module", [partial(MLP, 4, 2), partial(LogisticRegression, 4, 2)])
def test_whole_numbers_are_not_taken_for_measurements(module):
    with pytest.raises(InputError, match="takes floating-point numbers, got int64"):
        module()(torch.zeros(3, 4, dtype=torch.int64))


def test_make_gives_a_builder_that_travels():
    builder = make("fedavg_cnn", (3, 32, 32), 10, hidden=64)
    assert isinstance(builder, partial)
    assert not builder.args
    assert builder().shape == (3, 32, 32)
    again = build(describe(builder))
    assert again.keywords == builder.keywords == {"channels": 3, "size": 32, "classes": 10, "hidden": 64}
    net = Net(make("mlp", (1, 8, 8), 10, hidden=[16]))
    batch = Batch({"x": torch.zeros(3, 1, 8, 8)})
    assert net(net.init(Seed(0)), batch).shape == (3, 10)


def test_making_draws_no_random_numbers():
    before = torch.get_rng_state()
    make("lenet5", (1, 28, 28), 10)
    make("vit_tiny", (3, 32, 32), 10)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (
            lambda: make("lenet5", (1, 8, 8), 10),
            r"lenet5 takes \(C, 28, 28\) or .*not \(1, 8, 8\)\. These fit: logistic, mlp",
        ),
        (lambda: make("fedavg_cnn", (1, 8, 8), 10), "These fit: logistic, mlp"),
        (lambda: make("fedavg_cnn", (1, 28, 20), 10), "takes .*C, H, H"),
        (lambda: make("lenet5", (1, 64, 64), 10), "These fit: logistic, mlp, fedavg_cnn"),
        (lambda: make("lenet", (1, 28, 28), 10), r"unknown model 'lenet'; did you mean 'lenet5'\? \(known: char_gru"),
        (lambda: make("mlp", (4,), 2, hiden=(3,)), r"no option 'hiden'; did you mean 'hidden'\? \(its options: hidden"),
        (lambda: make("lenet5", (1, 28, 28), 2, width=3), "no option 'width'.*its options: weights"),
        (lambda: make("mlp", (4,), 2, hidden=(0,)), r"hidden\[0\] must be a whole number"),
        (lambda: make("mlp", (4,), 2, hidden=7), "hidden must be"),
        (lambda: make("mlp", (), 2), "must be like"),
        (lambda: make("logistic", (4,), 0), "classes must be"),
    ],
)
def test_refusals_of_make(ask, message):
    with pytest.raises(InputError, match=message):
        ask()
