"""Realigned heads against worked numbers (fedloge.md, O6)."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from fedquilt.errors import InputError
from fedquilt.pieces.realign import Head, Heads, Realign, local, masked
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


def test_scores_adjusted_for_class_shares():
    """Counts 1, 8, 4 of 13: log 13 = 2.564949 is added to class 0, log(13 / 8) = .485508 to 1, log(13 / 4) = 1.178655
    to 2. f1 = [1, .5]: G gives [5.1, .9, 1], f2 = [.2, 1]: [4.7, .1, 2]."""
    found = Realign().adjusted(G, T([1, 8, 4]))
    assert torch.equal(found.weight, G.weight)
    close(found.bias, [2.664949, 0.385508, 1.178655])
    close(found(F12), [[7.664949, 1.385508, 2.178655], [7.264949, 0.585508, 3.178655]])
    close(Realign(prior_tau=0.5).adjusted(G, T([1, 8, 4])).bias, [0.1 + 1.282475, -0.1 + 0.242754, 0.589328])
    close(Realign(prior_tau=0.0).adjusted(G, T([1, 8, 4])).bias, G.bias)


def test_adjusting_turns_an_answer():
    """Scores [1, .8] of a common and a rare class, 90 and 10 rows: 1 + log(10/9) = 1.105361, .8 + log 10 = 3.102585."""
    head, f = Head(T([[1.0], [0.8]]), torch.zeros(2)), torch.ones(1, 1)
    found = Realign().adjusted(head, T([90, 10]))(f)
    close(found, [[1.105361, 3.102585]])
    assert (int(head(f).argmax()), int(found.argmax())) == (0, 1)
    even = Realign().adjusted(head, T([50, 50]))(f)  # equal shares: log 2 for both
    close(even, head(f) + math.log(2))


def test_a_class_that_nobody_has_is_as_the_rarest():
    """Counts 0, 6, 2 of 8: log 4 for the classes 0 and 2, log(8/6) = .287682 for 1. Nobody has anything: as it was."""
    close(Realign().adjusted(G, T([0, 6, 2])).bias, [0.1 + math.log(4), -0.1 + 0.287682, math.log(4)])
    assert torch.equal(Realign().adjusted(G, T([0, 0, 0])).bias, G.bias)
    half = Head(G.weight.half(), G.bias.half())
    assert Realign().adjusted(half, T([0, 6, 2])).bias.dtype == torch.float16


def test_views_by_name():
    counts = T([1, 8, 4])
    heads = Heads({}, G, L, fixed=Head(L.weight, torch.zeros(3)))
    found = Realign().views(heads, counts)
    assert list(found) == ["universal", "plain", "realigned", "universal_adjusted", "adjusted"]
    close(found["universal_adjusted"].bias, [2.564949, 0.485508, 1.178655])
    assert torch.equal(found["universal_adjusted"].weight, L.weight)
    close(found["adjusted"].bias, Realign().adjusted(G, counts).bias)
    assert list(Realign().views(heads)) == ["universal", "plain", "realigned"]
    assert list(Realign().views(heads._replace(fixed=None), counts)) == ["plain", "realigned", "adjusted"]


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
    for options in ({"kappa": 0.0}, {"tau": -1.0}, {"personal": "both"}, {"kappa": math.inf}, {"prior_tau": -1.0}):
        with pytest.raises(InputError):
            Realign(**options)
