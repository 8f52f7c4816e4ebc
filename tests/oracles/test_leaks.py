"""What leaks from gradients, against numbers worked by hand; and searches that really find pictures again."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedquilt.audit.attacks import psnr
from fedquilt.audit.inversion import Puzzle, features_of, invert, label_of, present_classes
from fedquilt.core.net import Net
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch
from fedquilt.models.split import Split
from helpers.toy import digits


def test_bias_signs_are_the_classes_present():
    """4 classes, p uniform, y = [2, 2, 3]: grad b = 1/4 - [0, 0, 2, 1] / 3 = [.25, .25, -.416667, -.083333]."""
    net = Net.of(nn.Linear, 5, 4)
    x, y = torch.randn(3, 5, generator=Seed(0).torch()), torch.tensor([2, 2, 3])
    params = {n: torch.zeros_like(t).requires_grad_() for n, t in net.init(Seed(0)).items()}
    weight, bias = torch.autograd.grad(F.cross_entropy(net(params, Batch({"x": x})), y), list(params.values()))
    assert bias.tolist() == pytest.approx([0.25, 0.25, -5 / 12, -1 / 12], abs=1e-6)
    gradient = {"head.weight": weight, "head.bias": bias}
    assert present_classes(gradient) == {2, 3}
    assert label_of(gradient, 1).tolist() == [2]
    assert label_of(gradient, 3).tolist() == [2, 3, 2]
    assert present_classes({"features.weight": weight}) is None


def test_features_of_a_batch_of_one():
    """delta = [.2, -.7, .5], f = [.5, -1, 2]: row 1 of delta f^T over delta_1 is f."""
    delta, f = torch.tensor([0.2, -0.7, 0.5]), torch.tensor([0.5, -1.0, 2.0])
    gradient = {"head.weight": torch.outer(delta, f), "head.bias": delta}
    assert features_of(gradient).tolist() == pytest.approx(f.tolist())
    alone = features_of({"head.weight": gradient["head.weight"]})
    assert alone.tolist() == pytest.approx((f / f.norm()).tolist())  # without the bias only the direction
    assert features_of({"head.bias": delta}) is None


def as_coded(mse: float) -> float:
    """The score of the published utility: it divides the error by three first."""
    return 20 * math.log10(1 / math.sqrt(mse / 3))


def test_decibels():
    """mse .03: 15.23 dB; the published utility says 20.00, 10 log10(3) = 4.77 too many."""
    truth = torch.zeros(1, 10, 10)
    guess = torch.full_like(truth, math.sqrt(0.03))
    assert psnr(truth, guess, 1.0) == pytest.approx(15.2288, abs=1e-3)
    assert as_coded(0.03) == pytest.approx(20.0, abs=1e-9)
    assert as_coded(0.03) - psnr(truth, guess, 1.0) == pytest.approx(10 * math.log10(3), abs=1e-4)
    assert psnr(2 * truth, 2 * guess, 2.0) == pytest.approx(psnr(truth, guess, 1.0))  # one range for both


class Smooth(Split):
    """A small network of sigmoids for the 8x8 digits."""

    def __init__(self) -> None:
        body = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1),
            nn.Sigmoid(),
            nn.Conv2d(12, 12, 3, stride=2, padding=1),
            nn.Sigmoid(),
            nn.Flatten(),
        )
        super().__init__(body, nn.Linear(12 * 16, 10), (1, 8, 8))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.5, 0.5)


def picture(place: int) -> Batch:
    table = digits().site(0, 0).train
    batch = table.rows(table.all_rows()[place : place + 1])
    return Batch({"x": batch.x.reshape(1, 1, 8, 8), "y": batch.y})


def gradient_at(net, model, batch):
    own = {n: t.clone().requires_grad_() for n, t in model.items()}
    loss = F.cross_entropy(net(own, batch), batch.y)
    return dict(zip(net.trainable, torch.autograd.grad(loss, [own[n] for n in net.trainable]), strict=True))


@pytest.mark.parametrize("given", [False, True], ids=["dlg", "idlg"])
def test_a_digit_comes_back(given):
    net = Net(Smooth)
    model, batch = net.init(Seed(1)), picture(3)
    gradient = gradient_at(net, model, batch)
    labels = label_of(gradient, 1) if given else None
    guess = invert(Puzzle(net, model, gradient, (1, 8, 8), 0.0, 1.0), 1, Seed(0), labels, iterations=15, restarts=2)
    assert psnr(batch.x, guess.x, 1.0) > 30
    assert guess.labels.tolist() == batch.y.tolist()
    assert guess.mismatch < 1e-4


def test_noise_hides_it():
    net = Net(Smooth)
    model, batch = net.init(Seed(1)), picture(3)
    draw = Seed(5).torch()
    clean = gradient_at(net, model, batch)
    noisy = {n: t + 0.1 * torch.randn(t.shape, generator=draw) for n, t in clean.items()}
    guess = invert(Puzzle(net, model, noisy, (1, 8, 8), 0.0, 1.0), 1, Seed(0), iterations=15, restarts=2)
    assert psnr(batch.x, guess.x, 1.0) < 15
    assert guess.mismatch > 0.1


def test_a_head_that_stays_home_does_not_hide_the_picture():
    """Only the body's gradient is seen: what the head sends back is searched for as well."""
    net = Net(Smooth)
    model, batch = net.init(Seed(1)), picture(3)
    body = {n: t for n, t in gradient_at(net, model, batch).items() if not n.startswith("head")}
    known = {**model, "head.weight": torch.zeros(10, 192), "head.bias": torch.zeros(10)}
    puzzle = Puzzle(net, known, body, (1, 8, 8), 0.0, 1.0, head_known=False)
    guess = invert(puzzle, 1, Seed(0), iterations=30, restarts=2)
    assert guess.labels is None
    assert psnr(batch.x, guess.x, 1.0) > 20
