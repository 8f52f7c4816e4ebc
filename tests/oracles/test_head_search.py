"""HGLS against numbers worked by hand (numpy) and against its own promises, piece by piece."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedquilt.core.seed import Seed
from fedquilt.errors import InputError
from fedquilt.pieces.head_search import FeatureRows, Found, HeadSearch, Line, cosine_step, head_gradient, loss

# Three rows with two features (and the 1 that goes with the bias), two classes, a head of zeros.
ROWS = FeatureRows(torch.tensor([[1, 0, 1], [0, 1, 1], [1, 1, 1]]).double(), torch.tensor([0, 1, 0]))
HEAD = torch.zeros(2, 3).double()
OWN = head_gradient(HEAD, ROWS)


def gradient(*first_row: float) -> Tensor:
    """The second row is minus the first."""
    row = torch.tensor(first_row).double()
    return torch.stack([row, -row])


A, B, CC, DD, Z = gradient(-1, 0, 0), gradient(1, 0, 0), gradient(-100, 0, -100), gradient(0, 1, 0), gradient(0, 0, 0)
E, F, H = gradient(-1, 1, 0), gradient(0, -1, -1), gradient(-1, 0, -1)


def search(*candidates: Tensor, **options: Any) -> Found:
    settings = {"order": "given", **options}
    return HeadSearch(**settings)(HEAD, OWN, candidates, ROWS, ROWS, Seed(0))


def close(found: float, expected: float) -> bool:
    return math.isclose(found, expected, abs_tol=5e-7)


def test_the_gradient_of_the_head():
    assert close(loss(ROWS.z @ HEAD.T, ROWS.y), 0.693147)
    assert torch.allclose(OWN, torch.tensor([[-1 / 3, 0, -1 / 6], [1 / 3, 0, 1 / 6]]).double())
    assert close(float(OWN.norm()), 0.527046)
    free = HEAD.clone().requires_grad_()
    (expected,) = torch.autograd.grad(torch.nn.functional.cross_entropy(ROWS.z @ free.T, ROWS.y), free)
    assert torch.allclose(OWN, expected)


def test_a_greedy_pass():
    """b, dd and z are no candidates, a is taken, cc is rejected, e is taken."""
    assert close(float((B * OWN).sum()), -0.666667)
    assert [round(cosine_step(g, OWN), 6) for g in (B, A, CC, DD, Z, E)] == [0, 0.894427, 0.948683, 0, 0, 0.632456]
    alone = search(A)
    assert close(alone.after, 0.334093)
    assert close(loss(ROWS.z @ (alone.head - cosine_step(CC, OWN) * CC).T, ROWS.y), 63.245553)
    found = search(B, A, CC, DD, Z, E)
    assert (found.candidates, found.aligned, found.taken) == (6, 3, 2)
    assert close(found.after, 0.149765)
    assert np.allclose(found.head[0], [1.526883, -0.632456, 0], atol=1e-6)
    assert np.allclose(found.head[1], -found.head[0])


def test_the_order_matters():
    assert close(search(F, E).after, 0.396801)
    assert close(search(E, F).after, 0.360502)


def test_without_a_candidate_that_helps_the_head_stays_as_it_is():
    for candidates in ((B, DD, Z), (H,), ()):
        found = search(*candidates)
        assert found.head is HEAD
        assert (found.taken, found.after) == (0, found.before)


def test_steps_of_other_lengths():
    """The cosine step along h raises the loss; the best one does not; half of it is the first that falls enough."""
    assert close(loss(-cosine_step(H, OWN) * ROWS.z @ H.T, ROWS.y), 0.693859)
    line = Line(ROWS.z @ HEAD.T, ROWS.z @ H.T, ROWS.y)
    assert close(line.minimum(1.0), 0.393279)
    assert close(search(H, step="exact").after, 0.512927)
    assert close(line.backtracked(0.948683), 0.948683 / 2)
    assert search(H, step="backtracking").taken == 1


def test_lines_that_rise_or_never_end():
    assert Line(ROWS.z @ HEAD.T, ROWS.z @ B.T, ROWS.y).minimum(1.0) == 0
    assert Line(ROWS.z @ HEAD.T, ROWS.z @ B.T, ROWS.y).backtracked(1.0) == 0
    endless = Line(ROWS.z @ HEAD.T, ROWS.z @ gradient(-2, 1, 0).T, ROWS.y)
    assert endless.minimum(1.0) > 10
    assert endless.minimum(1.0, most=3.0) == 3.0
    assert math.isfinite(search(gradient(-2, 1, 0), step="exact").after)


def test_the_joint_solution_is_the_minimum():
    """Its gradient is 0 along weights that are not 0 and does not fall along the others; no greedy order is better."""
    candidates = [A, E, F, H, B]
    found = search(*candidates, search="joint", ridge=0.01)

    def value(head: Tensor) -> float:
        return loss(ROWS.z @ head.T, ROWS.y) + 0.005 * float((head - HEAD).square().sum())

    for g in (A, E, F, H):
        assert value(found.head - 1e-3 * g) >= value(found.head) - 1e-9
    assert value(found.head) <= min(value(search(*order).head) for order in ((A, E, F, H), (E, F, A), (F, E, H)))
    assert (found.aligned, found.taken) == (4, 2)
    free, tied = (search(*candidates, search="joint", ridge=r) for r in (0.0, 1.0))
    assert free.after < found.after < tied.after < found.before
    assert float(free.head.norm()) > float(found.head.norm()) > float(tied.head.norm())


# Promises, on random problems.


def problem(seed: int, rows: int = 30, width: int = 6, classes: int = 4, peers: int = 8) -> Any:
    draw = torch.Generator().manual_seed(seed)
    z = torch.randn(rows, width, generator=draw).relu()
    y = torch.randint(0, classes, (rows,), generator=draw)
    head = torch.randn(classes, width, generator=draw) / 2
    own = head_gradient(head, FeatureRows(z, y))
    others = [0.3 * torch.randn(classes, width, generator=draw) + own * k / 4 for k in range(peers)]
    return head, own, others, FeatureRows(z, y)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "options", [{}, {"step": "exact"}, {"step": "backtracking"}, {"search": "joint"}, {"order": "aligned"}], ids=str
)
def test_the_loss_never_rises(seed: int, options: dict[str, Any]):
    head, own, others, rows = problem(seed)
    found = HeadSearch(**options)(head, own, others, rows, rows, Seed(seed))
    assert found.before == loss(rows.z @ head.T, rows.y)
    assert found.after == loss(rows.z @ found.head.T, rows.y)
    assert found.after < found.before
    assert 0 < found.taken <= found.aligned <= found.candidates == 8


@pytest.mark.parametrize("options", [{}, {"search": "joint"}], ids=str)
def test_a_gradient_that_points_elsewhere_changes_nothing(options: dict[str, Any]):
    head, own, others, rows = problem(1)
    aligned = [g for g in others if cosine_step(g, own) > 0]
    contrary = [-g for g in aligned] + [torch.zeros_like(own)]
    tried = HeadSearch(order="given", **options)
    with_them = tried(head, own, [*contrary, *aligned], rows, rows, Seed(0))
    assert torch.equal(with_them.head, tried(head, own, aligned, rows, rows, Seed(0)).head)
    assert tried(head, own, contrary, rows, rows, Seed(0)).head is head


def test_the_length_of_a_step():
    _, own, others, _ = problem(2)
    for g in others:
        assert 0 <= cosine_step(g, own) <= 1
        assert math.isclose(cosine_step(17.0 * g, own), cosine_step(g, own), rel_tol=1e-6)
    assert math.isclose(cosine_step(own, own), 1, rel_tol=1e-12)
    assert cosine_step(own, torch.zeros_like(own)) == 0


def test_gradients_that_are_not_finite_are_passed_over():
    head, own, others, rows = problem(3)
    broken = [torch.full_like(own, math.nan), own * math.inf]
    for options in ({}, {"search": "joint"}):
        tried = HeadSearch(order="given", **options)
        assert torch.equal(
            tried(head, own, [*broken, *others], rows, rows, Seed(0)).head,
            tried(head, own, others, rows, rows, Seed(0)).head,
        )


def test_a_zero_gradient_of_ones_own_ends_the_search_at_once():
    head, own, others, rows = problem(4)
    assert HeadSearch()(head, torch.zeros_like(own), others, rows, rows, Seed(0)).head is head


def test_a_least_gain():
    head, own, others, rows = problem(5)
    free = HeadSearch(order="given")(head, own, others, rows, rows, Seed(0))
    strict = HeadSearch(order="given", least=0.02)(head, own, others, rows, rows, Seed(0))
    assert 0 < strict.taken < free.taken
    assert HeadSearch(least=100.0)(head, own, others, rows, rows, Seed(0)).head is head


def test_the_order_follows_the_seed():
    head, own, others, rows = problem(6)
    tried = [HeadSearch()(head, own, others, rows, rows, Seed(s)).head for s in (0, 0, 1)]
    assert torch.equal(tried[0], tried[1])
    assert not torch.equal(tried[0], tried[2])


@pytest.mark.parametrize("options", [{}, {"step": "exact"}, {"search": "joint", "ridge": 0.0}], ids=str)
def test_rows_that_judge_alone(options: dict[str, Any]):
    """What is fitted to some rows counts only if the others' loss falls; with no rows on a side nothing moves."""
    head, own, others, rows = problem(7, rows=60)
    fit, judge = FeatureRows(rows.z[:30], rows.y[:30]), FeatureRows(rows.z[30:], rows.y[30:])
    found = HeadSearch(**options)(head, own, others, fit, judge, Seed(0))
    assert found.before == loss(judge.z @ head.T, judge.y)
    assert found.after == loss(judge.z @ found.head.T, judge.y) < found.before
    empty = FeatureRows(rows.z[:0], rows.y[:0])
    for sides in ((empty, judge), (fit, empty)):
        assert HeadSearch(**options)(head, own, others, *sides, Seed(0)).head is head


def test_wrong_options_are_refused():
    for options in ({"search": "all"}, {"step": "long"}, {"order": "any"}, {"ridge": -1.0}, {"least": -1.0}):
        with pytest.raises(InputError, match=next(iter(options))):
            HeadSearch(**options)
