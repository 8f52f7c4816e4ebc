"""Robust aggregators against transcriptions in numpy, against ByzFL where it is installed, and by what they promise."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedquilt.config.options import check_options
from fedquilt.core.exchange import Context, Reply
from fedquilt.core.net import Net
from fedquilt.core.seed import Seed
from fedquilt.core.table import Table
from fedquilt.errors import InputError
from fedquilt.methods.fedavg import FedAvg, Upload
from fedquilt.methods.personalised.fedproto import MEANS, ROWS, FedProto, Prototypes
from fedquilt.models import MLP
from fedquilt.pieces import robust
from fedquilt.pieces.aggregators import mean
from fedquilt.pieces.robust.vectors import Sample, Vectors, count_of, groups, length

RULES = {
    "clip_norm": robust.clip_norm(radius=2.0),
    "clip_quantile": robust.clip_norm(),
    "centred_clip": robust.centred_clip(radius=1.5),
    "centred_clip_median": robust.centred_clip(),
    "geometric_median": robust.geometric_median(),
    "krum": robust.krum(byzantine=2),
    "multi_krum": robust.multi_krum(byzantine=2),
    "median": robust.median(),
    "trimmed_mean": robust.trimmed_mean(byzantine=2),
    "meamed": robust.meamed(byzantine=2),
    "bulyan": robust.bulyan(byzantine=1),
    "nearest_mixing": robust.nearest_mixing(byzantine=2, then=robust.median()),
    "arc": robust.arc(byzantine=2, then=robust.trimmed_mean(byzantine=2)),
    "buckets": robust.bucketing(size=2, then=robust.geometric_median()),
}
CONTEXT = Context(0, None, Seed(0))


def drawn(n: int = 9, d: int = 40, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32).astype(np.float64)


def merged(rule: Any, vectors: np.ndarray, samples: Any = None, context: Context = CONTEXT) -> np.ndarray:
    """What a rule adds to a model of zeros of two tensors."""
    samples = [1] * len(vectors) if samples is None else [int(s) for s in samples]
    cut = vectors.shape[1] // 3
    current = {
        "a.weight": torch.zeros(cut, dtype=torch.float64),
        "b.weight": torch.zeros(vectors.shape[1] - cut, 1, dtype=torch.float64),
    }
    replies = []
    for i, (vector, count) in enumerate(zip(vectors, samples, strict=True)):
        v = torch.tensor(vector, dtype=torch.float64)
        replies.append(Reply(i, count, Upload({"a.weight": v[:cut], "b.weight": v[cut:].view(-1, 1)})))
    after = rule(current, iter(replies), context)
    return torch.cat([after["a.weight"], after["b.weight"].view(-1)]).numpy()


# Transcriptions: weighted, in numpy, one vector after the other


def np_clip(x: np.ndarray, p: np.ndarray, c: float) -> np.ndarray:
    return sum(w * v * min(1, c / np.linalg.norm(v)) for v, w in zip(x, p, strict=True))


def np_centred(x: np.ndarray, p: np.ndarray, c: float, passes: int) -> np.ndarray:
    v = np.zeros(x.shape[1])
    for _ in range(passes):
        v = v + sum(w * (d - v) * min(1, c / np.linalg.norm(d - v)) for d, w in zip(x, p, strict=True))
    return v


def np_geometric(x: np.ndarray, p: np.ndarray, passes: int, nu: float) -> np.ndarray:
    z = np.zeros(x.shape[1])
    for _ in range(passes):
        b = np.array([w / max(nu, np.linalg.norm(d - z)) for d, w in zip(x, p, strict=True)])
        z = (b[:, None] * x).sum(0) / b.sum()
    return z


def np_scores(x: np.ndarray, f: int) -> np.ndarray:
    n, found = len(x), []
    for i in range(n):
        others = sorted(((x[i] - x[j]) ** 2).sum() for j in range(n) if j != i)
        found.append(np.mean(others[: n - f - 1]))
    return np.array(found)


def np_multi_krum(x: np.ndarray, p: np.ndarray, f: int) -> np.ndarray:
    best = np.argsort(np_scores(x, f))[: len(x) - f]
    return np.average(x[best], axis=0, weights=p[best])


def np_median(column: np.ndarray, p: np.ndarray) -> float:
    order = np.argsort(column)
    below = np.cumsum(p[order])
    low = int(np.argmax(below >= 0.5 - 1e-12))
    if abs(below[low] - 0.5) < 1e-12:
        return float((column[order[low]] + column[order[low + 1]]) / 2)
    return float(column[order[low]])


def np_trimmed(column: np.ndarray, p: np.ndarray, edge: float) -> float:
    grid = 0
    total = 0.0
    below = 0.0
    for i in np.argsort(column):
        inside = max(0.0, min(below + p[i], 1 - edge) - max(below, edge))
        total, grid, below = total + inside * column[i], grid + inside, below + p[i]
    return total / grid


def np_meamed(column: np.ndarray, p: np.ndarray, keep: int) -> float:
    near = np.argsort(np.abs(column - np_median(column, p)), kind="stable")[:keep]
    return float(np.average(column[near], weights=p[near]))


def np_bulyan(x: np.ndarray, p: np.ndarray, f: int) -> np.ndarray:
    left, chosen = list(range(len(x))), []
    while len(chosen) < len(x) - 2 * f:
        scores = []
        for i in left:
            others = sorted(((x[i] - x[j]) ** 2).sum() for j in left if j != i)
            scores.append(sum(others[: max(len(left) - f - 2, 1)]))
        chosen.append(left.pop(int(np.argmin(scores))))
    chosen.sort()
    q = p[chosen] / p[chosen].sum()
    return np.array([np_meamed(c, q, len(x) - 4 * f) for c in x[chosen].T])


def np_mixed(x: np.ndarray, p: np.ndarray, f: int) -> np.ndarray:
    found = []
    for v in x:
        near = np.argsort([np.linalg.norm(v - o) for o in x])[: len(x) - f]
        found.append(np.average(x[near], axis=0, weights=p[near]))
    return np.array(found)


WEIGHTED = {
    "clip_norm": lambda x, p: np_clip(x, p, 2.0),
    "centred_clip": lambda x, p: np_centred(x, p, 1.5, 3),
    "geometric_median": lambda x, p: np_geometric(x, p, 8, 1e-6),
    "krum": lambda x, p: x[np.argmin(np_scores(x, 2))],
    "multi_krum": lambda x, p: np_multi_krum(x, p, 2),
    "median": lambda x, p: np.array([np_median(c, p) for c in x.T]),
    "trimmed_mean": lambda x, p: np.array([np_trimmed(c, p, 2 / len(x)) for c in x.T]),
    "meamed": lambda x, p: np.array([np_meamed(c, p, len(x) - 2) for c in x.T]),
    "bulyan": lambda x, p: np_bulyan(x, p, 1),
    "nearest_mixing": lambda x, p: np.array([np_median(c, p) for c in np_mixed(x, p, 2).T]),
}


@pytest.mark.parametrize("name", WEIGHTED)
@pytest.mark.parametrize("weighted", [False, True])
def test_equal_to_the_formula(name: str, weighted: bool) -> None:
    for seed in range(5):
        x = drawn(9 + seed, seed=seed)
        samples = np.random.default_rng(seed).integers(1, 30, len(x)) if weighted else np.ones(len(x))
        np.testing.assert_allclose(
            merged(RULES[name], x, samples), WEIGHTED[name](x, samples / samples.sum()), rtol=1e-9, atol=1e-9
        )


def byzfl_parts() -> tuple[Any, Any]:
    """Its aggregators and what comes before them: these need torch and numpy only, the package needs more."""
    found = importlib.util.find_spec("byzfl")
    if found is None:
        pytest.skip("ByzFL is not installed (pip install --no-deps byzfl)")
    package = ModuleType("byzfl")
    package.__path__ = list(found.submodule_search_locations or [])
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "byzfl", package)
        return (
            importlib.import_module("byzfl.aggregators.aggregators"),
            importlib.import_module("byzfl.aggregators.preaggregators"),
        )


def byzfl_pairs() -> dict[str, tuple[Any, Any]]:
    byzfl, before = byzfl_parts()

    def chain(before: Any, rule: Any) -> Any:
        return lambda x: rule(before(x))

    return {
        "clip": (robust.clip_norm(radius=2.0), chain(before.Clipping(2.0), byzfl.Average())),
        "centred": (robust.centred_clip(radius=1.5, passes=4), byzfl.CenteredClipping(L=4, tau=1.5)),
        "geometric": (robust.geometric_median(passes=5, smoothing=0.1), byzfl.GeometricMedian(nu=0.1, T=5)),
        "krum": (RULES["krum"], byzfl.Krum(2)),
        "multi_krum": (RULES["multi_krum"], byzfl.MultiKrum(2)),
        "median": (RULES["median"], byzfl.Median()),
        "trimmed": (RULES["trimmed_mean"], byzfl.TrMean(2)),
        "meamed": (RULES["meamed"], byzfl.Meamed(2)),
        "nnm": (
            robust.nearest_mixing(byzantine=2, then=robust.trimmed_mean(byzantine=2)),
            chain(before.NNM(2), byzfl.TrMean(2)),
        ),
        "arc": (robust.arc(byzantine=2), chain(before.ARC(2), byzfl.Average())),
        "one_bucket": (robust.bucketing(size=1, then=robust.krum(byzantine=2)), byzfl.Krum(2)),
    }


def test_equal_to_byzfl() -> None:
    for name, (ours, theirs) in byzfl_pairs().items():
        for seed in range(10):
            x = drawn(7 + seed, seed=seed)
            if name == "centred":
                theirs.m = None
            np.testing.assert_allclose(merged(ours, x), theirs(x.copy()), rtol=1e-6, atol=1e-6, err_msg=name)


# What they promise


@pytest.mark.parametrize("name", RULES)
def test_no_reply_and_one(name: str) -> None:
    rule, start = RULES[name], {"w": torch.ones(3)}
    assert rule(start, iter(()), CONTEXT) is start
    if name in ("clip_norm", "clip_quantile", "median", "geometric_median"):
        after = rule(start, iter([Reply(0, 5, Upload({"w": torch.full((3,), 0.5)}))]), CONTEXT)
        torch.testing.assert_close(after["w"], torch.full((3,), 1.5))


@pytest.mark.parametrize("name", [n for n in RULES if n not in ("buckets", "bulyan")])  # bulyan's last choices tie
def test_order_of_clients_does_not_matter(name: str) -> None:
    x, samples = drawn(11), np.arange(1, 12)
    order = np.random.default_rng(1).permutation(11)
    np.testing.assert_allclose(
        merged(RULES[name], x, samples), merged(RULES[name], x[order], samples[order]), atol=1e-9
    )


@pytest.mark.parametrize("name", [n for n in RULES if n not in ("clip_norm", "centred_clip")])
def test_scale(name: str) -> None:
    x = drawn(11)
    np.testing.assert_allclose(merged(RULES[name], 7 * x), 7 * merged(RULES[name], x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["krum", "multi_krum", "median", "trimmed_mean", "meamed", "bulyan", "nearest_mixing"])
def test_translation(name: str) -> None:
    x, by = drawn(11), drawn(1, seed=5)
    np.testing.assert_allclose(merged(RULES[name], x + by), merged(RULES[name], x) + by[0], atol=1e-8)


@given(st.integers(0, 10**6), st.floats(1, 1e12), st.sampled_from([n for n in RULES if n not in ("buckets", "bulyan")]))
def test_a_minority_cannot_move_the_model_far(seed: int, size: float, name: str) -> None:
    honest = drawn(9, 12, seed) * 0.1 + 1.0
    false = np.random.default_rng(seed).normal(size=(2, 12))
    lies = size * false / np.linalg.norm(false, axis=1, keepdims=True)
    found = merged(RULES[name], np.vstack([honest, lies]))
    assert np.linalg.norm(found - honest.mean(0)) < 3.5  # honest changes are about sqrt(12) long
    if size > 1e3:
        assert np.linalg.norm(merged(mean, np.vstack([honest, lies])) - honest.mean(0)) > 10


@given(st.integers(0, 10**6), st.floats(1e3, 1e9))
def test_weights_count_also_for_the_breakdown(seed: int, size: float) -> None:
    """Many small false clients are borne, and few with most of the samples are not."""
    honest, lies = drawn(4, 6, seed) * 0.1, np.full((5, 6), size)
    x = np.vstack([honest, lies])
    held = merged(robust.median(), x, [50] * 4 + [10] * 5)
    assert np.abs(held).max() < 1
    lost = merged(robust.median(by_samples=False), x, [50] * 4 + [10] * 5)
    assert np.abs(lost).max() >= size * 0.9


def test_without_false_replies_nothing_is_lost() -> None:
    x, samples = drawn(8) * 0.1, np.arange(1, 9)
    plain = merged(mean, x, samples)
    for rule in (
        robust.clip_norm(radius=50.0),
        robust.trimmed_mean(byzantine=0),
        robust.nearest_mixing(byzantine=0),
        robust.arc(byzantine=0),
        robust.bucketing(size=3),
    ):
        np.testing.assert_allclose(merged(rule, x, samples), plain, atol=1e-9)
    assert (merged(robust.clip_norm(radius=50.0), x, samples) == plain).all()


def test_buckets_are_drawn_by_the_seed() -> None:
    rule, x = robust.bucketing(size=3, then=robust.median()), drawn(9)
    here = [merged(rule, x, context=Context(0, None, Seed(s))) for s in (0, 0, 1)]
    assert (here[0] == here[1]).all()
    assert (here[0] != here[2]).any()


def test_vectors_by_layer_and_statistics_apart() -> None:
    def values(weight: list[float], variance: list[float], batches: int) -> dict[str, torch.Tensor]:
        count = torch.tensor(batches)
        return {
            "a.weight": torch.tensor(weight),
            "a.running_var": torch.tensor(variance),
            "a.num_batches_tracked": count,
        }

    names, lie = values([0.0, 0.0], [0.0, 0.0], 5), values([3.0, 4.0], [0.0, 1e6], 10**9)
    fine = values([0.3, 0.4], [0.6, 0.8], 7)
    replies = [Reply(0, 1, Upload(fine)), Reply(1, 1, Upload(fine)), Reply(2, 2, Upload(lie))]
    for rule in (robust.clip_norm(radius=1.0), robust.clip_norm(radius=1.0, then=robust.clip_norm(radius=9.0))):
        after = rule(names, replies, CONTEXT)
        torch.testing.assert_close(after["a.weight"], torch.tensor([0.45, 0.6]))
        torch.testing.assert_close(after["a.running_var"], torch.tensor([0.3, 0.9]))
        assert int(after["a.num_batches_tracked"]) == 12  # the middle of 7, 7 and 10**9


def test_trust_follows_the_servers_own_change() -> None:
    x = np.array([[3.0, 0, 0, 0], [0, 2.0, 0, 0], [-50.0, 0, 0, 0], [0, 0, 1.0, 0]])
    ours = torch.tensor([1.0, 1.0, 0, 0], dtype=torch.float64)
    rule = robust.fltrust(reference=lambda current, context: {"a.weight": ours[:1], "b.weight": ours[1:].view(-1, 1)})
    half = np.sqrt(2) / 2  # both agree with cos 45 degrees, and count with the length of the server's: sqrt 2
    np.testing.assert_allclose(merged(rule, x), [half, half, 0, 0], atol=1e-12)


def test_the_servers_own_change_is_some_steps_of_sgd() -> None:
    """One batch of all rows, two steps of softmax regression in numpy; and fltrust takes it."""
    net = Net.of(MLP, features=3, classes=2, hidden=())
    x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    y = np.array([0, 1, 1, 0, 1, 0])
    rows = Table({"x": torch.from_numpy(x), "y": torch.from_numpy(y)})
    reference = robust.learned_on(FedAvg(net).loss, rows, lr=0.5, steps=2, batch_size=6)
    start = net.init(Seed(1))
    found = reference(start, CONTEXT)
    w, b = start["head.weight"].numpy().astype(float), start["head.bias"].numpy().astype(float)
    for _ in range(2):
        scores = x @ w.T + b
        share = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        wrong = (share - np.eye(2)[y]) / 6
        w, b = w - 0.5 * wrong.T @ x, b - 0.5 * wrong.sum(0)
    np.testing.assert_allclose(found["head.weight"].numpy(), w - start["head.weight"].numpy(), atol=1e-6)
    np.testing.assert_allclose(found["head.bias"].numpy(), b - start["head.bias"].numpy(), atol=1e-6)
    false = {n: -100 * t for n, t in found.items()}
    replies = [Reply(0, 5, Upload({n: 3 * t for n, t in found.items()})), Reply(1, 9, Upload(false))]
    after = robust.fltrust(reference=reference)(start, replies, CONTEXT)
    for name, tensor in found.items():  # the first agrees and is shortened to the server's length, the other not heard
        torch.testing.assert_close(after[name], start[name] + tensor)
    with pytest.raises(InputError, match="steps >= 1"):
        robust.learned_on(FedAvg(net).loss, rows, steps=0)


def test_lengths_do_not_depend_on_where_numbers_lie() -> None:
    numbers = np.random.default_rng(0).normal(size=200_001).astype(np.float32)
    exact, room = float(np.linalg.norm(numbers.astype(float))), torch.empty(4 * len(numbers) + 64, dtype=torch.uint8)
    found = set()
    for offset in range(0, 64, 4):
        here = room[offset : offset + 4 * len(numbers)].view(torch.float32)
        here.copy_(torch.from_numpy(numbers))
        found.add(length({"w": here}))
    assert len(found) == 1
    assert found.pop() == pytest.approx(exact, rel=1e-6)
    assert length({"w": torch.full((4,), 1e30)}) == pytest.approx(2e30)
    assert length({}) == 0.0


def test_what_one_vector_is() -> None:
    names = ["features.0.weight", "features.0.bias", "features.1.weight", "head.weight", "features.0.running_mean"]
    change = {n: torch.zeros(1) for n in names}
    parts: dict[str, Any] = {per: groups(change, per) for per in ("model", "block", "layer", "tensor")}
    assert parts["model"] == [names[:4], names[4:]]
    assert parts["block"] == [names[:3], names[3:4], names[4:]]
    assert parts["layer"] == [names[:2], names[2:3], names[3:4], names[4:]]
    assert parts["tensor"] == [[n] for n in names]


def test_prototypes_are_merged_class_by_class() -> None:
    """FedProto with the median: of class 0 the middle of three, each counted by its rows; nobody shows class 1."""
    method = FedProto(Net.of(MLP, features=4, classes=2, hidden=(2,)), aggregate=robust.median())
    state = method.init_server(Seed(0))
    state = replace(state, classes={**state.classes, MEANS: torch.ones(2, 2)})

    def reply(client: int, mean: list[float], count: int) -> Reply:
        sent = {MEANS: torch.tensor([mean, [0.0, 0.0]]), ROWS: torch.tensor([float(count), 0.0])}
        return Reply(client, 50, Prototypes(sent))

    after = method.up(state, [reply(0, [1.0, 2.0], 10), reply(1, [3.0, 4.0], 10), reply(2, [1e6, -1e6], 15)], CONTEXT)
    torch.testing.assert_close(after.classes[MEANS], torch.tensor([[3.0, 2.0], [1.0, 1.0]]))
    torch.testing.assert_close(after.classes[ROWS], torch.tensor([35.0, 0.0]))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: robust.krum(byzantine=0.5), "below 0.5"),
        (lambda: robust.krum(byzantine=-1), "below 0.5"),
        (lambda: robust.clip_norm(radius=0.0), "radius > 0"),
        (lambda: robust.clip_norm(quantile=0.0), "quantile"),
        (lambda: robust.centred_clip(passes=0), "passes >= 1"),
        (lambda: robust.geometric_median(smoothing=0.0), "smoothing"),
        (lambda: robust.bucketing(size=0), "size"),
        (lambda: merged(robust.krum(byzantine=3), drawn(6)), "needs at least 7 replies, and there are 6"),
        (lambda: merged(robust.bulyan(byzantine=2), drawn(10)), "needs at least 11 replies"),
    ],
)
def test_what_cannot_be(make: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        make()


@pytest.mark.parametrize("kind", ["krum", "multi_krum", "trimmed_mean", "meamed", "bulyan", "nearest_mixing", "arc"])
def test_a_recipe_counts_too(kind: str) -> None:
    """Numbers come from recipes as the annotated type."""
    made, problems = check_options("method", "fedavg", {"aggregate": {"kind": kind, "byzantine": 2}}, "method")
    assert not problems
    assert count_of(made["aggregate"].byzantine, 100) == 2
    _, problems = check_options("method", "fedavg", {"aggregate": {"kind": kind, "byzantine": 2.5}}, "method")
    assert "or a count of clients, got 2.5" in problems[0]


def test_distances_from_a_sample_are_near_and_the_rule_chooses_as_with_all() -> None:
    draw = np.random.default_rng(0)
    shapes = {"a.weight": (300, 300), "a.bias": (300,), "b.weight": (200, 300)}
    common = {n: draw.normal(size=s) for n, s in shapes.items()}

    def change(sign: float) -> Upload:
        return Upload({n: torch.tensor(sign * common[n] + draw.normal(size=s)) for n, s in shapes.items()})

    replies = [Reply(i, 10, change(-3.0 if i > 6 else 1.0)) for i in range(10)]
    weights = torch.ones(10, dtype=torch.float64)
    changes = [r.upload.delta for r in replies]
    exact, near = Vectors(changes, weights), Vectors(changes, weights, sample=Sample(20_000, Seed(3)))
    off = ~torch.eye(10, dtype=torch.bool)
    torch.testing.assert_close(near.distances[off], exact.distances[off], rtol=0.06, atol=0.0)
    assert not torch.equal(near.distances, exact.distances)
    whole = Vectors(changes, weights, sample=Sample(10**6, Seed(3)))
    torch.testing.assert_close(whole.distances, exact.distances)
    start = {n: torch.zeros(s, dtype=torch.float64) for n, s in shapes.items()}
    spike = {n: t.clone() for n, t in changes[0].items()}
    spike["a.weight"][7, 7] += 1e4  # no row of the sample has it, and it lies far away all the same
    hidden = Vectors([spike, *changes[1:]], weights, sample=Sample(2_000, Seed(3)))
    assert float(hidden.distances[0, 1:].min()) > 0.9e8
    picked, same = (robust.multi_krum(byzantine=3, sample=s)(start, replies, CONTEXT) for s in (4000, None))
    for name in shapes:
        torch.testing.assert_close(picked[name], same[name])
    with pytest.raises(InputError, match="sample is a count"):
        robust.krum(sample=0)(start, replies, CONTEXT)
