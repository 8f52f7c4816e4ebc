"""Bytes from new clients: a frame is refused with FrameError, or gives a record; nothing else can happen."""

from __future__ import annotations

import json
import time
import tracemalloc
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedquilt.errors import FrameError, InputError
from fedquilt.records.compact import MAGIC
from fedquilt.records.limits import DEPTH, Limits, upload_limits
from fedquilt.records.record import pack, record, tensors_in, unpack
from helpers.frames import resealed, sealed


@record
class Memo:
    words: Any
    numbers: Any


SMALL = pack(Memo(("x", 1.5, b"hi"), {"a": torch.tensor([1.0, 2.0]), "n": torch.tensor([[3], [4]])}))
COMPACT = pack(unpack(SMALL), compact=True)
SCALARS = (bool, int, float, str, bytes, type(None), torch.Tensor)


def well_typed(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(well_typed, value))
    if isinstance(value, dict):
        return all(well_typed(k) and well_typed(v) for k, v in value.items())
    if is_dataclass(value):
        return all(well_typed(getattr(value, f.name)) for f in fields(value))
    return isinstance(value, SCALARS)


def survives(frame: bytes) -> bool:
    """Whether the frame was decoded; then it must be well-typed and hold no more than came in."""
    try:
        value = unpack(frame)
    except FrameError:
        return False
    assert well_typed(value)
    assert sum(t.numel() * t.element_size() for t in tensors_in(value)) <= len(frame)
    return True


