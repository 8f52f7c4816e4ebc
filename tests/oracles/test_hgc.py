"""Head-gradient compression and the shift register against worked numbers (float64 numpy, six digits)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedquilt.core.params import cosine
from fedquilt.core.seed import Seed
from fedquilt.errors import InputError
from fedquilt.pieces.codecs import hgc, hgc_legacy, hgc_rc, lfsr
from fedquilt.pieces.codecs.hgc import row_norms

G = torch.tensor([[0.3, -0.4, 1.2, 0.0], [0.1, 0.1, -0.1, 0.1], [-0.2, 0.4, 0.4, -0.8]])  # row norms 1.3, 0.2, 1.0
DEAD = torch.tensor([[3.0, 0.0, -4.0, 0.0], [0.0, 0.0, 0.0, 0.0], [0.6, 0.0, 0.8, 0.0]])
SIGNS = [[1, -1, 1, -1], [1, 1, -1, 1], [-1, 1, 1, -1]]


def through(codec, matrix: Tensor, seed: int = 0) -> Tensor:
    part, _ = codec.code(matrix, Seed(seed))
    return codec.restore(part, *matrix.shape)


def near(found: Tensor, expected, tolerance: float = 1e-6) -> None:
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float32), atol=tolerance)


def angle(a: Tensor, b: Tensor) -> float:
    return cosine({"g": a}, {"g": b})


# The method as its authors coded it, with its defects


def test_legacy_payload():
    part, _ = hgc_legacy(8).code(G, Seed(0))
    bins, whole = hgc_legacy(8).bins(row_norms(G))
    assert (bins.tolist(), whole) == ([5, 1, 4], 2)
    assert np.frombuffer(part[:64], dtype="<i8").tolist() == [0, 1, 0, 0, 1, 1, 0, 0]
    assert part[64:66] == bytes([0xAD, 0x60])
    assert part[-1] == 0x4C
    assert len(part) == hgc_legacy(8).size(3, 4) == 64 + 1 + 2 + 32


def test_legacy_deals_norms_to_the_wrong_rows():
    found = through(hgc_legacy(8), G)
    sizes = torch.tensor([0.142857, 0.571429, 0.714286])[:, None]
    near(found, (torch.tensor(SIGNS) * sizes).tolist())
    near(found.norm(dim=1), [0.285714, 1.142857, 1.428571])  # ascending, whichever row they belong to
    assert angle(found, G) == pytest.approx(0.583679, abs=1e-6)


def test_the_same_bins_on_the_right_rows_are_much_closer():
    bins, whole = hgc_legacy(8).bins(row_norms(G))
    norms = torch.tensor(bins * whole / 7, dtype=torch.float32)
    near(norms, [1.428571, 0.285714, 1.142857])
    assert angle(torch.tensor(SIGNS) * norms[:, None], G) == pytest.approx(0.798473, abs=1e-6)
    assert angle(through(hgc(8), G), G) > 0.79


def test_legacy_rounds_the_largest_norm_to_a_whole_number():
    """Rows of norm 0.03 and 0.005 both come back as 1 / 15."""
    small = torch.diag(torch.tensor([0.03, 0.005]))
    near(through(hgc_legacy(16), small).norm(dim=1), [0.066667, 0.066667])
    near(through(hgc(16), small).norm(dim=1), [0.029, 0.005], 1e-3 + 1e-6)


def test_legacy_fails_when_the_largest_norm_is_a_whole_number():
    whole = torch.tensor([[0.6, -0.8], [0.1, 0.0]])
    with pytest.raises(InputError, match="whole number, so its row falls into bin 8 of 8"):
        hgc_legacy(8).code(whole, Seed(0))
    near(through(hgc(8), whole).norm(dim=1), [13 / 14, 1 / 14])


def test_legacy_makes_something_of_nothing():
    near(through(hgc_legacy(8), torch.zeros(2, 3)), [[-0.082479] * 3] * 2)
    assert not through(hgc(8), torch.zeros(2, 3)).any()


@pytest.mark.parametrize(("bins", "bytes_"), [(8, 739), (16, 804), (32, 934), (64, 1194)])
def test_legacy_sizes(bins, bytes_):
    assert hgc_legacy(bins).size(10, 513) == bytes_
    assert hgc_legacy(bins).size(100, 513) == bytes_ + 5771
    assert hgc_legacy(bins).size(10, 65) == bytes_ - 560


# The mended one


@pytest.mark.parametrize(
    ("bins", "representative", "index", "norms", "close"),
    [
        (8, "midpoint", [7, 2, 6], [1.207143, 0.278571, 1.021429], 0.799778),
        (8, "upper", [7, 2, 6], [1.3, 0.371429, 1.114286], 0.798717),
        (16, "midpoint", [15, 3, 12], [1.256667, 0.216667, 0.996667], None),
    ],
)
def test_hgc(bins, representative, index, norms, close):
    codec = hgc(bins, representative)
    found = through(codec, G)
    assert codec.indices(row_norms(G), float(np.float32(1.3)), Seed(0)).tolist() == index
    near(found, (torch.tensor(SIGNS) * torch.tensor(norms)[:, None] / 2).tolist())
    if close is not None:
        assert angle(found, G) == pytest.approx(close, abs=1e-6)


def test_hgc_wire_form():
    """1.3 as float32, K - 1 = 7, then 111 010 110, the mask 1111, the signs 1010 1101 0110, and filling."""
    part, _ = hgc(8).code(G, Seed(0))
    bits = "111010110" + "1111" + "101011010110" + "0000000"
    largest = np.array(float(G[0].double().norm()), dtype=">f4")
    assert part == largest.tobytes() + bytes([7]) + int(bits, 2).to_bytes(4, "big")
    assert (len(part), hgc(8).size(3, 4)) == (9, 9)  # 65 bits


def test_unbiased_rounds_to_a_neighbouring_edge_with_the_right_mean():
    norms, codec = row_norms(G), hgc(8, "unbiased")
    draws = np.array([codec.indices(norms, float(norms.max()), Seed(s)) for s in range(4000)])
    assert draws.min(0).tolist() == [7, 1, 5]
    assert draws.max(0).tolist() == [7, 2, 6]
    ups = draws.mean(0) - [7, 1, 5]
    assert ups == pytest.approx([0, 0.076923, 0.384615], abs=0.03)  # three standard deviations are 0.023
    assert draws.mean(0) * 1.3 / 7 == pytest.approx(norms, abs=0.006)


def test_dead_columns_and_rows_stay_zero():
    codec = hgc(8)
    found = through(codec, DEAD)
    near(found, [[3.282996, 0, -3.282996, 0], [0, 0, 0, 0], [0.757614, 0, 0.757614, 0]])
    assert not found[:, [1, 3]].any()
    assert not found[1].any()
    assert angle(found, DEAD) == pytest.approx(0.989522, abs=1e-6)
    part, _ = codec.code(DEAD, Seed(0))
    assert len(part) == codec.size(3, 4, live=2) == math.ceil((40 + 9 + 4 + 6) / 8)


def test_hgc_rc():
    codec = hgc_rc(8, column_bits=2)
    assert codec._column_codes(G, np.ones(4, dtype=np.uint8)).tolist() == [2, 2, 3, 3]
    near(
        torch.from_numpy(codec._column_scales(np.array([2, 2, 3, 3]), 4)).float(),
        [0.321359, 0.321359, 0.629864, 0.629864],
    )
    found = through(codec, G)
    near(found[0], [0.387926, -0.387926, 0.760336, -0.760336])
    near(found.norm(dim=1), [1.207143, 0.278571, 1.021429])
    assert angle(found, G) == pytest.approx(0.831494, abs=1e-6)
    assert len(codec.code(G, Seed(0))[0]) == codec.size(3, 4) == math.ceil(73 / 8)


@pytest.mark.parametrize(
    ("rows", "columns", "bytes_", "ratio", "half_dead"),
    [
        (10, 513, 716, 28.7, 51.9),
        (100, 513, 6532, 31.4, 61.6),
        (200, 513, 12995, 31.6, 62.2),
        (10, 65, 100, 26.0, 43.8),
    ],
)
def test_hgc_sizes(rows, columns, bytes_, ratio, half_dead):
    whole = torch.randn(rows, columns, generator=Seed(0).torch())
    part, _ = hgc(16).code(whole, Seed(0))
    assert len(part) == hgc(16).size(rows, columns) == bytes_
    assert 4 * rows * columns / bytes_ == pytest.approx(ratio, abs=0.05)
    whole[:, : columns // 2] = 0
    bits = 40 + 4 * rows + columns + rows * (columns - columns // 2)
    assert 32 * rows * columns / bits == pytest.approx(half_dead, abs=0.05)
    assert len(hgc(16).code(whole, Seed(0))[0]) == math.ceil(bits / 8)


# Invariants


@st.composite
def matrices(draw):
    rows, columns = draw(st.integers(1, 6)), draw(st.integers(1, 20))
    values = torch.randn(rows, columns, generator=Seed(draw(st.integers(0, 10**6))).torch())
    values *= 10.0 ** draw(st.integers(-20, 8))
    for column in draw(st.lists(st.integers(0, columns - 1), max_size=8)):
        values[:, column] = 0
    for row in draw(st.lists(st.integers(0, rows - 1), max_size=2)):
        values[row] = 0
    return values


everything = given(matrices(), st.integers(2, 64), st.sampled_from(["none", "deflate", "gaps", "adaptive", "smallest"]))


@everything
@settings(max_samples=200, deadline=None)
def test_norms_signs_zeros_and_cosines(matrix, bins, lossless):
    """Row norms are b_i, within half a step of the truth; signs and zeros survive; cos = |g|_1 / (sqrt(c) |g|_2)."""
    found, norms = through(hgc(bins, lossless=lossless), matrix).double(), matrix.double().norm(dim=1)
    step = float(norms.max()) / (bins - 1)
    rows, live = norms > 0, (matrix != 0).any(dim=0)
    near_ = 1e-5 * float(norms.max())
    assert ((found.norm(dim=1) - norms)[rows].abs() <= step / 2 + near_).all()
    steps = found.norm(dim=1)[rows] / step + 0.5 if step else torch.zeros(0)
    assert (steps - steps.round()).abs().lt(1e-4).all()
    alive = (matrix != 0) & rows[:, None]
    assert torch.equal(found[alive].sign(), matrix[alive].double().sign())
    assert not found[:, ~live].any()
    assert not found[~rows].any()
    for row, back in zip(matrix[rows].double(), found[rows], strict=True):
        expected = float(row.abs().sum() / (live.sum().sqrt() * row.norm()))
        zeros = int((row[live] == 0).sum())
        if not zeros:
            assert float(row @ back / (row.norm() * back.norm())) == pytest.approx(expected, abs=1e-4)


@everything
@settings(max_samples=100, deadline=None)
def test_upper_is_idempotent(matrix, bins, lossless):
    codec = hgc(bins, "upper", lossless)
    once = through(codec, matrix)
    assert torch.allclose(through(codec, once), once, rtol=1e-5, atol=0)


@everything
@settings(max_samples=100, deadline=None)
def test_lossless_stages_change_nothing_and_are_kept_only_if_smaller(matrix, bins, lossless):
    for codec in (hgc, hgc_rc):
        plain, staged = codec(bins), codec(bins, lossless=lossless)
        assert torch.equal(through(staged, matrix), through(plain, matrix))
        live = int((matrix != 0).any(dim=0).sum())
        size = plain.size(*matrix.shape, live)
        assert len(plain.code(matrix, Seed(0))[0]) == size
        assert len(staged.code(matrix, Seed(0))[0]) <= size


def test_bit_width_is_another_name_for_the_number_of_bins():
    assert hgc(bit_width=32).num_bins == hgc_rc(bit_width=32).num_bins == hgc_legacy(bit_width=32).num_bins == 32


# The shift register


@pytest.mark.parametrize(
    ("taps", "first", "period"), [((5, 4), "11101000111001001011", 63), ((5, 3), "00110111101001001101", 14)]
)
def test_lfsr(taps, first, period):
    bits = lfsr(width=6, taps=taps, start=0b101001).bits(400)
    assert "".join(map(str, bits[:20])) == first
    ahead = [p for p in range(1, 100) if (bits[p:] == bits[:-p]).all()]
    assert ahead[0] == period


@given(st.integers(1, 40), st.data())
@settings(max_samples=60, deadline=None)
def test_the_register_goes_step_by_step(width, data):
    taps = data.draw(st.sets(st.integers(0, width - 1), min_size=1, max_size=4))
    register = start = data.draw(st.integers(1, (1 << width) - 1))
    expected = []
    for _ in range(300):
        bit = sum(register >> tap & 1 for tap in taps) % 2
        register = (register << 1 | bit) % (1 << width)
        expected.append(bit)
    assert lfsr(width, tuple(taps), start).bits(300).tolist() == expected
