"""What a gradient gives away: labels and features in closed form, inputs by search (DLG and iDLG).

With cross-entropy, the gradient of the head is the mean over the batch of (p - e_y) [f, 1]: p are the class shares the
model gives, e_y is 1 at the label, f are the features. A search is for inputs whose gradient is the one that was sent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedquilt.core.net import Net, logits_of
from fedquilt.core.params import Params
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch

WEIGHT, BIAS = "head.weight", "head.bias"


def class_pull(gradient: Mapping[str, Tensor]) -> Tensor | None:
    """The mean of p - e_y for each class, or what has its sign: the bias's gradient, else the weight's row sums.

    Row sums have the sign of p - e_y where features are not negative (after ReLU or sigmoid). None if neither is there.
    """
    if BIAS in gradient:
        return gradient[BIAS]
    return gradient[WEIGHT].sum(1) if WEIGHT in gradient else None


def present_classes(gradient: Mapping[str, Tensor]) -> set[int] | None:
    """The classes whose pull is negative: only a label that is there can make it so. None if there is no head.

    Exact from the bias's gradient where each class present has more weight than the model gives it: always for a batch
    of one row, and near the start of training.
    """
    pull = class_pull(gradient)
    return None if pull is None else set(torch.nonzero(pull < 0).flatten().tolist())


def label_of(gradient: Mapping[str, Tensor], count: int) -> Tensor | None:
    """The ``count`` most likely labels of a batch, as iDLG does for one: those with the most negative pull."""
    pull = class_pull(gradient)
    if pull is None:
        return None
    order = pull.argsort()
    return order[torch.arange(count) % max(1, min(count, int((pull < 0).sum())))]


def features_of(gradient: Mapping[str, Tensor]) -> Tensor | None:
    """The head's input for a batch of one row: grad W[c] / grad b[c], at the class with the largest |grad b[c]|.

    Without the bias only its direction: the longest row of grad W, signed so that its sum is positive. For a larger
    batch it is a mixture of the rows' features. None if there is no head.
    """
    if WEIGHT not in gradient:
        return None
    weight = gradient[WEIGHT]
    if BIAS in gradient:
        place = gradient[BIAS].abs().argmax()
        return weight[place] / gradient[BIAS][place] if float(gradient[BIAS][place]) != 0 else None
    row = weight[weight.norm(dim=1).argmax()]
    length = row.norm()
    return row / length * torch.sign(row.sum()) if float(length) > 0 else None


SOLVED = 1e-10  # relative squared error at which a search is over
INNER = 20  # steps of L-BFGS in one iteration


@dataclass(frozen=True)
class Puzzle:
    """What an attacker has to explain.

    Args:
        net: The network, which is public.
        model: The values the attacker holds; where it holds none, values of its own.
        gradient: What was seen, by name: the gradient of cross-entropy on a batch, or an estimate of it.
        shape: Of one input.
        low, high: The range of its values.
        head_known: Whether the head's values are known; if not, what it sends back to the features is guessed too.
    """

    net: Net
    model: Params
    gradient: Params
    shape: tuple[int, ...]
    low: float
    high: float
    head_known: bool = True

    def explained(self, unknown: Mapping[str, Tensor], labels: Tensor | None, model: Params) -> Params:
        """The gradient that a guess would give, by name."""
        batch = Batch({self.net.inputs[0]: unknown["x"]})
        names = list(self.gradient)
        train = self.net.normalises  # BatchNorm sees the batch itself; dropout's masks cannot be known
        if self.head_known:
            scores = logits_of(self.net(model, batch, train=train))
            if labels is None:
                loss = -(unknown["label"].softmax(1) * scores.log_softmax(1)).sum(1).mean()
            else:
                loss = F.cross_entropy(scores, labels)
            gradients = torch.autograd.grad(loss, [model[n] for n in names], create_graph=True, materialize_grads=True)
            return dict(zip(names, gradients, strict=True))
        features = self.net.split(model, batch, train=train).features
        pull = unknown["pull"]
        found = {WEIGHT: pull.T @ features, BIAS: pull.sum(0)}
        body = [n for n in names if n not in found]
        if body:
            gradients = torch.autograd.grad(
                features, [model[n] for n in body], unknown["back"], create_graph=True, materialize_grads=True
            )
            found |= dict(zip(body, gradients, strict=True))
        return {n: found[n] for n in names}

    def start(self, count: int, seed: Seed) -> dict[str, Tensor]:
        """A random guess: inputs around the middle of the range, labels or the head's answer from N(0, 1)."""
        draw = seed.torch()
        noise = torch.randn(count, *self.shape, generator=draw)
        unknown = {"x": (self.low + self.high) / 2 + (self.high - self.low) / 4 * noise}
        classes, width = self.model[WEIGHT].shape if WEIGHT in self.model else (0, 0)
        if self.head_known:
            classes = classes or next(t.numel() for t in reversed(self.model.values()) if t.dim() == 1)
            return {**unknown, "label": torch.randn(count, classes, generator=draw)}
        return {
            **unknown,
            "pull": torch.randn(count, classes, generator=draw) / math.sqrt(classes),
            "back": torch.randn(count, width, generator=draw) / width,
        }


