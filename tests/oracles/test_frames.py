"""Sparse equiangular frames against worked numbers (fedloge.md, O1 and O2)."""

from __future__ import annotations

import pytest
import torch

from fedquilt.errors import InputError
from fedquilt.pieces.etf import Frame, ideal_angle, simplex, spread, survivors
from helpers.near import close


def test_o1_simplex():
    """d = 4, C = 3, P the first three unit vectors: class 1 is .816497, -.408248, -.408248, 0."""
    found = simplex(3, torch.eye(4)[:, :3])
    close(found[0], [0.816497, -0.408248, -0.408248, 0.0])
    close(found @ found.T, [[1, -0.5, -0.5], [-0.5, 1, -0.5], [-0.5, -0.5, 1]])


@pytest.mark.parametrize("seed", [0, 7])
def test_o1_any_seed(seed):
    """d = 512, C = 100: unit rows, cosines -1/99, rows that sum to 0."""
    found = Frame(100, 512, sparsity=0.0, norm=1.0, seed=seed).build().double()
    gram = found @ found.T
    close(gram.diagonal(), torch.ones(100))
    close(gram[~torch.eye(100, dtype=torch.bool)], -1 / 99)
    close(found.sum(0), torch.zeros(512))


def test_o2_published_descent():
    """d = 64, C = 10: 384 zeros before and after; 2,000 steps of Adam at 1e-3 reach 96.37 +- .05 degrees."""
    start = spread(Frame(10, 64, by="descent", steps=0).build())
    end = spread(Frame(10, 64, by="descent", steps=2000, lr=1e-3).build())
    assert start.zeros == end.zeros == 384
    assert 91.5 < start.angle < 93.5  # about 92.9 in another draw
    assert float(Frame(10, 64, by="descent", steps=0).build().norm(dim=1).mean()) == pytest.approx(0.61, abs=0.03)
    assert end.angle == pytest.approx(96.37, abs=0.05)
    assert end.cosine <= -0.09
    assert end.shortest >= 0.1
    assert end.longest <= 0.106


def test_o2_plain_when_nothing_is_zero():
    """beta = 0 and no steps: the plain ETF."""
    plain = Frame(10, 64, sparsity=0.0, by="descent", steps=0).build()
    assert spread(plain).angle == pytest.approx(ideal_angle(10), abs=1e-4)
    close(plain.norm(dim=1), torch.ones(10))


@pytest.mark.parametrize(("classes", "features", "zeros"), [(10, 64, 384), (5, 32, 96), (10, 512, 3072)])
def test_projection_reaches_the_ideal_angle(classes, features, zeros):
    """The largest cosine, not only the mean, is the ideal one; the zeros are where they were."""
    frame = Frame(classes, features)
    found = frame.build()
    measured = spread(found)
    assert measured.zeros == zeros
    assert torch.equal(found != 0, survivors(frame) > 0)
    assert measured.nearest == pytest.approx(ideal_angle(classes), abs=1e-3)
    assert measured.cosine == pytest.approx(-1 / (classes - 1), abs=2e-6)
    close(found.norm(dim=1), torch.full((classes,), 0.1), 1e-7)


def test_ideal_angles():
    assert ideal_angle(10) == pytest.approx(96.3794, abs=1e-4)
    assert ideal_angle(100) == pytest.approx(90.5788, abs=1e-4)


def test_frames_are_equal_wherever_they_are_built_and_differ_by_seed():
    one = Frame(10, 64).build()
    one[:] = 0  # a copy: nobody else's changes
    assert torch.equal(Frame(10, 64).build(), Frame(10, 64, norm=0.1, sparsity=0.6).build())
    assert Frame(10, 64).build().any()
    assert not torch.equal(Frame(10, 64).build(), Frame(10, 64, seed=1).build())


def test_every_class_keeps_two_entries():
    """With d = 8 and beta = .6 about 1.7 % of free draws would leave a class nothing."""
    for seed in range(60):
        assert int((survivors(Frame(8, 8, seed=seed)) > 0).sum(1).min()) >= 2
    assert (survivors(Frame(10, 84, per_class=True)) == 0).sum(1).tolist() == [50] * 10


def test_more_classes_than_features():
    with pytest.raises(InputError, match="need as many features"):
        Frame(20, 16)
    wide = Frame(20, 16, narrow="spread", sparsity=0.3, steps=1500, lr=1e-3)
    before, after = spread(Frame(20, 16, narrow="spread", sparsity=0.3, steps=0).build()), spread(wide.build())
    assert after.cosine < 0.1 < before.cosine
    assert after.zeros == before.zeros == int(0.3 * 320)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sparsity": 0.95}, "0.9"),
        ({"norm": 0.0}, "above 0"),
        ({"steps": -1}, "0 or more"),
        ({"classes": 1}, "2 classes"),
        ({"features": 10, "sparsity": 0.9}, "fewer than 2"),
    ],
)
def test_impossible_frames(options, message):
    with pytest.raises(InputError, match=message):
        Frame(**{"classes": 4, "features": 64, **options})
