"""Algebra on named tensors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import tensor

from fedquilt.core.params import (
    Mean,
    Parts,
    add,
    cosine,
    dot,
    everything,
    everything_but,
    finite,
    flatten,
    lerp,
    nbytes,
    norm,
    nothing,
    numel,
    pick,
    same_names,
    scale,
    sub,
    under,
    weighted_mean,
    zeros_like,
)
from fedquilt.errors import InputError

A = {"w": tensor([1.0, 2.0]), "n": tensor(3), "on": tensor([True, False])}
B = {"w": tensor([3.0, 5.0]), "n": tensor(4), "on": tensor([True, True])}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(t, b[n]) and t.dtype == b[n].dtype for n, t in a.items())


def test_add_undoes_sub_for_every_kind_of_number():
    """b = a + (b - a), also for counters and for truth values, whose change is exclusive or."""
    assert same(sub(B, A), {"w": tensor([2.0, 3.0]), "n": tensor(1), "on": tensor([False, True])})
    assert same(add(A, sub(B, A)), B)


def test_scale_zeros_and_lerp_leave_whole_numbers_alone():
    assert same(scale(A, 2.0), {**A, "w": tensor([2.0, 4.0])})
    assert same(lerp(A, B, 0.5), {**A, "w": tensor([2.0, 3.5])})
    assert same(zeros_like(A), {"w": tensor([0.0, 0.0]), "n": tensor(0), "on": tensor([False, False])})


def test_add_with_a_scale_keeps_every_dtype():
    """A counter that became a float would be refused by the next upload's check."""
    moved = add(A, B, scale=0.5)
    assert torch.equal(moved["w"], tensor([2.5, 4.5]))
    assert {n: t.dtype for n, t in moved.items()} == {n: t.dtype for n, t in A.items()}


def test_dot_norm_and_cosine_by_hand():
    """(3, 4).(4, 3) = 24, |(3, 4)| = 5, cosine = 24 / 25; the angle to zero is none."""
    a, b = {"x": tensor([3.0]), "y": tensor([4.0])}, {"x": tensor([4.0]), "y": tensor([3.0])}
    assert (dot(a, b), norm(a), cosine(a, b)) == (24.0, 5.0, 24 / 25)
    assert cosine(a, zeros_like(a)) == 0.0


def test_dot_is_summed_in_float64():
    """2^24 + 1 is no float32: summed in float32 the one would be lost."""
    a = {"x": tensor([2.0**12, 1.0])}
    assert dot(a, a) == 2.0**24 + 1


def test_flatten_numel_and_nbytes():
    """w is 2 floats of 4 bytes, n one integer of 8, on 2 truth values of 1: 5 numbers, 18 bytes."""
    assert torch.equal(flatten(A), tensor([1.0, 2.0]))
    assert flatten({"n": tensor(1)}).numel() == 0
    assert (numel(A), nbytes(A)) == (5, 18)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_finite_finds_one_bad_number(bad):
    assert not finite([torch.ones(5), tensor([1.0, bad]), tensor(3)])


def test_finite_is_not_fooled_by_a_sum_that_overflows():
    """|x|_1 = 3 * 2e38 is beyond float32, 3 * 6e4 beyond float16; every entry is finite all the same."""
    assert finite([torch.full((3,), 2e38), torch.full((3,), 6e4, dtype=torch.float16)])
    assert finite([])
    assert finite([tensor(3), torch.zeros(0)])


def test_mean_by_hand():
    """(1 * 1 + 3 * 3) / 4 = 2.5; the counter is the largest, never a mean; truth is 'any'."""
    got = weighted_mean([(1, A), (3, {**B, "w": tensor([3.0, 2.0])})])
    assert same(got, {"w": tensor([2.5, 2.0]), "n": tensor(4), "on": tensor([True, True])})


def test_mean_sums_in_float64():
    """(2^24 + 1 + 1) / 2 = 2^23 + 1. In float32, 2^24 + 1 = 2^24 and the mean would be 2^23."""
    total = Mean()
    for value in (2.0**24, 1.0, 1.0):
        total.add({"w": tensor([value])}, 1)
    total.weight = 2.0
    assert total.value()["w"].tolist() == [2.0**23 + 1]
    assert total.value()["w"].dtype == torch.float32


def test_mean_sums_in_the_order_of_arrival():
    """In float64, 1e16 + 1 - 1e16 = 0 but 1e16 - 1e16 + 1 = 1: the order is part of the result."""

    def mean(*values):
        return weighted_mean([(1.0, {"w": tensor([v], dtype=torch.float64)}) for v in values])["w"].item() * 3

    assert (mean(1e16, 1.0, -1e16), mean(1e16, -1e16, 1.0)) == (0.0, 1.0)


