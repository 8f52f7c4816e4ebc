"""Coded messages from new clients are refused with a reason, or give tensors of the right shape; nothing else
happens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedquilt.core.seed import Seed
from fedquilt.errors import FrameError
from fedquilt.pieces.codecs import hgc, hgc_legacy, hgc_rc, power_sgd, qsgd, random_k, sign, top_k, uniform
from fedquilt.pieces.codecs.adaptive import Decoder, Encoder
from fedquilt.pieces.codecs.layout import MOST_TRAVELLING
from fedquilt.pieces.codecs.matrices import Coded
from fedquilt.pieces.codecs.quantised import half

M = torch.randn(5, 9, generator=Seed(0).torch())
BYTES = [
    hgc(),
    hgc(lossless="deflate"),
    hgc(lossless="adaptive"),
    hgc_rc(),
    hgc_rc(lossless="adaptive"),
    hgc_legacy(),
    sign(),
    uniform(5),
    uniform(8),
    qsgd(4),
]
PAIRS = [top_k(0.3), random_k(0.3), power_sgd(1)]
as_bytes = pytest.mark.parametrize("codec", BYTES, ids=repr)


def part_of(codec: Any, matrix: Tensor = M) -> Any:
    return codec.code(matrix, Seed(0))[0]


@as_bytes
def test_every_truncation_and_every_addition_is_refused(codec):
    part = part_of(codec)
    for wrong in [part[:n] for n in range(len(part))] + [part + b"\0", part + part]:
        with pytest.raises(FrameError):
            codec.restore(wrong, 5, 9)


@as_bytes
@pytest.mark.parametrize("shape", [(5, 200), (50, 9), (4, 3)])
def test_another_shape_is_refused(codec, shape):
    with pytest.raises(FrameError):
        codec.restore(part_of(codec), *shape)


@as_bytes
@given(st.data())
@settings(max_samples=60, deadline=None)
def test_any_bytes_are_refused_or_give_a_finite_matrix(codec, data):
    part = bytearray(part_of(codec))
    for _ in range(data.draw(st.integers(1, 4))):
        part[data.draw(st.integers(0, len(part) - 1))] = data.draw(st.integers(0, 255))
    for wrong in (bytes(part), data.draw(st.binary(max_size=40)), part[:5] + data.draw(st.binary(max_size=20))):
        try:
            found = codec.restore(bytes(wrong), 5, 9)
        except FrameError:
            continue
        assert found.shape == (5, 9)
        assert found.isfinite().all()


@pytest.mark.parametrize("codec", [*BYTES, *PAIRS, half()], ids=repr)
@pytest.mark.parametrize("wrong", [None, 3, "text", (), (b"",), (b"", 3), (b"", torch.zeros(3).long()), [b""]])
def test_parts_of_other_kinds_are_refused(codec, wrong):
    with pytest.raises(FrameError):
        codec.restore(wrong, 5, 9)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("codec", [*BYTES, *PAIRS, half()], ids=repr)
def test_what_is_not_finite_is_coded_and_then_refused_by_name(codec, value):
    """So that the server leaves the client out with a reason, as without a codec, and the client's program goes on."""
    bad = M.clone()
    bad[2, 3] = value
    with pytest.raises(FrameError, match="finite"):
        codec.restore(part_of(codec, bad), 5, 9)


def floats(*values: float) -> bytes:
    return np.array(values, dtype=">f4").tobytes()