def made(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    return len(text).to_bytes(8, "little") + text + data


def tree(node: Any, data: bytes = b"", **entries: Any) -> bytes:
    return made({"__metadata__": {"fedquilt": json.dumps(node)}, **entries}, data)


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_the_helper_makes_good_frames():
    assert unpack(tree({"T": "a"}, bytes(8), a=entry())).tolist() == [0, 0]


both = pytest.mark.parametrize("small", [SMALL, COMPACT], ids=["safetensors", "compact"])


@both
def test_every_truncation_is_refused(small):
    assert not any(survives(small[:n]) for n in range(len(small)))
    assert not survives(small + b"\0")


def flipped(small: bytes) -> int:
    """How many of all flipped bits give a record."""
    decoded = 0
    for place in range(len(small)):
        for bit in range(8):
            broken = bytearray(small)
            broken[place] ^= 1 << bit
            decoded += survives(bytes(broken))
    return decoded


@both
def test_every_flipped_bit_is_refused(small):
    assert flipped(small) == 0


@both
def test_every_pair_of_flipped_bits_in_the_first_bytes_is_refused(small):
    """Where a frame says what it is and where its checksum stands."""
    for one in range(8 * 40):
        for other in range(one):
            broken = bytearray(small)
            for bit in (one, other):
                broken[bit // 8] ^= 1 << bit % 8
            assert not survives(bytes(broken))


@both
def test_flips_with_a_checksum_made_anew_are_refused_or_give_a_record(small):
    """A checksum is for accidents; who makes it anew meets the other checks."""
    for place in range(8 * len(small)):
        broken = bytearray(small)
        broken[place // 8] ^= 1 << place % 8
        survives(resealed(bytes(broken)))


def test_frames_without_a_checksum_are_read_if_they_are_safetensors():
    """What is stored under its hash, and what earlier versions stored."""
    plain = pack(unpack(SMALL), checksum=False)
    assert b"crc32" not in plain
    assert pack(unpack(plain)) == SMALL
    assert not survives(b"\xf3\x51" + COMPACT[2:-4])  # messages of earlier versions are refused


@pytest.mark.parametrize("tag", [3, 6, 9, 11, 12])
def test_a_number_of_more_than_ten_bytes_is_refused_at_once(tag):
    began = time.process_time()
    with pytest.raises(FrameError, match="more than 10 bytes"):
        unpack(sealed(MAGIC + bytes([tag]) + b"\xff" * 400_000 + b"\1"))
    assert time.process_time() - began < 1  # it took seconds when its length was not bounded


def test_numbers_beyond_64_bits_do_not_travel():
    assert unpack(pack([2**64 - 1, -(2**64) + 1], compact=True)) == [2**64 - 1, -(2**64) + 1]
    with pytest.raises(InputError, match="of 65 bits"):
        pack(2**64, compact=True)


@pytest.mark.parametrize("compact", [True, False])
def test_values_names_and_depth_are_limited(compact):
    few = Limits(nodes=1000, compact=compact)
    assert len(unpack(pack([0] * 900, compact), limits=few)) == 900
    for many in ([0] * 1001, {f"t{n}": torch.zeros(0) for n in range(501)}, dict.fromkeys(range(501))):
        with pytest.raises(FrameError, match="more than 1,000 values, names and tensors"):
            unpack(pack(many, compact), limits=few)
    deep: Any = 0
    for _ in range(DEPTH):
        deep = [deep]
    assert unpack(pack(deep, compact)) == deep
    with pytest.raises(FrameError, match="too deep"):
        unpack(pack([deep], compact))


def test_a_frame_that_is_too_long_or_too_late_is_refused():
    with pytest.raises(FrameError, match="at most 100 are allowed"):
        unpack(pack(bytes(100), compact=True), limits=Limits(size=100))
    with pytest.raises(FrameError, match="late"):
        unpack(pack([0] * 9000, compact=True), limits=Limits(until=time.monotonic() - 1))


@both
def test_limits_hold_for_a_header_that_was_read_before(small):
    assert survives(small)
    with pytest.raises(FrameError, match="more than 3 values"):
        unpack(small, limits=Limits(nodes=3, compact=False))


def test_where_limits_are_the_header_of_a_safetensors_frame_is_not_even_read():
    """It is JSON, which is read as a whole: 20 MB of it took a second and 600 MB of memory, whatever the limits."""
    frame = pack([0] * 3_000_000, checksum=False)
    began = time.process_time()
    with pytest.raises(FrameError, match="not a compact frame"):
        unpack(frame, limits=upload_limits(0, None, 0.5))
    assert time.process_time() - began < 0.2


def test_keys_that_collide_are_refused():
    """hash(-1) == hash(-2): all tuples of them have one hash, and a dict of them takes a quadratic time."""
    keys = [tuple(-1 - (n >> bit & 1) for bit in range(9)) for n in range(512)]
    assert len(set(map(hash, keys))) == 1
    with pytest.raises(FrameError, match="collide"):
        unpack(pack(dict.fromkeys(keys), compact=True))


LIES_IN_FEW_BYTES = {
    "only magic": MAGIC,
    "unknown tag": MAGIC + bytes([99]),
    "unknown record": MAGIC + bytes([13, 1, 2, 3, 4]),
    "a vast tensor": MAGIC + bytes([8, 0x11, 0xFF, 0xFF, 0xFF, 0x7F]),
    "a vast empty tensor": MAGIC + bytes([8, 0x12, 0, *[0xFF] * 9, 0x7F]),
    "unknown dtype": MAGIC + bytes([8, 0xF0]),
    "a vast tuple": MAGIC + bytes([9, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F]),
    "a vast text": MAGIC + bytes([6, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F]),
    "text that is none": MAGIC + bytes([6, 1, 0xFF]),
    "a list as a key": MAGIC + bytes([11, 1, 10, 0, 0]),
    "a name twice": MAGIC + bytes([12, 2, 1, 97, 0x80, 1, 97, 0x80]) + bytes(2),
    "a number too long": MAGIC + bytes([3, 0x80, 0x80, 0]),
    "a small number in a long form": MAGIC + bytes([3, 5]),
    "filling that is not zero": pack(torch.ones(2), compact=True)[:5] + b"\1\0\0" + bytes(8),
    "bytes left over": pack(3, compact=True)[:-4] + b"\0",
    "deep": MAGIC + bytes([9, 1]) * 100_000 + b"\0",
    "a tensor of many sides": MAGIC + bytes([8, 0x1F, 65]) + bytes(65),
}


@pytest.mark.parametrize("frame", LIES_IN_FEW_BYTES.values(), ids=LIES_IN_FEW_BYTES)
def test_a_lie_in_a_compact_frame_is_refused(frame):
    with pytest.raises(FrameError) as refused:
        unpack(sealed(frame))
    assert "checksum" not in str(refused.value)


@given(st.binary(max_size=60))
@settings(max_samples=500)
def test_any_compact_bytes_are_refused_or_give_a_record(data):
    survives(sealed(MAGIC + data))


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 10**12, len(SMALL) - 7])
def test_a_header_longer_than_the_frame_is_refused_without_allocating(length):
    frame = resealed(length.to_bytes(8, "little") + SMALL[8:])
    tracemalloc.start()
    try:
        with pytest.raises(FrameError, match=f"claims {length} bytes"):
            unpack(frame)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


LIES = {
    "shape too large": tree({"T": "a"}, bytes(8), a=entry(shape=[3])),
    "shape enormous": tree({"T": "a"}, bytes(8), a=entry(shape=[2**40, 2**40])),
    "shape negative": tree({"T": "a"}, bytes(8), a=entry(shape=[-1, -2])),
    "shape of floats": tree({"T": "a"}, bytes(8), a=entry(shape=[2.0])),
    "shape of truths": tree({"T": "a"}, bytes(4), a=entry(shape=[True], offsets=[0, 4])),
    "dtype wider": tree({"T": "a"}, bytes(8), a=entry(dtype="F64")),
    "dtype unknown": tree({"T": "a"}, bytes(8), a=entry(dtype="F128")),
    "dtype a list": tree({"T": "a"}, bytes(8), a=entry(dtype=["F32"])),
    "offsets beyond": tree({"T": "a"}, bytes(8), a=entry(offsets=[8, 16])),
    "offsets reversed": tree({"T": "a"}, bytes(8), a=entry(offsets=[8, 0])),
    "offsets negative": tree({"T": "a"}, bytes(8), a=entry(offsets=[-8, 0])),
    "offsets one": tree({"T": "a"}, bytes(8), a=entry(offsets=[0])),
    "offsets texts": tree({"T": "a"}, bytes(8), a=entry(offsets=["0", "8"])),
    "offsets vast": tree({"T": "a"}, bytes(8), a=entry(offsets=[0.0, 10**400])),
    "overlap": tree({"U": [{"T": "a"}, {"T": "b"}]}, bytes(8), a=entry(), b=entry()),
    "a hole": tree({"U": [{"T": "a"}, {"T": "b"}]}, bytes(24), a=entry(), b=entry(offsets=[16, 24])),
    "data left over": tree({"T": "a"}, bytes(9), a=entry()),
    "no dtype": tree({"T": "a"}, bytes(8), a={"shape": [2], "data_offsets": [0, 8]}),
    "entry a number": tree({"T": "a"}, a=3),
}


@pytest.mark.parametrize("frame", LIES.values(), ids=LIES)
def test_a_lie_about_a_tensor_is_found_before_any_tensor_is_made(frame, monkeypatch):
    def forbidden(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a tensor was made")

    monkeypatch.setattr(torch, "frombuffer", forbidden)
    monkeypatch.setattr(torch, "empty", forbidden)
    with pytest.raises(FrameError):
        unpack(frame)


KIND = f"{Memo.__module__}:{Memo.__qualname__}"
NONSENSE = {
    "empty": b"",
    "seven bytes": bytes(7),
    "no header": bytes(8),
    "not JSON": made(b"{"),
    "not text": made(b"\xff\xfe"),
    "a list": made([1]),
    "a number": made(3),
    "no metadata": made({}),
    "metadata null": made({"__metadata__": None}),
    "no tree": made({"__metadata__": {}}),
    "tree not JSON": made({"__metadata__": {"fedquilt": "{"}}),
    "tree a dict": made({"__metadata__": {"fedquilt": {"U": []}}}),
    "bare list": tree([1, 2]),
    "unknown node": tree({"Z": 1}),
    "empty node": tree({}),
    "missing tensor": tree({"T": "a"}),
    "tensor nobody wants": tree({"U": []}, bytes(8), a=entry()),
    "tensor used twice": tree({"U": [{"T": "a"}, {"T": "a"}]}, bytes(8), a=entry()),
    "unhashable key": tree({"D": [[{"L": []}, 1]]}),
    "pair of three": tree({"D": [[1, 2, 3]]}),
    "prefix a number": tree({"P": 3}),
    "float a word": tree({"F": "one"}),
    "float vast": tree({"F": 10**400}),
    "empty yet vast": tree({"T": "a"}, a=entry(shape=[0, 2**62, 2**62], offsets=[0, 0])),
    "empty beyond int64": tree({"T": "a"}, a=entry(shape=[0, 2**70], offsets=[0, 0])),
    "shape a text": tree({"T": "a"}, bytes(4), a=entry(shape="", offsets=[0, 4])),
    "unknown record": tree({"R": "os:system", "v": {"command": "true"}}),
    "record a list": tree({"R": [], "v": {}}),
    "field missing": tree({"R": KIND, "v": {"words": 1}}),
    "field too many": tree({"R": KIND, "v": {"words": 1, "numbers": 2, "more": 3}}),
    "fields a list": tree({"R": KIND, "v": ["numbers", "words"]}),
    "no fields": tree({"R": KIND}),
    "deep header": made(b"[" * 200_000),
    "deep text": made({"__metadata__": {"fedquilt": "[" * 200_000}}),
    "deep tree": made({"__metadata__": {"fedquilt": '{"U":[' * 5_000 + "]}" * 5_000}}),
}


@pytest.mark.parametrize("frame", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_is_refused(frame):
    with pytest.raises(FrameError):
        unpack(frame)


def test_the_error_says_what_is_wrong():
    with pytest.raises(FrameError, match="unknown record type 'os:system'"):
        unpack(NONSENSE["unknown record"])
    with pytest.raises(FrameError, match=r"has fields \['words', 'numbers'\], the frame has \['words'\]"):
        unpack(NONSENSE["field missing"])
    with pytest.raises(FrameError, match=r"tensors \['a'\] belong to nothing"):
        unpack(NONSENSE["tensor nobody wants"])


nodes = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("TPRULDFBvab"), inner, max_size=3),
    max_leaves=12,
)


@given(nodes, st.dictionaries(st.sampled_from("ab"), nodes, max_size=2), st.binary(max_size=16))
@settings(max_samples=300)
def test_any_tree_is_refused_or_gives_a_record(node, entries, data):
    survives(tree(node, data, **entries))
    survives(tree(node, bytes(8), a=entry()))
