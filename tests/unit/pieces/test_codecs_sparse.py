"""The sparse wire: exact in every form, the smallest taken, sizes as by formula, and nothing believed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedquilt.core.params import Params
from fedquilt.core.seed import Seed
from fedquilt.core.select import chosen, marked
from fedquilt.errors import FrameError, InputError
from fedquilt.pieces.codecs import localized, on, sparse
from fedquilt.pieces.codecs.sparse_wire import FORMS, SparseWire
from fedquilt.records.record import pack, record, unpack

SEED = Seed(0)


@record
class Sent:
    """A download."""

    shared: Params
    keep: float = 0.5


def change(count: int, kept: int, seed: int = 0) -> Params:
    draw = Seed(seed).numpy()
    flat = np.zeros(count, dtype=np.float32)
    places = draw.choice(count, kept, replace=False)
    flat[places] = draw.normal(size=kept)
    half = count // 3
    return {"a": torch.from_numpy(flat[:half]), "b": torch.from_numpy(flat[half:].reshape(-1, 1))}


def trip(codec: Any, delta: Params) -> tuple[SparseWire, Params]:
    sent = Sent(delta)
    wire, memory = codec.encode(delta, sent, None, SEED)
    assert memory is None
    arrived = unpack(pack(wire))
    return arrived, codec.decode(arrived, sent)


def same_bits(a: Params, b: Params) -> None:
    assert list(a) == list(b)
    for name in a:
        assert a[name].shape == b[name].shape
        assert torch.equal(a[name].view(torch.int32), b[name].view(torch.int32))


@st.composite
def changes(draw: st.DrawFn) -> Params:
    numbers = st.one_of(st.just(0.0), st.just(-0.0), st.floats(-(2.0**90), 2.0**90, width=32))
    first, second = (draw(st.lists(numbers, min_size=0, max_size=30)) for _ in range(2))
    return {"a": torch.tensor(first, dtype=torch.float32), "b": torch.tensor(second, dtype=torch.float32)}


@settings(max_samples=80, deadline=None)
@given(changes())
def test_every_form_is_exact_and_the_smallest_is_taken(delta: Params) -> None:
    sizes = {}
    for form in FORMS:
        wire, found = trip(sparse(form=form), delta)
        assert wire.form == form
        same_bits(found, delta)
        sizes[form] = len(wire.places) + len(wire.numbers)
    wire, found = trip(sparse(), delta)
    same_bits(found, delta)
    assert len(wire.places) + len(wire.numbers) == min(sizes.values())


@settings(max_samples=60, deadline=None)
@given(changes(), st.sampled_from(["fp16", "sign"]))
def test_coarse_values_keep_the_choice_and_repeat_themselves(delta: Params, values: str) -> None:
    """Who was chosen survives; a second exchange of what came changes nothing more, for half precision."""
    _, found = trip(sparse(values=values), delta)  # type: ignore[arg-type]
    mask, before = chosen(found), chosen(delta)
    assert all(torch.equal(mask[n], before[n]) for n in mask)
    if values == "fp16":
        same_bits(trip(sparse(values="fp16"), found)[1], found)
        largest = max((float(t.abs().max()) for t in delta.values() if t.numel()), default=0.0)
        for name, tensor in delta.items():
            assert bool(((found[name] - tensor).abs() <= 2**-11 * tensor.abs() + 2**-37 * largest).all())


def test_signs_with_the_mean_size_of_each_tensor() -> None:
    delta = {"a": torch.tensor([0.0, 1.0, -3.0]), "b": torch.tensor([0.5, 0.0])}
    _, found = trip(sparse(values="sign"), delta)
    assert found["a"].tolist() == [0, 2, -2]
    assert found["b"].tolist() == [0.5, 0]


@pytest.mark.parametrize("keep", [0.99, 31 / 32, 0.9657, 0.95, 0.5, 0.1, 0.05, 0.01])
def test_sizes_follow_the_formulas(keep: float) -> None:
    """At P = 10^6, within 1 %."""
    count = 10**6
    delta = change(count, int(keep * count))
    kept = int(keep * count)
    entropy = -(keep * math.log2(keep) + (1 - keep) * math.log2(1 - keep))
    bits = {
        "dense": 32 * count,
        "bitmap": count + 32 * kept,
        "coded": count * entropy + 32 * kept,
        "index": kept * (math.ceil(math.log2(count)) + 32),
    }
    for form, expected in bits.items():
        codec = sparse(form=form)  # type: ignore[arg-type]
        wire = codec.encode(delta, Sent(delta), None, SEED)[0]
        assert 8 * (len(wire.places) + len(wire.numbers)) == pytest.approx(expected, rel=0.01), form
        assert len(pack(wire)) - len(wire.places) - len(wire.numbers) < 1000  # what a frame adds
    signs = sparse(values="sign", form="coded").encode(delta, Sent(delta), None, SEED)[0]
    assert 8 * (len(signs.places) + len(signs.numbers)) == pytest.approx(count * entropy + kept, rel=0.01)
    assert trip(sparse(), delta)[0].form in ("coded", "bitmap" if keep == 0.5 else "coded")


def test_the_worked_wire() -> None:
    delta = {"w": torch.tensor([0.4, 0, 0, 0.2, -0.8, 0]), "b": torch.tensor([0.3, 0])}
    wire, _ = trip(sparse(form="bitmap"), delta)
    assert 8 * (len(wire.places) + len(wire.numbers)) == 136
    wire, _ = trip(sparse(form="dense"), delta)
    assert 8 * (len(wire.places) + len(wire.numbers)) == 256


def test_localized_takes_its_density_from_the_download() -> None:
    delta = {"w": torch.tensor([1.0, -4, 2, 3]), "bn.running_mean": torch.ones(2), "n": torch.tensor(3)}
    codec = on("delta", localized(keep=None))
    wire, _ = codec.encode({"delta": delta}, Sent(delta, 0.5), None, SEED)
    found = codec.decode(unpack(pack(wire)), Sent(delta, 0.5))["delta"]
    assert found["w"].tolist() == [0, -4, 0, 3]
    assert found["bn.running_mean"].tolist() == [1, 1]
    assert int(found["n"]) == 3
    wire, _ = localized(keep=0.25).encode(delta, Sent(delta), None, SEED)
    assert localized(keep=0.25).decode(wire, Sent(delta))["w"].tolist() == [0, -4, 0, 0]
    with pytest.raises(InputError, match="no keep"):
        localized(keep=None).encode(delta, None, None, SEED)


def test_localized_in_each_tensor_and_with_a_jittered_threshold() -> None:
    delta = {"large": torch.arange(1, 101) * 100.0, "small": torch.arange(1, 101) * 1.0}
    wire, _ = localized(keep=0.1, per="tensor").encode(delta, Sent(delta), None, SEED)
    found = chosen(localized(per="tensor").decode(wire, Sent(delta)))
    assert [int(m.sum()) for m in found.values()] == [10, 10]
    kept = {localized(keep=0.1, noise=1.0).encode(delta, Sent(delta), None, Seed(i))[0].kept for i in range(5)}
    assert len(kept) > 1


def test_a_chosen_zero_stays_chosen() -> None:
    delta = {"w": torch.tensor([0.0, 1.0, 0.0])}
    kept = marked(delta, {"w": torch.tensor([True, True, False])})
    for form in FORMS:
        found = trip(sparse(form=form), kept)[1]  # type: ignore[arg-type]
        assert chosen(found)["w"].tolist() == [True, True, False]
        assert found["w"].tolist() == [0, 1, 0]


DELTA = change(400, 60)
SOUND = sparse().encode(DELTA, Sent(DELTA), None, SEED)[0]


@pytest.mark.parametrize(
    "damage",
    [
        {"form": "zip"},
        {"values": "fp8"},
        {"kept": -1},
        {"kept": 10**9},
        {"kept": 59},
        {"kept": True},
        {"step": 10**6},
        {"step": 0},
        {"places": b""},
        {"places": SOUND.places + b"\xff"},
        {"numbers": SOUND.numbers[:-1]},
        {"scales": b"1"},
        {"layout": 7},
        {"layout": b""},
        {"rest": {"c": torch.zeros(1)}},
        {"form": "dense"},
        {"form": "bitmap"},
        {"form": "index"},
    ],
)
def test_what_cannot_be_is_refused(damage: dict[str, Any]) -> None:
    assert SOUND.form == "coded"
    with pytest.raises((FrameError, InputError)):
        sparse().decode(replace(SOUND, **damage), Sent(DELTA))


def test_bad_settings_are_refused() -> None:
    with pytest.raises(InputError, match="values must be one of"):
        sparse(values="fp8")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="form must be"):
        sparse(form="zip")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"in \(0, 1\]"):
        localized(keep=2.0)
    with pytest.raises(InputError, match="float32"):
        sparse().encode({"w": torch.zeros(2, dtype=torch.float64)}, None, None, SEED)
    with pytest.raises(InputError, match="every number"):
        sparse(values="sign", form="dense").encode(DELTA, Sent(DELTA), None, SEED)