@dataclass(frozen=True)
class Guess:
    """Inputs found, in the range of the data; their labels, if they were searched for; and how much is unexplained.

    ``mismatch`` is |gradient - seen|^2 / |seen|^2.
    """

    x: Tensor
    labels: Tensor | None
    mismatch: float


def invert(
    puzzle: Puzzle, count: int, seed: Seed, labels: Tensor | None = None, iterations: int = 30, restarts: int = 1
) -> Guess:
    """Search with L-BFGS for ``count`` inputs whose gradient is the one seen; the best of some random starts.

    Without ``labels`` soft labels are searched for too (DLG); with them this is iDLG.

    References: Zhu et al., Deep Leakage from Gradients, 2019; Zhao et al., iDLG, 2020.
    """
    if labels is not None and not puzzle.head_known:
        labels = None  # a head that is not known makes nothing of a label
    found = [_searched(puzzle, count, seed.fold("start", i), labels, iterations) for i in range(restarts)]
    return min(found, key=lambda guess: guess.mismatch)


def _searched(puzzle: Puzzle, count: int, seed: Seed, labels: Tensor | None, iterations: int) -> Guess:
    unknown = puzzle.start(count, seed)
    if labels is not None:
        del unknown["label"]
    free = [t.requires_grad_() for t in unknown.values()]
    model = puzzle.net.own(puzzle.model)
    for name in puzzle.gradient:
        model[name].requires_grad_()
    size = math.fsum(float(t.double().square().sum()) for t in puzzle.gradient.values()) or 1.0
    best = Guess(unknown["x"].detach().clone(), None, math.inf)

    def mismatch() -> float:
        nonlocal best
        found = puzzle.explained(unknown, labels, model)
        error = torch.stack([(found[n] - seen).square().sum() for n, seen in puzzle.gradient.items()]).sum() / size
        for tensor, gradient in zip(free, torch.autograd.grad(error, free, materialize_grads=True), strict=True):
            tensor.grad = gradient
        value = float(error.detach())
        if value < best.mismatch:
            here = unknown["label"].argmax(1) if "label" in unknown else labels
            best = Guess(unknown["x"].detach().clone(), here, value)
        return value

    search = torch.optim.LBFGS(
        free, lr=1.0, max_iter=INNER, tolerance_grad=0.0, tolerance_change=0.0, line_search_fn="strong_wolfe"
    )
    for _ in range(iterations):
        before = best.mismatch
        value = search.step(mismatch)
        if best.mismatch < SOLVED or best.mismatch == before or not math.isfinite(value):
            break
    return Guess(best.x.clamp(puzzle.low, puzzle.high), best.labels, best.mismatch)