@pytest.mark.parametrize("length", [70_001, 400_001])
def test_mean_of_long_tensors_is_that_of_one_sum_after_another(length):
    """Long operands are added piece by piece, four at a time: to the last bit what adding each at once gives."""
    draw = torch.Generator().manual_seed(0)
    operands = [torch.randn(length, generator=draw).view(1, -1) * 10.0**n for n in range(-3, 4)]
    operands[5] = torch.stack([operands[5], operands[5]], dim=-1)[..., 0]  # the same numbers in another layout
    assert not operands[5].is_contiguous()
    total = operands[0].double() * 2
    for number, operand in enumerate(operands[1:], 3):
        total += operand.double() * number
    found = weighted_mean([(n, {"w": o}) for n, o in enumerate(operands, 2)])["w"]
    assert torch.equal(found, (total / sum(range(2, 9))).float())


def test_long_operands_of_other_shapes_and_layouts():
    """They are added as they would be alone: in their order, or refused."""
    draw = torch.Generator().manual_seed(0)
    first = torch.randn(4, 20, 20, 30, generator=draw).contiguous(memory_format=torch.channels_last)
    others = [torch.randn(4, 20, 20, 30, generator=draw) * 10.0**n for n in range(3)]
    total = first.double()
    for other in others:
        total = total + other.double()
    found = weighted_mean([(1, {"w": first}), *((1, {"w": o}) for o in others)])["w"]
    assert torch.equal(found, (total / 4).float())
    grown = others[0].clone().requires_grad_()
    with torch.no_grad():
        assert torch.equal(
            weighted_mean([(1, {"w": o}) for o in (others[1], grown, grown)])["w"],
            weighted_mean([(1, {"w": o}) for o in (others[1], others[0], others[0])])["w"],
        )
    learned = torch.ones(400_000, requires_grad=True)
    weighted_mean([(1, {"w": learned}), (3, {"w": learned})])["w"].sum().backward()
    assert torch.equal(learned.grad, torch.ones(400_000))
    for shapes in (((200, 300), (300, 200)), ((2, 32768), (3, 32768))):
        with pytest.raises(RuntimeError, match="size"):
            weighted_mean([(1, {"w": torch.ones(shape)}) for shape in shapes])


def test_mean_of_nothing_is_empty_and_inputs_are_untouched():
    assert Mean().value() == {}
    a, b = {n: t.clone() for n, t in A.items()}, {n: t.clone() for n, t in B.items()}
    weighted_mean([(1, a), (2, b)])
    assert same(a, A)
    assert same(b, B)


@given(
    st.lists(st.tuples(st.integers(1, 1000), st.floats(-100, 100, width=32)), min_size=1, max_size=8),
    st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
)
def test_mean_lies_between_its_operands(pairs, dtype):
    operands = [(weight, {"w": tensor([value], dtype=dtype)}) for weight, value in pairs]
    got, values = weighted_mean(operands)["w"], torch.cat([p["w"] for _, p in operands])
    slack = 1e-9 * (1 + float(values.double().abs().max()))
    assert got.dtype == dtype
    assert float(values.min()) - slack <= float(got) <= float(values.max()) + slack


def test_names_are_chosen_by_whole_parts():
    """under('head') holds head and head.weight but not header.weight."""
    names = ["head", "head.weight", "header.weight", "body.head"]
    assert [under("head")(n) for n in names] == [True, True, False, False]
    assert [everything_but(under("head", "body"))(n) for n in names] == [False, False, True, False]
    assert list(pick(under("b", "a"), {"a": tensor(1), "c": tensor(2), "b": tensor(3)})) == ["a", "b"]


def test_parts_cover_every_name_once():
    Parts().check(["a", "b"])
    Parts(everything_but(under("a")), under("a")).check(["a.w", "b"])
    with pytest.raises(InputError, match=r"'a\.w' in both parts"):
        Parts(everything, under("a")).check(["b", "a.w"])
    with pytest.raises(InputError, match=r"'b' in no part.*Add it to shared or private"):
        Parts(under("a"), nothing).check(["a.w", "b"])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"w": A["w"]}, r"missing \['n', 'on'\]"),
        ({**A, "x": A["n"]}, r"unexpected \['x'\]"),
        ({**A, "w": tensor([1.0])}, r"'w' should be \(2,\) torch.float32, got \(1,\)"),
        ({**A, "n": tensor(3.0)}, r"'n' should be \(\) torch.int64, got \(\) torch.float32"),
    ],
)
def test_same_names_says_what_differs(other, message):
    same_names(A, B)
    with pytest.raises(InputError, match=message):
        same_names(A, other, "upload")
