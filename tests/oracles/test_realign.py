"""Realigned heads against worked numbers (fedloge.md, O6)."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from fedquilt.errors import InputError
from fedquilt.pieces.realign import Head, Realign, local, masked
from helpers.near import close

T = torch.tensor

G = Head(T([[3.0, 4.0], [1.0, 0.0], [0.0, 2.0]]), T([0.1, -0.1, 0.0]))
L = Head(T([[0.0, 2.0], [3.0, 4.0], [0.6, 0.8]]), T([0.05, 0.0, -0.05]))
F12, KNOWN = T([[1.0, 0.5], [0.2, 1.0]]), T([0, 5, 7]) > 0


def test_o6_global():
    found = Realign().whole(G)
    close(found.weight, [[1.02, 1.36], [1.7, 0.0], [0.0, 1.7]])
    close(found(F12), [[1.8, 1.6, 0.85], [1.664, 0.24, 1.7]])
    assert found(F12).argmax(1).tolist() == [0, 2]
    assert G(F12).argmax(1).tolist() == [0, 0]
    close(found.weight.norm(dim=1), torch.full((3,), 1.7))
    close(Realign().whole(found).weight, found.weight)  # idempotent
    close(Realign(tau=0.0).whole(G).weight, G.weight)
    close(Realign(scale_bias=True).whole(G).bias, [0.1 * 1.7 / 5, -0.1 * 1.7, 0.0])
    zero = Head(torch.zeros(2, 2), T([1.0, 2.0]))
    assert torch.equal(Realign(scale_bias=True).whole(zero).weight, zero.weight)
    assert torch.equal(Realign(scale_bias=True).whole(zero).bias, zero.bias)


def test_o6_personal():
    close(local(G, L).weight, [[6.0, 8.0], [5.0, 0.0], [0.0, 2.0]])
    expected = {
        "readme": ([[15.15, 5.9, 1.95], [13.95, 1.1, 3.95]], [1, 2]),
        "code": ([[11.15, 9.9, 1.95], [11.35, 5.5, 2.87]], [1, 1]),
        "sum": ((L(F12) + G(F12)).tolist(), None),
    }
    for kind, (scores, answers) in expected.items():
        found = Realign(personal=kind).own(G, L)(F12)
        close(found, scores, 1e-5)
        if answers is not None:
            assert masked(found, KNOWN).argmax(1).tolist() == answers
            assert found.argmax(1).tolist() == [0, 0]


def test_o6_the_bug_of_filling_weights():
    """A row of -1e10 in the weights: f = [-1, .5] gives class 0 the score +1e10 and f = 0 answers it by its bias."""
    f = T([[-1.0, 0.5], [0.0, 0.0]])
    filled = Realign().own(G, L)
    wrong = filled._replace(weight=torch.cat([torch.full((1, 2), -1e10), filled.weight[1:]]))
    assert wrong(f)[0, 0] > 4e9
    assert wrong(f).argmax(1).tolist() == [0, 0]
    assert masked(filled(f), KNOWN).argmax(1).tolist() == [2, 2]


def test_absent_classes_are_never_answered():
    """For any features, precision and bias; and views leave what they are made of as it is."""
    draw = torch.Generator().manual_seed(0)
    general, own = (Head(torch.randn(5, 8, generator=draw), torch.randn(5, generator=draw) * 50) for _ in range(2))
    before = [t.clone() for t in (*general, *own)]
    here = T([True, False, True, False, True])
    for kind in ("readme", "code", "sum"):
        head = Realign(personal=kind).own(general, own)
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            f = (torch.randn(500, 8, generator=draw) * 100).to(dtype)
            answers = masked(Head(head.weight.to(dtype), head.bias.to(dtype))(f), here).argmax(1)
            assert set(answers.tolist()) <= {0, 2, 4}
    Realign(scale_bias=True).whole(general)
    assert all(torch.equal(a, b) for a, b in zip(before, (*general, *own), strict=True))
    assert torch.equal(masked(F12, T([False, False])), F12)


def test_realigned_rows_are_parallel_to_the_global_ones():
    found = local(G, L).weight
    close(F.cosine_similarity(found, G.weight), torch.ones(3))
    close(found.norm(dim=1), G.weight.norm(dim=1) * L.weight.norm(dim=1), 1e-5)


def test_impossible_realignments():
    for options in ({"kappa": 0.0}, {"tau": -1.0}, {"personal": "both"}, {"kappa": math.inf}):
        with pytest.raises(InputError):
            Realign(**options)
