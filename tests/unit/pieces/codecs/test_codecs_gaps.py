"""The lossless stage of gaps: by hand, there and back, close to the arithmetic coder, and safe from new clients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedquilt.core.seed import Seed
from fedquilt.errors import FrameError
from fedquilt.pieces.codecs import hgc, hgc_rc
from fedquilt.pieces.codecs.gaps import In, Out

GAPS = 3  # the number of the stage on the wire
CODECS = [hgc(lossless="gaps"), hgc_rc(lossless="gaps"), hgc_rc(lossless="gaps", column_bits=5)]
each = pytest.mark.parametrize("codec", CODECS, ids=repr)


def gradient(rows: int = 12, columns: int = 40, samples: int = 6, present: int = 4) -> Tensor:
    """A head gradient after ReLU: rows of absent classes are all positive, some columns are dead."""
    draw = Seed(rows).torch()
    features = torch.randn(samples, columns, generator=draw).relu()
    features[:, ::7] = 0
    wrong = torch.softmax(torch.randn(samples, rows, generator=draw), 1)
    wrong[torch.arange(samples), torch.arange(samples) % present] -= 1
    return wrong.t() @ features / samples


def part_of(codec: Any, matrix: Tensor) -> bytes:
    part: bytes = codec.code(matrix, Seed(0))[0]
    assert part[4] >> 6 == GAPS
    return part


def test_by_hand() -> None:
    """Eight bits, one rare (0) after three others: k = 2 since 481 * 15 // 2000 = 3; then gap 3 = 0 * 4 + 3."""
    out = Out()
    out.runs(np.array([1, 1, 1, 0, 1, 1, 1, 1], dtype=np.uint8), np.array([8]))
    assert np.concatenate(out.parts).tolist() == [0, 1, 0, 1, 1, 1]  # one rare bit; it is 0; quotient; rest
    read = In(out.bytes())
    assert read.runs(1, lambda counts, rare: np.array([8])).bits.tolist() == [1, 1, 1, 0, 1, 1, 1, 1]
    read.finish()


@given(st.lists(st.tuples(st.integers(0, 60), st.floats(0, 1)), max_size=8), st.integers(0, 2**32 - 1))
@settings(max_samples=80, deadline=None)
def test_runs_come_back(made: list[tuple[int, float]], seed: int) -> None:
    draw = np.random.default_rng(seed)
    pieces = [(draw.random(length) < share).astype(np.uint8) for length, share in made]
    bits, lengths = np.concatenate([np.zeros(0, np.uint8), *pieces]), np.array([n for n, _ in made], dtype=np.int64)
    out = Out()
    out.runs(bits, lengths)
    read = In(out.bytes())
    assert np.array_equal(read.runs(len(lengths), lambda counts, rare: lengths).bits, bits)
    read.finish()


@each
def test_matrices_come_back_and_are_smaller(codec: Any) -> None:
    matrix = gradient()
    part, plain = part_of(codec, matrix), type(codec)(**{**vars(codec), "lossless": "none"})
    assert len(part) < len(plain.code(matrix, Seed(0))[0])
    assert torch.equal(codec.restore(part, 12, 40), plain.restore(plain.code(matrix, Seed(0))[0], 12, 40))


@pytest.mark.parametrize("kind", [hgc, hgc_rc])
def test_close_to_the_arithmetic_coder(kind: Any) -> None:
    """Within a tenth of its bytes for a head of 10 x 513 and one of 100 x 513."""
    for matrix in (gradient(10, 513, 10, 5), gradient(100, 513, 10, 8)):
        best = len(kind(lossless="adaptive").code(matrix, Seed(0))[0])
        assert len(part_of(kind(lossless="gaps"), matrix)) <= 1.1 * best + 4
        assert len(kind(lossless="smallest").code(matrix, Seed(0))[0]) <= best


@each
def test_truncated_and_longer_messages_are_refused(codec: Any) -> None:
    part = part_of(codec, gradient())
    for wrong in [part[:n] for n in range(len(part))] + [part + b"\0", part + b"\1", part + part]:
        with pytest.raises(FrameError):
            codec.restore(wrong, 12, 40)


@each
@given(st.data())
@settings(max_samples=150, deadline=None)
def test_damage_is_refused_or_gives_a_finite_matrix(codec: Any, data: Any) -> None:
    part = bytearray(part_of(codec, gradient()))
    for _ in range(data.draw(st.integers(1, 4))):
        part[data.draw(st.integers(5, len(part) - 1))] = data.draw(st.integers(0, 255))
    for wrong in (bytes(part), bytes(part[:5]) + data.draw(st.binary(max_size=60))):
        try:
            found = codec.restore(wrong, 12, 40)
        except FrameError:
            continue
        assert found.shape == (12, 40)
        assert found.isfinite().all()
