"""Frames: what goes in comes out, as valid safetensors, sharing nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedquilt.errors import InputError
from fedquilt.records.record import frame_bytes, pack, pack_into, record, same, tensors_in, unpack

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]


@record
class Pair:
    left: Any
    right: Any


def bits(tensor: Tensor) -> list[int]:
    return tensor.contiguous().reshape(-1).view(torch.uint8).tolist() if tensor.numel() else []


def equal(a: Any, b: Any) -> bool:
    """The same types, values, bits and order, all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b)
    if is_dataclass(a):
        return all(equal(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    if isinstance(a, dict):
        return equal(list(a), list(b)) and equal(list(a.values()), list(b.values()))
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(equal, a, b))
    return repr(a) == repr(b)  # tells -0.0 from 0.0, and nan is nan


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    raw = draw(st.binary(min_size=8 * math.prod(shape), max_size=8 * math.prod(shape)))
    dtype = draw(st.sampled_from(DTYPES))
    numbers = torch.tensor(list(raw[: math.prod(shape)]), dtype=torch.uint8).view(shape)
    return (numbers > 127) if dtype == torch.bool else (numbers.to(dtype) / 7).to(dtype)


whole = st.integers(-(2**64) + 1, 2**64 - 1)
scalars = st.none() | st.booleans() | whole | st.floats() | st.text(max_size=5) | st.binary(max_size=5)
keys = st.text(max_size=3) | st.sampled_from(["a/b", "%", "%2F", "/", "", "1"]) | st.integers(-1, 1) | st.none()
trees = st.recursive(
    scalars | tensors(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys | st.tuples(keys, keys), inner, max_size=3)
        | st.dictionaries(keys, tensors(), max_size=3)
        | st.builds(Pair, inner, inner)
    ),
    max_leaves=8,
)


@pytest.mark.parametrize("compact", [False, True])
@given(trees)
@settings(max_samples=300, suppress_health_check=[HealthCheck.too_slow])
def test_unpack_undoes_pack(compact, tree):
    frame = pack(tree, compact)
    assert equal(unpack(frame), tree)
    assert pack(unpack(frame), compact) == frame  # so that the hash of a frame is the hash of its record
    assert frame_bytes(tree, compact) == len(frame)


@given(trees)
@settings(max_samples=100, suppress_health_check=[HealthCheck.too_slow])
def test_a_compact_frame_is_shorter(tree):
    assert len(pack(tree, compact=True)) < len(pack(tree))


@given(trees)
@settings(max_samples=100, suppress_health_check=[HealthCheck.too_slow])
def test_a_frame_is_a_valid_safetensors_file(tree):
    """Another reader finds the same tensors, by bytes; bytes objects are there as uint8."""
    found = safetensors.torch.load(pack(tree)).values()
    held = [*tensors_in(tree), *(torch.tensor(list(b), dtype=torch.uint8) for b in blobs(tree))]
    assert sorted(map(fingerprint, found)) == sorted(map(fingerprint, held))


def fingerprint(tensor: Tensor) -> tuple[str, list[int], list[int]]:
    return str(tensor.dtype), list(tensor.shape), bits(tensor)


def blobs(value: Any) -> list[bytes]:
    if isinstance(value, bytes):
        return [value]
    inner: list[Any] = []
    if isinstance(value, Pair):
        inner = [value.left, value.right]
    elif isinstance(value, tuple | list):
        inner = list(value)
    elif isinstance(value, dict):
        inner = list(value.values())
    return [b for v in inner for b in blobs(v)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("compact", [False, True])
def test_every_dtype_and_layout(dtype, compact):
    """A transposed and a strided view, a scalar and an empty tensor come back contiguous, aligned and equal."""
    whole = torch.arange(12).reshape(3, 4).to(dtype)
    value = {"t": whole.t(), "s": whole[:, ::2], "0": whole[1, 1], "e": whole[:0]}
    got = unpack(pack(value, compact))
    assert all(t.data_ptr() % t.element_size() == 0 for t in got.values())
    assert all(torch.equal(got[n], t) and got[n].dtype == dtype and got[n].is_contiguous() for n, t in value.items())


def test_nothing_is_aliased():
    """Neither the record nor the frame notices what is done to what was unpacked; two readings share nothing."""
    original = {"a": torch.zeros(3), "b": torch.ones(2)}
    frame = pack(original)
    one, two = unpack(frame), unpack(frame)
    one["a"].fill_(7)
    assert original["a"].tolist() == [0, 0, 0]
    assert two["a"].tolist() == unpack(frame)["a"].tolist() == [0, 0, 0]
    assert one["b"].tolist() == [1, 1]


def test_a_gradient_does_not_travel():
    weight = torch.ones(2, requires_grad=True)
    assert not unpack(pack(weight * 2)).requires_grad


def test_equal_records_give_equal_frames_whatever_their_layout():
    a = torch.arange(6.0).reshape(2, 3)
    assert pack(a) == pack(a.t().contiguous().t())
    assert pack({"a": a}) != pack({"b": a})


@dataclass(frozen=True)
class Unmarked:
    x: int = 0


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"deep": [Unmarked()]}, r"Unmarked at '/deep/0' is not a record\. Mark it with @record"),
        ((1, {2, 3}), "set at '/1' cannot be packed"),
        (Pair(0, np.zeros(2)), r"numpy array at '/right'.*torch\.from_numpy"),
        (torch.zeros(1, dtype=torch.complex64), "dtype torch.complex64"),
        (print, "builtin_function_or_method at 'top'"),
    ],
)
def test_what_cannot_be_packed_is_named_with_its_place(value, message):
    with pytest.raises(InputError, match=message):
        pack(value)


