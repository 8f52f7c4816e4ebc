"""Merging rules by hand."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from fedquilt.core.exchange import Context, Reply
from fedquilt.core.net import Net
from fedquilt.core.params import Params
from fedquilt.core.seed import Seed
from fedquilt.core.table import Table
from fedquilt.errors import InputError
from fedquilt.methods.fedavg import Upload
from fedquilt.models import MLP
from fedquilt.pieces.merging.informed import Fisher, RegMean, fisher_information, gram_matrices
from fedquilt.pieces.merging.pairs import Slerp, greedy_soup
from fedquilt.pieces.merging.rule import merge, merging
from fedquilt.pieces.merging.stitch import Stitch
from fedquilt.pieces.merging.ties import Dare, Soup, TaskArithmetic, Ties

BASE = {"w": torch.tensor([1.0, 1, 1, 1])}


def models(*changes: list[float]) -> list[Params]:
    return [{"w": BASE["w"] + torch.tensor(c)} for c in changes]


def test_task_arithmetic_and_soup() -> None:
    """1 + .5 (2 + 4) = 4 and 1 + (2 + 4) / 2 = 4 at the first; weights 3 and 1: 1 + (3*2 + 4) / 4 = 3.5."""
    two = models([2.0, 0, 0, -1], [4.0, 1, 0, 1])
    assert merge(TaskArithmetic(0.5), BASE, two)[0]["w"].tolist() == [4, 1.5, 1, 1]
    assert merge(Soup(), BASE, two)[0]["w"].tolist() == [4, 1.5, 1, 1]
    assert merge(Soup(), BASE, two, weights=[3, 1])[0]["w"].tolist() == [3.5, 1.25, 1, 0.5]


def test_ties_trims_elects_and_averages_what_agrees() -> None:
    """keep 3/4 drops the smallest of each model; columns: (3, -1, 4) elects +: 7/2; (-2, -3, 1) elects -: -5/2;
    (0, 2, -2): (.1 is trimmed) sum 0, no sign; (1, 0, 0): (.1 and .1 trimmed) 1."""
    three = models([3.0, -2, 0.1, 1], [-1.0, -3, 2, 0.1], [4.0, 1, -2, 0.1])
    merged, report = merge(Ties(keep=0.75, scale=2.0), BASE, three)
    assert merged["w"].tolist() == pytest.approx([1 + 2 * 3.5, 1 - 2 * 2.5, 1, 1 + 2 * 1])
    assert report.kept == [3, 3, 3]
    assert report.conflicts == 3


def test_dare_drops_rescales_and_is_the_same_every_time() -> None:
    """Of 10^5 changes of 1, a tenth stays and is 10; the mean stays near 1 (deviation .0095); it is repeatable."""
    base = {"w": torch.zeros(100_000)}
    ones = [{"w": torch.ones(100_000)}]
    found = merge(Dare(drop=0.9), base, ones, seed=Seed(4))[0]["w"]
    assert found.unique().tolist() == pytest.approx([0.0, 10.0])
    assert float(found.mean()) == pytest.approx(1.0, abs=0.04)
    assert torch.equal(found, merge(Dare(drop=0.9), base, ones, seed=Seed(4))[0]["w"])
    assert not torch.equal(found, merge(Dare(drop=0.9), base, ones, seed=Seed(5))[0]["w"])
    twice = merge(Dare(drop=0.5, then=Ties(keep=1.0)), base, ones * 2, seed=Seed(4))[0]["w"]
    assert set(twice.unique().tolist()) == {0.0, 2.0}  # two draws; TIES averages what is left


def test_fisher_weighs_every_number() -> None:
    """(1*2 + 3*6) / 4 = 5; where nobody knows anything, the plain mean."""
    base = {"w": torch.zeros(2)}
    two = [{"w": torch.tensor([2.0, 2])}, {"w": torch.tensor([6.0, 6])}]
    information = [{"w": torch.tensor([1.0, 0])}, {"w": torch.tensor([3.0, 0])}]
    assert merge(Fisher(information), base, two)[0]["w"].tolist() == pytest.approx([5.0, 4.0])
    with pytest.raises(InputError, match="1 given for 2 models"):
        merge(Fisher(information[:1]), base, two)


def test_regmean_solves_its_least_squares() -> None:
    """The merged W minimises sum |X_i W^T - X_i W_i^T|^2: compared with a least-squares solution of stacked rows."""
    draw = Seed(6).torch()
    inputs = [torch.randn(20, 3, generator=draw), torch.randn(30, 3, generator=draw) * 2]
    two = [{"weight": torch.randn(2, 3, generator=draw), "bias": torch.tensor([1.0, 3])} for _ in range(2)]
    base = {"weight": torch.zeros(2, 3), "bias": torch.zeros(2)}
    grams = [{"weight": x.T @ x} for x in inputs]
    found = merge(RegMean(grams, shrink=1.0), base, two)[0]
    targets = torch.cat([x @ m["weight"].T for x, m in zip(inputs, two, strict=True)])
    expected = torch.linalg.lstsq(torch.cat(inputs), targets).solution.T
    torch.testing.assert_close(found["weight"], expected, atol=1e-5, rtol=1e-5)
    assert found["bias"].tolist() == [1, 3]
    diagonal = merge(RegMean(grams, shrink=0.0), base, two)[0]["weight"]  # then every input by itself
    shares = [g["weight"].diagonal() for g in grams]
    by_hand = (shares[0] * two[0]["weight"] + shares[1] * two[1]["weight"]) / (shares[0] + shares[1])
    torch.testing.assert_close(diagonal, by_hand, atol=1e-5, rtol=1e-5)


def test_statistics_of_a_network() -> None:
    """Gram matrices are X^T X of each layer's own input; Fisher's diagonal is the mean of squared row gradients."""
    net = Net.of(MLP, features=4, classes=3, hidden=(5,))
    params = net.init(Seed(0))
    rows = Table({"x": torch.randn(6, 4, generator=Seed(1).torch()), "y": torch.tensor([0, 1, 2, 0, 1, 2])})
    grams = gram_matrices(net, params, rows.blocks(4))
    first = next(n for n, g in grams.items() if g.shape == (4, 4))
    torch.testing.assert_close(grams[first], rows.whole().x.T @ rows.whole().x, atol=1e-5, rtol=1e-5)
    assert sorted(grams) == sorted(n for n in net.names if n.endswith("weight"))

    def loss(values: Params, batch: object) -> torch.Tensor:
        return F.cross_entropy(net(values, batch), batch.y)  # type: ignore[arg-type, attr-defined]

    found = fisher_information(loss, params, net.trainable, rows)
    head = next(n for n in net.names if n.endswith("bias") and params[n].shape == (3,))
    scores = net(net.own(params), rows.whole()).softmax(1) - F.one_hot(rows.whole().y, 3)
    torch.testing.assert_close(found[head], scores.detach().square().mean(0), atol=1e-6, rtol=1e-4)


def test_slerp_walks_on_the_circle() -> None:
    """Half way between (1, 0) and (0, 1): (cos 45°, sin 45°); the ends are the models; parallel ones go straight."""
    ends = [{"w": torch.tensor([1.0, 0])}, {"w": torch.tensor([0.0, 1])}]
    base = {"w": torch.tensor([0.3, 0.3])}
    assert merge(Slerp(0.5), base, ends)[0]["w"].tolist() == pytest.approx([math.sqrt(0.5)] * 2)
    assert merge(Slerp(0.0), base, ends)[0]["w"].tolist() == pytest.approx([1, 0])
    assert merge(Slerp(1.0), base, ends)[0]["w"].tolist() == pytest.approx([0, 1])
    same = [{"w": torch.tensor([2.0, 0])}, {"w": torch.tensor([4.0, 0])}]
    assert merge(Slerp(0.25), base, same)[0]["w"].tolist() == pytest.approx([2.5, 0])
    with pytest.raises(InputError, match="two models, got 3"):
        merge(Slerp(), base, ends + same[:1])


def test_greedy_soup_takes_what_does_not_hurt() -> None:
    """Score -|w - 2|. Alone: 1 -> -1, 2.5 -> -.5, 9 -> -7. 2.5 first; with 1: 1.75 -> -.25, stays; with 9 worse."""
    three = [{"w": torch.tensor([v])} for v in (1.0, 2.5, 9.0)]
    soup, chosen, score = greedy_soup(three, lambda m: -abs(float(m["w"]) - 2))
    assert (float(soup["w"]), chosen, score) == (1.75, [1, 0], -0.25)


def test_statistics_of_batch_norm_are_averaged_and_counters_stay() -> None:
    """Weights by the rule, running means plainly over models, integers as in the base."""
    base = {"w": torch.zeros(2), "bn.running_mean": torch.zeros(2), "bn.num_batches_tracked": torch.tensor(7)}
    two = [
        {
            "w": torch.tensor([1.0, 0]),
            "bn.running_mean": torch.tensor([2.0, 2]),
            "bn.num_batches_tracked": torch.tensor(9),
        },
        {
            "w": torch.tensor([0.0, 3]),
            "bn.running_mean": torch.tensor([4.0, 0]),
            "bn.num_batches_tracked": torch.tensor(8),
        },
    ]
    found = merge(Stitch(keep=0.5), base, two)[0]
    assert found["w"].tolist() == [1, 3]
    assert found["bn.running_mean"].tolist() == [3, 1]
    assert int(found["bn.num_batches_tracked"]) == 7


def test_rules_are_aggregators_and_count_samples_if_asked() -> None:
    replies = [Reply(i, n, Upload({"w": torch.tensor(d)})) for i, (n, d) in enumerate([(3, [2.0]), (1, [4.0])])]
    start, context = {"w": torch.tensor([1.0])}, Context(0, None, Seed(0), 2)
    assert float(merging(Soup())(start, replies, context)["w"]) == 4
    assert float(merging(Soup(), by_samples=True)(start, replies, context)["w"]) == 3.5
    assert merging(Soup())(start, [], context) is start
