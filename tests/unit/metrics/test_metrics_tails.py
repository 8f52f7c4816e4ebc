"""Scores under long tails against scikit-learn and worked numbers; neural collapse where it is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn import metrics as reference

from fedquilt.errors import InputError
from fedquilt.metrics.support import Z
from fedquilt.metrics.tails import by_group, collapse, halves, over_clients, tally
from fedquilt.pieces.etf import Frame, simplex

DRAW = torch.Generator().manual_seed(0)
SCORES, LABELS = torch.randn(400, 5, generator=DRAW), torch.randint(0, 4, (400,), generator=DRAW)  # class 4 has no row


def test_measures_agree_with_scikit_learn():
    found = tally(SCORES, LABELS)
    y, answers = LABELS.numpy(), SCORES.argmax(1).numpy()
    assert found.accuracy == pytest.approx(reference.accuracy_score(y, answers))
    recall = reference.recall_score(y, answers, labels=range(4), average="macro")
    assert found.balanced_accuracy == pytest.approx(recall)
    assert found.macro_f1 == pytest.approx(reference.f1_score(y, answers, average="macro"))
    assert found.weighted_f1 == pytest.approx(reference.f1_score(y, answers, average="weighted"))
    assert math.isnan(found.recalls[4])
    added = tally(SCORES[:150], LABELS[:150]) + tally(SCORES[150:], LABELS[150:])
    assert torch.equal(added.calls, found.calls)
    assert added.calibration_error == pytest.approx(found.calibration_error)


def test_measures_know_how_many_rows_they_rest_on():
    """Accuracy: p(1 - p) / n of a share drawn to a half; two tests of equal counts: divided by the root of two."""
    found = tally(SCORES, LABELS)
    (one, two) = (halves([found] * n) for n in (1, 2))
    share = (found.accuracy * 400 + Z**2 / 2) / (400 + Z**2)
    assert one["accuracy_rows_half_95"] == pytest.approx(Z * (share * (1 - share) / 400) ** 0.5)
    assert set(one) == {f"{name}_rows_half_95" for name in ("accuracy", "balanced_accuracy", "macro_f1")}
    assert all(two[name] == pytest.approx(half / 2**0.5) for name, half in one.items())
    weights = np.array([1.0, 0.0])
    assert halves([found] * 2, {"macro_f1": weights})["macro_f1_rows_half_95"] == one["macro_f1_rows_half_95"]


def test_calibration_error_by_hand():
    """Two rows at .8 (one right): |1 - 1.6|; one row at .6 (right): |1 - .6|. Sum / 3 = 1/3."""
    odds = torch.tensor([[0.8, 0.2], [0.8, 0.2], [0.6, 0.4]]).log()
    assert tally(odds, torch.tensor([0, 1, 0])).calibration_error == pytest.approx((0.6 + 0.4) / 3, abs=1e-6)


def test_scores_of_minus_infinity_are_never_the_answer():
    masked = SCORES.masked_fill(torch.tensor([False, True, False, False, False]), -math.inf)
    found = tally(masked, LABELS)
    assert int(found.calls[:, 1].sum()) == 0
    assert math.isfinite(found.calibration_error)


def test_groups_and_clients():
    """Client a: class 0 two of two right, class 1 none of one. Client b: class 0 one of two; it has no class 1."""
    a = tally(torch.tensor([[1.0, 0.0]] * 3), torch.tensor([0, 0, 1]))
    b = tally(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
    groups = {"head": [0], "middle": [], "tail": [1]}
    assert by_group(a, groups)["head"] == 1.0
    assert by_group(a, groups)["tail"] == 0.0
    assert math.isnan(by_group(a, groups)["middle"])
    found = over_clients([a, b], rows=[30, 10], groupings={"by_share": [groups, groups]})
    assert found["accuracy"] == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert found["worst"] == 0.5
    assert found["by_share"]["head"] == 0.75
    assert found["by_share"]["tail"] == 0.0  # of the one client that has it
    # weighted F1 of a: class 0 f1 = 4/5, twice; class 1 f1 = 0: 8/15. Of b: 2/3. Weights 30 and 10.
    assert found["weighted_f1"] == pytest.approx((30 * 8 / 15 + 10 * 2 / 3) / 40)


def test_collapse_of_collapsed_features():
    """Rows are exactly their class's vector of a simplex: nothing within, equal angles and lengths, on the frame."""
    vectors = simplex(4) * 3
    labels = torch.arange(40) % 4
    found = collapse(vectors[labels], labels, 4, frame=vectors)
    assert found.within == pytest.approx(0, abs=1e-12)
    assert found.within_pinv == pytest.approx(0, abs=1e-9)
    assert found.angle == pytest.approx(found.ideal, abs=1e-4)
    assert found.angle_std == pytest.approx(0, abs=1e-3)
    assert found.norm_spread == pytest.approx(0, abs=1e-6)
    assert found.norms == pytest.approx([3.0] * 4)
    assert max(found.to_frame) < 0.1


def test_collapse_counts_what_is_within():
    """Classes at -1 and 1 with rows at a distance of .5 to both sides: .25 / 1; a class without rows does not count."""
    f = torch.tensor([[-1.5], [-0.5], [0.5], [1.5]])
    found = collapse(f, torch.tensor([0, 0, 2, 2]), 3)
    assert found.within == pytest.approx(0.25)
    assert found.within_pinv == pytest.approx(0.125)  # .25 / 1, over two classes
    assert math.isnan(found.norms[1])
    assert found.to_frame is None
    with pytest.raises(InputError, match="several classes"):
        collapse(f, torch.zeros(4, dtype=torch.int64), 3)


def test_features_along_other_vectors_are_far_from_the_frame():
    vectors = Frame(4, 16, norm=1.0).build()
    labels = torch.arange(8) % 4
    found = collapse(vectors[labels], labels, 4, frame=vectors.roll(1, 0))
    assert found.to_frame == pytest.approx([found.ideal] * 4, abs=0.1)
