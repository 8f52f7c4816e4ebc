"""What the gradient of a linear head tells without any search.

With cross-entropy, the gradient of the head is the mean over the batch of (p - e_y) [f, 1]: p are the class shares the
model gives, e_y is 1 at the label, f are the features.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

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
