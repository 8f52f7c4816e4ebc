"""Every codec: what went in comes out, of the size its formula says; and nothing else is taken."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedquilt.core.describe import build, describe
from fedquilt.core.params import cosine, norm, sub
from fedquilt.core.seed import Seed
from fedquilt.errors import FrameError, InputError
from fedquilt.pieces.codecs import (
    chain,
    error_feedback,
    half,
    hgc,
    hgc_legacy,
    hgc_rc,
    lfsr,
    on,
    power_sgd,
    qsgd,
    random_k,
    sign,
    together,
    top_k,
    uniform,
)
from fedquilt.pieces.codecs.layout import MOST_TRAVELLING
from fedquilt.pieces.codecs.matrices import Coded
from fedquilt.records.record import pack, record, unpack

MATRIX_CODECS = [
    hgc(),
    hgc(5, "upper"),
    hgc(64, "unbiased"),
    hgc_rc(),
    hgc_rc(8, column_bits=5),
    hgc_legacy(8),
    sign(),
    top_k(0.1),
    top_k(1.0),
    random_k(0.2),
    random_k(1.0, unbiased=False),
    uniform(1),
    uniform(5),
    uniform(8),
    uniform(16),
    uniform(3, stochastic=True),
    qsgd(2),
    qsgd(4, block=7),
    qsgd(8),
    qsgd(16, block=1000),
    half(),
    half("bfloat16"),
    power_sgd(1),
    power_sgd(3),
]
STAGED = [hgc(lossless=s) for s in ("deflate", "gaps", "adaptive", "smallest")] + [hgc_rc(lossless="adaptive")]
every_codec = pytest.mark.parametrize("codec", MATRIX_CODECS + STAGED, ids=repr)


@record
class Upload:
    delta: Any
    gradient: Any = None
    count: int = 0


def weight(part: Any) -> int:
    if isinstance(part, Tensor):
        return part.numel() * part.element_size()
    return len(part) if isinstance(part, bytes) else sum(map(weight, part))


@st.composite
def matrices(draw, zeros: bool = True):
    rows, columns = draw(st.integers(1, 12)), draw(st.integers(1, 40))
    values = torch.randn(rows, columns, generator=Seed(draw(st.integers(0, 10**6))).torch())
    values *= draw(st.sampled_from([1e-6, 0.37, 1.0, 1e4]))
    if zeros:
        for column in draw(st.lists(st.integers(0, columns - 1), max_size=5)):
            values[:, column] = 0
    return values


def legal(codec: Any, matrix: Tensor) -> bool:
    if isinstance(codec, hgc_legacy):
        return float(codec.bins(matrix.norm(dim=1).double().numpy())[0].max()) < codec.num_bins
    return float(matrix.abs().max()) < 6e4 or codec != half()


@every_codec
@given(matrices())
@settings(max_samples=40, deadline=None)
def test_sizes_and_bit_exact_decoding(codec, matrix):
    """The part has the size of the formula; after a real frame it decodes to the very same matrix, again and again."""
    if not legal(codec, matrix):
        return
    before = matrix.clone()
    part, _ = codec.code(matrix, Seed(1))
    again, _ = codec.code(matrix, Seed(1))
    assert torch.equal(matrix, before)
    rows, columns = matrix.shape
    live = int((matrix != 0).any(dim=0).sum())
    expected = codec.size(rows, columns, live) if isinstance(codec, hgc) else codec.size(rows, columns)
    if codec in STAGED:
        assert weight(part) <= expected
    else:
        assert weight(part) == expected
    found = codec.restore(part, rows, columns)
    travelled = codec.restore(unpack(pack(part, compact=True)), rows, columns)
    assert found.shape == matrix.shape
    assert found.dtype is torch.float32
    assert torch.equal(found, travelled)
    assert torch.equal(found, codec.restore(again, rows, columns))


@pytest.mark.parametrize(
    ("codec", "most"),
    [
        (uniform(16), 1e-4),
        (uniform(8), 0.02),
        (qsgd(16), 1e-2),
        (half(), 1e-3),
        (half("bfloat16"), 5e-3),
        (top_k(1.0), 0),
        (random_k(1.0), 0),
        (power_sgd(9), 1e-5),
    ],
    ids=repr,
)
def test_fine_codecs_are_close(codec, most):
    matrix = torch.randn(20, 9, generator=Seed(0).torch()) @ torch.randn(9, 30, generator=Seed(1).torch())
    found = codec.restore(codec.code(matrix, Seed(0))[0], 20, 30)
    assert float((found - matrix).norm() / matrix.norm()) <= most


@pytest.mark.parametrize("codec", [qsgd(3, block=16), uniform(3, stochastic=True), random_k(0.25), hgc(4, "unbiased")])
def test_unbiased_codecs_have_the_right_mean(codec):
    """Of hgc, the norms are unbiased, not the entries."""
    matrix = torch.randn(4, 8, generator=Seed(0).torch())
    found = torch.stack([codec.restore(codec.code(matrix, Seed(s))[0], 4, 8) for s in range(3000)])
    if isinstance(codec, hgc):
        assert torch.allclose(found.norm(dim=2).mean(0), matrix.norm(dim=1), atol=0.05)
    else:
        spread = found.std(0) / 3000**0.5
        assert ((found.mean(0) - matrix).abs() <= 5 * spread + 1e-5).all()


def test_top_k_keeps_the_largest_and_sign_the_best_scale():
    matrix = torch.tensor([[3.0, -1.0, 0.5], [0.0, -4.0, 2.0]])
    found = top_k(0.5).restore(top_k(0.5).code(matrix, Seed(0))[0], 2, 3)
    assert found.tolist() == [[3, 0, 0], [0, -4, 2]]
    found = sign().restore(sign().code(matrix, Seed(0))[0], 2, 3)
    assert found.tolist() == [[1.75, -1.75, 1.75], [-1.75, -1.75, 1.75]]


def test_power_sgd_finds_a_matrix_of_low_rank_and_remembers():
    exact = torch.randn(30, 2, generator=Seed(0).torch()) @ torch.randn(2, 40, generator=Seed(1).torch())
    full = torch.randn(30, 40, generator=Seed(2).torch())
    assert torch.allclose(power_sgd(2).restore(power_sgd(2).code(exact, Seed(3))[0], 30, 40), exact, atol=1e-4)
    memory, closeness = None, []
    for step in range(6):
        part, memory = power_sgd(2).code(full, Seed(step), memory)
        closeness.append(cosine({"m": power_sgd(2).restore(part, 30, 40)}, {"m": full}))
    assert closeness[-1] > closeness[0]  # one step of power iteration each time


# Params, layouts and fields

PARAMS = {
    "a.weight": torch.randn(6, 5, generator=Seed(0).torch()),
    "a.bias": torch.randn(6, generator=Seed(1).torch()),
    "conv.weight": torch.randn(4, 3, 2, 2, generator=Seed(2).torch()),
    "bn.count": torch.tensor(7),
    "bn.mean": torch.randn(4, generator=Seed(3).torch()),
    "scale": torch.tensor(0.5),
}
HEAD = {"head.weight": torch.randn(3, 4), "head.bias": torch.randn(3)}
AROUND = [
    error_feedback(top_k(0.2)),
    chain(top_k(0.3), half()),
    chain(power_sgd(1), uniform(8)),
    chain(hgc(), lfsr()),
    error_feedback(chain(top_k(0.3), uniform(4))),
    chain(top_k(0.5), top_k(0.5), half("bfloat16")),
    lfsr(),
]


def frames(codec: Any, upload: Any, sent: Any, times: int = 3) -> list[Any]:
    """What arrives, time after time, through real frames; memory too goes through frames."""
    memory, found = None, []
    for step in range(times):
        wire, memory = codec.encode(upload, sent, memory, Seed(step))
        found.append(codec.decode(unpack(pack(wire, compact=True)), sent))
        memory = unpack(pack(memory))
    return found


@pytest.mark.parametrize("sent", [None, Upload(PARAMS), Upload({"other": torch.zeros(2)})], ids=["no", "held", "other"])
@pytest.mark.parametrize("codec", [*MATRIX_CODECS, *AROUND[:-1]], ids=repr)
def test_params_come_back_with_their_names_shapes_and_counters(codec, sent):
    for found in frames(codec, Upload(PARAMS, count=3), sent):
        assert found.count == 3
        assert list(found.delta) == list(PARAMS)
        for name, tensor in PARAMS.items():
            assert found.delta[name].shape == tensor.shape
            assert found.delta[name].dtype == tensor.dtype
        assert found.delta["bn.count"] == 7


def test_shapes_that_both_sides_hold_do_not_travel():
    held, given_by_hand = on("delta", hgc()), on("delta", hgc(), like={n: t.shape for n, t in HEAD.items()})
    sizes = [
        len(pack(codec.encode(Upload(HEAD), sent, None, Seed(0))[0], compact=True))
        for codec, sent in ((held, None), (held, Upload(HEAD)), (given_by_hand, None))
    ]
    assert sizes[0] > sizes[1] + 25
    assert sizes[1] == sizes[2]


def test_a_layer_is_one_matrix_with_the_bias_as_its_last_column():
    wire, _ = hgc(8).encode(HEAD, None, None, Seed(0))
    whole = torch.cat([HEAD["head.weight"], HEAD["head.bias"][:, None]], dim=1)
    assert wire.parts == (hgc(8).code(whole, Seed(0).fold(0))[0],)
    assert len(hgc(8).encode(PARAMS, None, None, Seed(0))[0].parts) == len(PARAMS)


def test_only_the_field_is_coded():
    wire, _ = on("gradient", sign()).encode(Upload(PARAMS, HEAD, 5), None, None, Seed(0))
    assert wire.delta is PARAMS
    assert isinstance(wire.gradient, Coded)
    nested = on("a.gradient", sign()).encode({"a": Upload(PARAMS, HEAD), "b": 1}, None, None, Seed(0))[0]
    assert isinstance(nested["a"].gradient, Coded)
    two = together(on("delta", half()), on("gradient", error_feedback(top_k(0.5))))
    for found in frames(two, Upload(PARAMS, HEAD, 5), None):
        assert torch.allclose(found.delta["a.weight"], PARAMS["a.weight"], atol=1e-2)
        assert sum(int((t == 0).sum()) for t in found.gradient.values()) >= 7


def test_error_feedback_sends_everything_in_the_end():
    """The sum of what arrived and of what is owed is the sum of what was given, at every step."""
    codec, memory = error_feedback(top_k(0.1)), None
    arrived = {n: torch.zeros_like(t) for n, t in HEAD.items()}
    for step in range(1, 40):
        wire, memory = codec.encode(HEAD, None, memory, Seed(step))
        arrived = {n: arrived[n] + t for n, t in codec.decode(wire, None).items()}
        owed = sub({n: step * t for n, t in HEAD.items()}, arrived)
        assert norm(sub(owed, memory.owed)) < 1e-3
    assert norm(sub({n: t / 39 for n, t in arrived.items()}, HEAD)) < 0.3 * norm(HEAD)


@pytest.mark.parametrize("codec", [*MATRIX_CODECS, *AROUND, on("a", sign(), like={"x": (2, 3)})], ids=repr)
def test_another_process_can_build_it(codec):
    assert build(describe(codec), trusted=()) == codec


# What cannot work


@pytest.mark.parametrize(
    ("codec", "message"),
    [
        (on("slop", hgc()), "no field 'slop' in Upload; it has delta, gradient, count"),
        (on("count", hgc()), "hgc codes matrices, but there is no float32 tensor in a value of type int"),
        (on("count.x", hgc()), "no field 'x' in int; it has no fields"),
        (chain(hgc(), half()), "half codes matrices, but there is no float32 tensor"),
        (lfsr(), "lfsr whitens bytes, but there are none"),
    ],
    ids=repr,
)
def test_a_combination_that_cannot_work_is_refused(codec, message):
    with pytest.raises(InputError, match=message):
        codec.encode(Upload(PARAMS), None, None, Seed(0))


@pytest.mark.parametrize(
    "make",
    [
        lambda: hgc(1),
        lambda: hgc(65),
        lambda: hgc(representative="mean"),
        lambda: hgc(lossless="zip"),
        lambda: hgc_rc(column_bits=0),
        lambda: hgc_legacy(10),
        lambda: top_k(0.0),
        lambda: random_k(1.5),
        lambda: uniform(0),
        lambda: qsgd(1),
        lambda: qsgd(4, block=0),
        lambda: half("float8"),
        lambda: power_sgd(0),
        lambda: chain(hgc()),
        lambda: chain(hgc(), on("a", half())),
        lambda: chain(hgc(), 3),
        lambda: error_feedback(3),
        lambda: on("", hgc()),
        lambda: on("a b", hgc()),
        lambda: on("a", 3),
        lambda: together(),
        lambda: together(hgc()),
        lambda: together(on("a", hgc()), on("a", half())),
        lambda: lfsr(0),
        lambda: lfsr(4, (4,)),
        lambda: lfsr(4, ()),
        lambda: lfsr(4, (1, 1)),
        lambda: lfsr(4, (3,), 16),
        lambda: lfsr(4, (3,), 0),
    ],
)
def test_wrong_settings_are_refused(make):
    with pytest.raises(InputError):
        make()


def test_coded_tensors_may_not_ask_for_memory_again_and_again(monkeypatch):
    """A few bytes each, and the whole model every time."""
    monkeypatch.setattr("fedquilt.pieces.codecs.matrices.MOST_TRAVELLING", 0)
    model = {"w": torch.ones(10, 10)}
    wire, _ = top_k(0.01).encode(model, model, None, Seed(0))
    assert len(top_k(0.01).decode([wire] * 16, model)) == 16
    with pytest.raises(FrameError, match="more entries in all than an upload may have"):
        top_k(0.01).decode([wire] * 17, model)


def test_a_layout_too_large_to_travel_is_refused():
    huge = torch.zeros(1).expand(2, MOST_TRAVELLING)
    with pytest.raises(InputError, match=r"on\(field, codec, like=...\)"):
        half().encode(huge, None, None, Seed(0))
