"""PSNR, SSIM and the pairing of guesses."""

from __future__ import annotations

import pytest
import torch

from fedquilt.audit.attacks import EXACT, paired, psnr, ssim
from fedquilt.core.seed import Seed
from fedquilt.errors import InputError

DRAW = Seed(0).torch()


def test_psnr_is_bounded():
    x = torch.rand(3, 4, generator=DRAW)
    assert psnr(x, x, 1.0) == EXACT
    assert psnr(x, x + 1e-9, 1.0) == EXACT
    assert psnr(x, x + 1, 1.0) == pytest.approx(0, abs=1e-5)


def test_ssim_by_hand():
    """Constant pictures a, b: (2ab + c) / (a^2 + b^2 + c), c = 1e-4; a picture and its negative around 0: below 0."""
    a, b = torch.full((1, 8, 8), 0.2), torch.full((1, 8, 8), 0.6)
    assert ssim(a, b, 1.0) == pytest.approx((2 * 0.12 + 1e-4) / (0.04 + 0.36 + 1e-4), rel=1e-6)
    x = torch.rand(1, 12, 12, generator=DRAW)
    assert ssim(x, x, 1.0) == pytest.approx(1.0)
    assert ssim(x, 1 - x, 1.0) < 0
    assert ssim(torch.zeros(64), torch.zeros(64), 1.0) is None  # not an image
    assert ssim(10 * x, 10 * (x + 0.1), 10.0) == pytest.approx(ssim(x, x + 0.1, 1.0))


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (1, 28, 28), (1, 7, 9)])
def test_ssim_is_scikit_images(shape):
    structural = pytest.importorskip("skimage.metrics").structural_similarity
    x, y = torch.rand(shape, generator=DRAW), torch.rand(shape, generator=DRAW)
    for other, span in ((y, 1.0), (0.7 * x + 0.3 * y, 2.0)):
        theirs = structural(x.double().numpy(), other.double().numpy(), data_range=span, channel_axis=0)
        assert ssim(x, other, span) == pytest.approx(theirs, abs=1e-9)


def test_guesses_find_their_truths():
    truths = torch.arange(5.0)[:, None, None, None].expand(5, 1, 2, 2)
    guesses = truths[[3, 0, 4]] + 0.1
    assert paired(truths, guesses).tolist() == [3, 0, 4]
    twice = truths[[2, 2]]
    assert sorted(paired(truths, twice).tolist()) in ([1, 2], [2, 3])  # no truth is counted twice
    with pytest.raises(InputError, match="6 guesses cannot be paired with 5"):
        paired(truths, torch.zeros(6, 1, 2, 2))


def test_refusals():
    with pytest.raises(InputError, match="differ in shape"):
        psnr(torch.zeros(2), torch.zeros(3), 1.0)
    with pytest.raises(InputError, match="span of the values must be positive, got 0"):
        ssim(torch.zeros(1, 8, 8), torch.zeros(1, 8, 8), 0.0)