def test_numpy_scalars_and_bytearrays_become_plain_values():
    assert equal(unpack(pack([np.int64(3), np.float32(0.5), np.bool_(True), bytearray(b"x")])), [3, 0.5, True, b"x"])


def test_same_means_one_frame_serves_both():
    """Equal scalars and identical tensors; an equal copy of a tensor is not looked at."""
    t = torch.zeros(2)
    assert same(Pair({"a": t}, (1, "x")), Pair({"a": t}, (1, "x")))
    for left, right in (({"a": t.clone()}, (1, "x")), ({"a": t}, (2, "x")), ({"b": t}, (1, "x")), ({"a": t}, [1, "x"])):
        assert not same(Pair({"a": t}, (1, "x")), Pair(left, right))


LAYOUTS = {
    "turned": torch.randn(3, 5).t(),
    "channels last": torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last),
    "every other": torch.randn(4, 4)[::2],
    "bytes": torch.arange(5, dtype=torch.uint8),
    "empty": torch.zeros(0, 3),
    "one": torch.tensor(3.0),
    "learns": torch.randn(3, 2, requires_grad=True).t(),
    "short": torch.randn(6).bfloat16().view(2, 3).t(),
}


@pytest.mark.parametrize("room", [None, bytearray, lambda size: memoryview(bytearray(size))])
def test_a_frame_packed_into_memory_is_the_frame(room):
    assert bytes(pack_into(LAYOUTS, room)) == pack(LAYOUTS, compact=True)


def test_what_may_be_written_into_is_taken_over_and_what_may_not_is_copied():
    value = {"w": torch.arange(4.0)}
    for frame, taken in (
        (pack(value, compact=True), False),
        (memoryview(pack(value, compact=True)), False),
        (bytearray(pack(value)), True),
        (pack_into(value), True),
    ):
        before = bytes(frame)
        unpack(frame)["w"].add_(1.0)
        assert (bytes(frame) != before) is taken


@pytest.mark.parametrize("form", ["b", "c"])
def test_memory_in_other_forms_is_copied(form):
    value = {"w": torch.arange(4.0)}
    for packed in (pack(value), pack(value, compact=True)):
        found = unpack(memoryview(bytearray(packed)).cast(form))
        assert torch.equal(found["w"], value["w"])
        every_other = memoryview(bytearray(b"".join(bytes([b, 0]) for b in packed)))[::2]
        assert torch.equal(unpack(every_other)["w"], value["w"])


@pytest.mark.parametrize("compact", [False, True])
def test_views_of_memory_are_bytes(compact):
    raw = np.arange(12, dtype=np.float32).reshape(3, 4)
    for view in (memoryview(raw), memoryview(raw[:, ::2]), memoryview(raw.tobytes())[::2], memoryview(b"")):
        assert unpack(pack((view,), compact=compact)) == (view.tobytes(),)


def kept(module: str, name: str) -> type:
    """The same class as it would be in some module."""

    @record(name=name)
    class Kept:
        __module__ = module
        value: Any

    return Kept


@pytest.mark.parametrize("compact", [False, True])
def test_a_record_with_a_name_keeps_it_when_it_moves(compact: bool):
    frames = []
    for module in ("fedquilt.records.record", "fedquilt.core.table"):
        cls = kept(module, "fedquilt.old:Kept")
        frames.append(pack(cls([1, torch.ones(2)]), compact=compact))
        assert type(unpack(frames[0])) is cls
    assert frames[0] == frames[1]
    assert b"fedquilt.old:Kept" in pack(cls(1))


def test_two_records_cannot_have_one_name():
    kept("fedquilt.records.record", "fedquilt.old:Kept")
    with pytest.raises(InputError, match=r"Other has the name fedquilt\.old:Kept"):
        record(name="fedquilt.old:Kept")(type("Other", (), {}))