@pytest.mark.parametrize(
    ("codec", "change", "reason"),
    [
        (hgc(), lambda p: floats(float("nan")) + p[4:], "the largest row norm is nan"),
        (hgc(), lambda p: floats(-1.0) + p[4:], "the largest row norm is -1.0"),
        (hgc(), lambda p: p[:4] + bytes([7]) + p[5:], "coded with 8 bins; 16 are expected"),
        (hgc(10), lambda p: p[:5] + b"\xff" + p[6:], "row index 15 of 10"),
        (hgc(), lambda p: p[:-1] + bytes([p[-1] | 1]), "the filling after 74 bits is not zero"),
        (hgc_legacy(), lambda p: b"\1" * 8 + p[8:], "the counts of the bins are not those of 5 rows"),
        (hgc_legacy(), lambda p: p[:-34] + bytes(32) + p[-2:], "the largest row norm is 0"),
        (sign(), lambda p: floats(float("inf")) + p[4:], "the scale is inf"),
        (uniform(8), lambda p: floats(2.0, 1.0) + p[8:], "the range 2.0 to 1.0"),
        (qsgd(4), lambda p: floats(-1.0) + p[4:], "the norm of a block is not finite or negative"),
        (top_k(0.3), lambda p: (b"\xff" * len(p[0]), p[1]), "the filling|places must ascend and be below 45"),
        (top_k(0.3), lambda p: (bytes(len(p[0])), p[1]), "places must ascend and be below 45"),
        (top_k(0.3), lambda p: (p[0][:-1], p[1]), "Truncated"),
        (top_k(0.3), lambda p: (p[0], p[1][:-1]), "14 values .* are needed"),
        (random_k(0.3), lambda p: (p[0][:7], p[1]), "a seed has 8 bytes, got 7"),
        (random_k(0.3), lambda p: (p[0], p[1].double()), "14 values .* are needed"),
        (power_sgd(1), lambda p: (p[0].t(), p[1]), "a factor must be a float32 tensor of 5 x 1"),
        (half(), lambda p: p.float(), "5 x 9 entries of float16 are needed"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_the_reason_is_named(codec, change, reason):
    with pytest.raises(FrameError, match=reason):
        codec.restore(change(part_of(codec)), 5, 9)


HEAD = {"h.weight": M, "h.bias": M[:, 0].clone()}


@pytest.mark.parametrize(
    "change",
    [
        lambda c: replace(c, layout=3),
        lambda c: replace(c, layout=-1),
        lambda c: replace(c, layout=True),
        lambda c: replace(c, layout=None),
        lambda c: replace(c, layout=b""),
        lambda c: replace(c, layout=c.layout[:-1]),
        lambda c: replace(c, layout=c.layout + b"\0"),
        lambda c: replace(c, layout=b"\xff" * 12),
        lambda c: replace(c, layout=b"\x00\x63\x00"),
        lambda c: replace(c, layout=b"\x00\x00\xff"),
        lambda c: replace(c, layout=b"\x00\x00\x02\xff\xff\xff\x7f\xff\xff\xff\x7f"),
        lambda c: replace(c, layout=b"\x02\x01a\x00\x01\x03\x01a\x00\x01\x03"),
        lambda c: replace(c, parts=()),
        lambda c: replace(c, parts=c.parts * 2),
        lambda c: replace(c, parts=list(c.parts)),
        lambda c: replace(c, layout=b"\x01\x02\xff\xfe\x00\x00"),
    ],
)
def test_wrong_layouts_are_refused(change):
    wire, _ = hgc().encode(HEAD, None, None, Seed(0))
    with pytest.raises(FrameError):
        hgc().decode(change(wire), None)


def test_a_few_bytes_cannot_ask_for_much_memory():
    sparse, seeds = top_k(1e-9), random_k(1e-9)
    side = MOST_TRAVELLING + 1
    layout = bytes([0, 0, 1]) + bytes([side & 127 | 128, side >> 7 & 127 | 128, side >> 14 & 127 | 128, side >> 21])
    for codec in (sparse, seeds, hgc(), half()):
        with pytest.raises(FrameError, match="entries came with the message"):
            codec.decode(Coded(layout, (b"",)), None)
    with pytest.raises(FrameError, match="adaptive coding of"):
        hgc().restore(floats(1.0) + bytes([0b10001111]) + b"\0", 2000, 2000)


def test_a_deflated_bomb_is_cut_short():
    import zlib

    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = packer.compress(bytes(10**7)) + packer.flush()
    with pytest.raises(FrameError, match="do not end where they should"):
        hgc().restore(floats(1.0) + bytes([0b01001111]) + bomb, 5, 9)


# The arithmetic coder


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3)), max_size=400), st.integers(0, 1))
@settings(max_samples=200, deadline=None)
def test_the_arithmetic_coder_gives_back_every_bit(pairs, flip):
    bits = np.array([b ^ flip for b, _ in pairs], dtype=np.uint8)
    contexts = np.array([c for _, c in pairs], dtype=np.int64)
    encoder = Encoder()
    encoder.bits(bits, contexts)
    raw = encoder.finish()
    decoder = Decoder(raw)
    assert decoder.bits(contexts).tolist() == bits.tolist()
    decoder.finish()


@pytest.mark.parametrize("share", [0.0, 0.01, 0.1, 0.5, 1.0])
def test_the_arithmetic_coder_is_within_two_bytes_of_its_model(share):
    """The model's length: the sum of -log2 of (n_b + 1/2) / (n + 1) over all bits."""
    bits = (np.random.default_rng(0).random(20000) < share).astype(np.uint8)
    ones = np.concatenate([[0], np.cumsum(bits)[:-1]])
    seen = np.arange(len(bits))
    chance = (np.where(bits == 1, ones, seen - ones) + 0.5) / (seen + 1)
    encoder = Encoder()
    encoder.bits(bits, np.zeros(len(bits), dtype=np.int64))
    assert 0 <= len(encoder.finish()) - -np.log2(chance).sum() / 8 <= 2.1


def test_carries_run_through_many_bytes():
    """Long runs of unlikely ends: every message of a family that puts low near its upper bound."""
    for length in range(1, 200):
        bits = np.array([0] * length + [1, 1], dtype=np.uint8)
        encoder = Encoder()
        encoder.bits(bits, np.zeros(len(bits), dtype=np.int64))
        decoder = Decoder(encoder.finish())
        assert decoder.bits(np.zeros(len(bits), dtype=np.int64)).tolist() == bits.tolist()
        decoder.finish()
