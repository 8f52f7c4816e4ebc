"""Every model in a federation: one round of FedAvg, and the same numbers in other processes."""

from __future__ import annotations

import pytest
import torch

from fedquilt.core.objective import Objective
from fedquilt.core.seed import Seed
from fedquilt.data import Federation
from fedquilt.engines.local import Local
from fedquilt.methods.fedavg import FedAvg
from fedquilt.methods.personalised.fedper import FedPer
from fedquilt.models import net
from fedquilt.models.registry import MODELS
from fedquilt.pieces.objectives import cross_entropy
from fedquilt.pieces.optimizers import SGD
from fedquilt.runs.runner import run
from helpers.toy import last, site_of, trained

VIT = {"width": 16, "depth": 1, "heads": 2, "mlp": 32}
CHARS = {"vocab": 9, "hidden": 8}
CASES = {  # shape and options with which a model is quick
    "logistic": ((6,), {}),
    "mlp": ((6,), {"hidden": [5]}),
    "lenet5": ((1, 28, 28), {}),
    "fedavg_cnn": ((1, 16, 16), {"hidden": 8}),
    "cnn_mnist": ((1, 16, 16), {}),
    "cnn_cifar": ((3, 8, 8), {"hidden": 8}),
    "resnet10": ((3, 8, 8), {"width": 4}),
    "resnet18": ((1, 8, 8), {"width": 4, "norm": "batch"}),
    "resnet34": ((3, 32, 32), {"width": 2, "stem": "7x7"}),
    "vit_tiny": ((3, 8, 8), {**VIT, "dropout": 0.1}),
    "text_cnn": ((7,), {"vocab": 9, "width": 8, "maps": 4}),
    "char_lstm": ((7,), CHARS),
    "char_gru": ((7,), CHARS),
    "signal_cnn": ((2, 28), {"hidden": 8}),
}
LARGE = ("vit_small_patch16_224", "vit_cehgls")  # the same classes as vit_tiny, too large to train here
ELSEWHERE = ("text_encoder", "mae", "hf_mae")  # need a folder, or have no classes: see their own tests


def rows(name, count, seed=0):
    shape, _ = CASES[name]
    draw = Seed(seed).torch()
    x = (
        torch.randint(9, (count, *shape), generator=draw)
        if MODELS[name].ids
        else torch.randn(count, *shape, generator=draw)
    )
    return x, torch.arange(count) % 3


def federation(name):
    return Federation.from_clients({c: {"train": rows(name, 8, c), "test": rows(name, 4, c + 9)} for c in range(3)})


def made(name):
    shape, options = CASES[name]
    return net(name, shape, 3, **options)


def test_every_model_is_tried():
    assert {*CASES, *LARGE, *ELSEWHERE} == set(MODELS)


@pytest.mark.parametrize("name", list(CASES))
def test_one_step_moves_every_weight_and_stays_finite(name):
    found = made(name)
    before = found.init(Seed(0))
    x, y = rows(name, 12)
    after = trained(Objective(found, (cross_entropy,)), before, site_of(x=x, y=y), lr=0.1)
    assert 0 < after.loss < 20
    assert set(after.gradient) == set(found.trainable)
    still = [n for n in found.trainable if torch.equal(after.params[n], before[n])]
    assert not still


@pytest.mark.parametrize("name", [name for name in CASES if name != "resnet34"])  # ResNet is there twice already
def test_rounds_of_fedavg_learn_the_training_rows(name):
    method = FedAvg(objective=made(name), optimizer=SGD(0.05, momentum=0.9), batch_size=4, epochs=3)
    snapshots = run(method, federation(name), rounds=3, engine=Local(), score=None)
    losses = [snapshot.metrics["train_loss"] for snapshot in snapshots]
    assert losses[-1] < losses[0] < 10


@pytest.mark.parametrize("name", ["cnn_mnist", "vit_tiny", "text_cnn", "resnet18", "char_lstm"])
def test_workers_give_the_same_numbers_also_with_dropout(name, one_worker):
    method = FedPer(objective=made(name), optimizer=SGD(0.1), batch_size=4)
    data = federation(name)
    here, there = (last(method, data, rounds=2, engine=e) for e in (None, one_worker))
    assert here.digest() == there.digest()
