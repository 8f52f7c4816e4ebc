"""Gradients of the cross-entropy along a linear head, class by class: what some methods send besides their weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fedquilt.core.net import Net
from fedquilt.core.params import Params, check_reach, same_names
from fedquilt.core.table import Table
from fedquilt.errors import InputError
from fedquilt.records.record import record

WEIGHT, BIAS = "head.weight", "head.bias"


@record
class ClassGradients:
    """Of each class the mean gradient over its rows, for each tensor of the head, and whether there are any rows."""

    gradients: Params
    shown: Tensor


@record
class GradientUpload:
    """How the shared part changed, and the client's gradients."""

    delta: Params
    classes: ClassGradients


def head_of(params: Params) -> Params:
    """The weights of the linear layer called ``head``."""
    if WEIGHT not in params or params[WEIGHT].dim() != 2:
        raise InputError("This method needs a network whose last part is a linear layer called head, shared by all.")
    return {n: params[n] for n in (WEIGHT, BIAS) if n in params}


def scores(head: Params, z: Tensor) -> Tensor:
    """W z + b."""
    found = z @ head[WEIGHT].T
    return found + head[BIAS] if BIAS in head else found


def head_gradient(head: Params, z: Tensor, y: Tensor) -> Params:
    """The mean over rows of the gradient of -log softmax(W z + b)_y: (p - e_y) z' along W, p - e_y along b.

    Axes before the last two of ``z`` (rows, features) and the last one of ``y`` are kept.
    """
    off = scores(head, z).softmax(-1) - F.one_hot(y, len(head[WEIGHT]))
    found = {WEIGHT: off.mT @ z / z.shape[-2], BIAS: off.mean(-2)}
    return {n: found[n] for n in head}


def class_gradients(net: Net, params: Params, table: Table, head: Params) -> ClassGradients:
    """The gradients along ``head`` of a client's samples, in evaluation mode; zeros for classes it has not."""
    with torch.no_grad():
        blocks = [(net.split(params, batch).features.flatten(1), batch.y) for batch in table.blocks(512)]
    z, y = (torch.cat(parts) for parts in zip(*blocks, strict=True))
    classes = len(head[WEIGHT])
    found = {n: t.new_zeros(classes, *t.shape) for n, t in head.items()}
    for c in y.unique().tolist():
        for name, gradient in head_gradient(head, z[y == c], y[y == c]).items():
            found[name][c] = gradient
    return ClassGradients(found, torch.bincount(y, minlength=classes) > 0)


def mean_gradients(heard: Sequence[ClassGradients]) -> ClassGradients:
    """Class by class the mean over the clients that show the class."""
    count = torch.stack([h.shown for h in heard]).sum(0)
    means = {}
    for name, first in heard[0].gradients.items():
        shape = (-1, *(1 for _ in first.shape[1:]))
        total = torch.zeros_like(first, dtype=torch.float64)
        for h in heard:
            total += h.gradients[name] * h.shown.reshape(shape)
        means[name] = (total / count.clamp(min=1).reshape(shape)).to(first.dtype)
    return ClassGradients(means, count > 0)


def check_gradients(upload: ClassGradients, head: Params) -> None:
    """Raise unless the gradients fit this head."""
    classes = len(head[WEIGHT])
    same_names({n: t.new_zeros(classes, *t.shape) for n, t in head.items()}, upload.gradients, "upload.gradients")
    check_reach(upload.gradients, head, "upload.gradients")
    if upload.shown.shape != (classes,) or upload.shown.dtype != torch.bool:
        raise InputError(f"upload.shown must be {classes} truth values, got {upload.shown.tolist()[:5]}.")
