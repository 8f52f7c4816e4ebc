"""Localize-and-Stitch: the worked example, the schedule, the baselines, and the invariants as properties.

theta: W = [[1,2,3],[4,5,6]], b = [0,0]; P = 8. The tables of expected values were derived by hand: at K = 0.5 the four
largest of |delta_1| are .8 .4 .3 .2, of |delta_2| .7 .6 .5 .2.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedquilt.core.exchange import Context, Reply
from fedquilt.core.params import Params, add
from fedquilt.core.seed import Seed
from fedquilt.core.select import Selection, Shortlist, chosen, how_many, kth_largest, threshold
from fedquilt.errors import InputError
from fedquilt.methods.fedavg import Upload
from fedquilt.pieces.aggregators import noised, uniform_mean
from fedquilt.pieces.merging.rule import merge, merging
from fedquilt.pieces.merging.stitch import Stitch, VoteSums, stitched
from fedquilt.pieces.merging.trim import localize, taus

TURN = Context(0, None, Seed(0), 2)


def tensors(w: object, b: object) -> Params:
    return {"w": torch.tensor(w), "b": torch.tensor(b)}


THETA = tensors([[1.0, 2, 3], [4, 5, 6]], [0.0, 0])
ONE = tensors([[0.4, -0.1, 0], [0.2, -0.8, 0.05]], [0.3, -0.02])
TWO = tensors([[0.6, 0, -0.5], [-0.2, 0.1, 0.05]], [-0.01, 0.7])
FEDAVG = tensors([[1.5, 1.95, 2.75], [4, 4.65, 6.05]], [0.145, 0.34])
TABLE = [
    (0.5, 4, (0.2, 0.2), "mask", tensors([[1.5, 2, 2.5], [4.0, 4.2, 6]], [0.3, 0.7])),
    (0.25, 2, (0.4, 0.6), "mask", tensors([[1.5, 2, 3], [4, 4.2, 6]], [0.0, 0.7])),
    (0.01, 1, (0.8, 0.7), "mask", tensors([[1.0, 2, 3], [4, 4.2, 6]], [0.0, 0.7])),
    (1.0, 8, (0.0, 0.0), "mask", FEDAVG),
    (1.0, 8, (0.0, 0.0), "nonzero", tensors([[1.5, 1.9, 2.5], [4, 4.65, 6.05]], [0.145, 0.34])),
]


def close(a: Params, b: Params, within: float = 1e-6) -> None:
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name].to(a[name].dtype), atol=within, rtol=0)


def replies(*deltas: Params, samples: tuple[int, ...] | None = None) -> list[Reply[Upload]]:
    counts = samples or (1,) * len(deltas)
    return [Reply(i, n, Upload(d)) for i, (d, n) in enumerate(zip(deltas, counts, strict=True))]


@pytest.mark.parametrize(("keep", "k", "taus", "count", "expected"), TABLE)
def test_the_worked_example(keep: float, k: int, taus: tuple[float, float], count: str, expected: Params) -> None:
    assert how_many(keep, 8) == k
    assert (threshold(ONE, keep), threshold(TWO, keep)) == pytest.approx(taus, abs=1e-7)
    rule = Stitch(keep=keep, count=count)  # type: ignore[arg-type]
    close(merging(rule)(THETA, replies(ONE, TWO), TURN), expected)
    found, report = merge(rule, THETA, [add(THETA, ONE), add(THETA, TWO)])
    close(found, expected)
    if keep == 0.5:
        assert report.kept == [4, 4]
        assert (report.touched, report.shared, report.conflicts) == (6, 2, 1)  # W[0][0], W[1][0]; the latter clashes


def test_ties_at_the_threshold_keep_more_and_the_real_density_is_told() -> None:
    found = localize({"w": torch.tensor([0.1, 0.1, -0.1, 0.1])}, 0.5)
    assert how_many(0.5, 4) == 2
    assert found.density == 1.0


def test_noise_baseline_without_noise_is_fedavg_and_with_noise_has_its_deviation() -> None:
    """s = 0 is the unweighted mean exactly; over 10^6 numbers the added deviation is s * std within 1 %."""
    plain = uniform_mean(THETA, replies(ONE, TWO), TURN)
    close(plain, FEDAVG)
    noiseless = noised(0.0, uniform_mean)(THETA, replies(ONE, TWO), TURN)
    assert all(torch.equal(noiseless[n], plain[n]) for n in plain)
    wide = {"w": torch.randn(10**6, generator=Seed(1).torch())}
    still = {"w": torch.zeros(10**6)}
    added = noised(0.05, uniform_mean)(wide, replies(still), TURN)["w"] - wide["w"]
    assert float(added.std()) == pytest.approx(0.05 * float(wide["w"].std()), rel=0.01)


def test_threshold_noise_moves_only_the_threshold() -> None:
    """Values and mask are of the clean changes: whatever tau became, the mask is [|delta| >= tau] for some tau."""
    delta = {"w": torch.randn(10_000, generator=Seed(2).torch())}
    clean, jittered = localize(delta, 0.1), localize(delta, 0.1, noise=0.5, seed=Seed(3))
    assert jittered.density != clean.density
    kept, dropped = delta["w"][jittered.mask["w"]].abs(), delta["w"][~jittered.mask["w"]].abs()
    assert kept.min() > dropped.max()
    assert torch.equal(jittered.values["w"][jittered.mask["w"]], delta["w"][jittered.mask["w"]])


def test_sample_weights_signs_and_medians_by_hand() -> None:
    """Changes 1, 2 and -6 with weights 1, 3, 1: mean 1/5; rises 7 outweigh the fall 6, so 7/4; the median is 1."""
    deltas = [torch.tensor([v]) for v in (1.0, 2.0, -6.0)]
    kept, weights = [torch.tensor([True])] * 3, [1.0, 3.0, 1.0]
    assert float(stitched(deltas, kept, weights)) == pytest.approx(1 / 5)
    assert float(stitched(deltas, kept, weights, conflicts="elect")) == pytest.approx(7 / 4)
    assert float(stitched(deltas, kept, weights, conflicts="median")) == 1.0
    assert float(stitched(deltas[1:], kept[1:], conflicts="median")) == -2.0
    nobody = [torch.tensor([False])] * 3
    assert [float(stitched(deltas, nobody, weights, conflicts=c)) for c in ("mean", "elect", "median")] == [0, 0, 0]
    draw = [torch.tensor([2.0]), torch.tensor([-2.0])]
    assert float(stitched(draw, kept[:2], conflicts="elect")) == 0


def test_thresholds_per_tensor_give_every_tensor_its_share() -> None:
    delta = {"large": torch.arange(1, 101) * 100.0, "small": torch.arange(1, 101) * 1.0}
    together, apart = localize(delta, 0.1), localize(delta, 0.1, per="tensor")
    assert [int(m.sum()) for m in together.mask.values()] == [20, 0]
    assert [int(m.sum()) for m in apart.mask.values()] == [10, 10]


# Invariants, as properties

numbers = st.floats(-4, 4, width=32).map(lambda v: 0.0 if abs(v) < 1e-30 else v)
densities = st.floats(0.01, 1.0)


@st.composite
def federations(draw: st.DrawFn) -> tuple[Params, list[Params]]:
    shapes = {"a": (draw(st.integers(1, 5)), 3), "b": (draw(st.integers(1, 7)),)}

    def some() -> Params:
        made = {}
        for name, shape in shapes.items():
            size = math.prod(shape)
            made[name] = torch.tensor(draw(st.lists(numbers, min_size=size, max_size=size))).reshape(shape)
        return made

    return some(), [some() for _ in range(draw(st.integers(1, 4)))]


def flat(params: Params) -> Tensor:
    return torch.cat([t.flatten() for t in params.values()])


@settings(max_samples=60, deadline=None)
@given(federations(), densities)
def test_a_b_j_enough_is_kept_and_all_kept_outweigh_all_dropped(made: tuple[Params, list[Params]], keep: float) -> None:
    for delta in made[1]:
        found = localize(delta, keep)
        size, mask, magnitude = flat(delta).numel(), flat(found.mask), flat(delta).abs()
        wanted = how_many(keep, size)
        assert int(mask.sum()) >= wanted
        if len(set(magnitude.tolist())) == size:
            assert int(mask.sum()) == wanted
        if not mask.all():
            assert magnitude[mask].min() > magnitude[~mask].max()
        assert torch.equal(flat(chosen(found.values)), mask)


@settings(max_samples=60, deadline=None)
@given(federations())
def test_c_keeping_all_is_the_uniform_mean(made: tuple[Params, list[Params]]) -> None:
    theta, deltas = made
    close(merging(Stitch(keep=1.0))(theta, replies(*deltas), TURN), uniform_mean(theta, replies(*deltas), TURN), 1e-5)


@settings(max_samples=60, deadline=None)
@given(federations(), densities)
def test_d_e_g_h_stitched(made: tuple[Params, list[Params]], keep: float) -> None:
    theta, deltas = made
    before = [t.clone() for p in (theta, *deltas) for t in p.values()]
    merged = merging(Stitch(keep=keep))(theta, replies(*deltas), TURN)
    masks = [localize(d, keep).mask for d in deltas]
    for name, start in theta.items():
        stack, kept = torch.stack([d[name] for d in deltas]), torch.stack([m[name] for m in masks])
        nobody = ~kept.any(0)
        assert torch.equal(merged[name][nobody], start[nobody])  # (d)
        low = torch.where(kept, stack, torch.inf).min(0).values[~nobody]
        high = torch.where(kept, stack, -torch.inf).max(0).values[~nobody]
        change = (merged[name].double() - start.double())[~nobody]
        assert bool((change >= low - 1e-5).all() and (change <= high + 1e-5).all())  # (e)
    backwards = merging(Stitch(keep=keep))(theta, replies(*deltas[::-1]), TURN)
    close(merged, backwards, 1e-6)  # (g)
    assert all(
        torch.equal(a, b) for a, b in zip(before, (t for p in (theta, *deltas) for t in p.values()), strict=True)
    )


@settings(max_samples=40, deadline=None)
@given(federations(), densities, st.integers(1, 5))
def test_f_equal_clients_are_one_client(made: tuple[Params, list[Params]], keep: float, clients: int) -> None:
    theta, (delta, *_) = made
    merged = merging(Stitch(keep=keep))(theta, replies(*[delta] * clients), TURN)
    close(merged, add(theta, localize(delta, keep).values), 1e-6)


@settings(max_samples=60, deadline=None)
@given(st.lists(numbers, min_size=1, max_size=40), densities)
def test_streamed_selection_is_exact(values: list[float], keep: float) -> None:
    tensor = torch.tensor(values)
    expected = kth_largest(tensor.abs(), how_many(keep, len(values)))
    pieces = {str(i): piece for i, piece in enumerate(tensor.split(7))}
    assert taus([pieces], list(pieces), keep) == [expected if keep < 1 else 0.0]  # all are kept: nothing to look for
    assert expected == sorted(map(abs, tensor.tolist()))[-how_many(keep, len(values))]


@pytest.mark.parametrize(
    ("what", "quick"), [("normal", True), ("layers of other sizes", True), ("ties", False), ("mostly zeros", False)]
)
def test_few_numbers_of_many_are_chosen_exactly(what: str, quick: bool) -> None:
    draw = Seed(3).torch()
    layers = {str(i): torch.randn(3000, 20, generator=draw) for i in range(5)}
    if what == "layers of other sizes":
        layers = {n: t * 10.0 ** -int(n) for n, t in layers.items()}
    elif what == "ties":
        layers = {n: t.sign() for n, t in layers.items()}
    elif what == "mostly zeros":
        layers = {n: t * (t > 4.0) for n, t in layers.items()}
    flat = torch.cat([t.flatten() for t in layers.values()])
    for keep in (0.3, 0.05, 0.001):
        expected = sorted(flat.abs().tolist())[-how_many(keep, len(flat))]
        assert taus([layers], list(layers), keep) == [expected]
        shortlist = Shortlist()
        for tensor in layers.values():
            shortlist.look(tensor)
        shortlist.settle(keep)
        for tensor in layers.values():
            shortlist.look_closer(tensor)
        assert shortlist.value() == (expected if quick else None)


@pytest.mark.parametrize("conflicts", ["mean", "elect", "median"])
@pytest.mark.parametrize("count", ["mask", "nonzero"])
def test_where_few_have_a_say_the_rest_is_left_out_of_the_work_only(count: Any, conflicts: Any) -> None:
    draw = Seed(4).torch()
    deltas = [torch.randn(40, 50, generator=draw) for _ in range(3)]
    base = {"w": torch.randn(40, 50, generator=draw)}
    found, report = merge(Stitch(0.05, count=count, conflicts=conflicts), base, [{"w": base["w"] + d} for d in deltas])
    deltas = [base["w"] + d - base["w"] for d in deltas]
    kept = [localize({"w": d}, 0.05).mask["w"] for d in deltas]
    whole = stitched(deltas, kept, None, count, conflicts)
    assert torch.equal(found["w"], (base["w"] + whole).float())
    votes = sum(mask.int() for mask in kept)
    assert (report.numbers, report.kept) == (2000, [100, 100, 100])
    assert (report.touched, report.shared) == (int((votes > 0).sum()), int((votes > 1).sum()))


@settings(max_samples=40, deadline=None)
@given(federations(), densities)
def test_a_client_can_be_added_and_removed_without_the_others(made: tuple[Params, list[Params]], keep: float) -> None:
    _, deltas = made
    for name in deltas[0]:
        tally, kept = VoteSums.empty(deltas[0][name]), [localize(d, keep).mask[name] for d in deltas]
        for delta, mask in zip(deltas, kept, strict=True):
            tally.add(delta[name], mask)
        torch.testing.assert_close(tally.value(), stitched([d[name] for d in deltas], kept))
        tally.add(deltas[0][name], kept[0], -1.0)
        rest = tally.value()
        expected = stitched([d[name] for d in deltas[1:]], kept[1:]) if deltas[1:] else torch.zeros_like(rest)
        torch.testing.assert_close(rest, expected, atol=1e-12, rtol=0)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(InputError, match=r"in \(0, 1\]"):
        Stitch(keep=0)
    with pytest.raises(InputError, match="conflicts must be one of"):
        Stitch(conflicts="vote")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="nothing to choose from"):
        Selection().settle(0.5)
    with pytest.raises(InputError, match="nothing to merge"):
        merge(Stitch(), THETA, [])
