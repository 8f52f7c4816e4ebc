"""Any number of labels for each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedquilt.core.plain import Array, Ints
from fedquilt.errors import InputError
from fedquilt.metrics.multi_label import KIND, METRICS, sums
from fedquilt.metrics.table import Metric
from fedquilt.tasks.task import Task


@dataclass(frozen=True)
class MultiLabel(Task):
    """Predict which of several labels a row has: targets [rows, labels] of 0 and 1; outputs are their log-odds.

    Args:
        main: The metric that methods are compared by.
        positive: How many times as much a label that is there counts in the loss as one that is not.

    Example:
        >>> import torch
        >>> MultiLabel().answers(torch.tensor([[0.0, -100.0]])).tolist()
        [[0.5, 0.0]]
    """

    kind: ClassVar[str] = KIND
    name: ClassVar[str] = "multi-label classification"
    trivial: ClassVar[str] = "commonest labels"
    known: ClassVar[tuple[Metric, ...]] = METRICS
    main: str = "micro_f1"
    positive: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.positive > 0:
            raise InputError(f"positive should be more than 0, got {self.positive!r}.")

    def targets(self, y: object, where: str) -> Tensor:
        """0 and 1 as float32, [rows, labels]."""
        given = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
        if given.dtype.kind not in "biuf" or given.ndim != 2 or not given.shape[1]:
            raise InputError(
                f"{where}: y holds {given.dtype} of shape {given.shape}, but several labels are a column of 0 and 1 "
                "for each label: [rows, labels]."
            )
        odd = given[(given != 0) & (given != 1)]
        if len(odd):
            raise InputError(f"{where}: y holds {odd[0]!r}, but a row has a label (1) or has it not (0).")
        return torch.from_numpy(given.astype(np.float32))

    def strata(self, y: Array) -> Ints:
        """The rarest label that a row has, from 1; 0 for rows without any."""
        has = np.asarray(y) > 0.5
        order = np.argsort(has.sum(0), kind="stable")
        found: Ints = np.where(has.any(1), order[has[:, order].argmax(1)] + 1, 0).astype(np.int64)
        return found

    def losses(self, out: Tensor, y: Tensor) -> Tensor:
        """The mean over labels of the binary cross-entropy of each row."""
        weight = torch.as_tensor(self.positive, dtype=out.dtype, device=out.device)
        return F.binary_cross_entropy_with_logits(out, y, reduction="none", pos_weight=weight).mean(1)

    def answers(self, out: Tensor) -> Tensor:
        """The probability of each label."""
        return out.sigmoid()

    def counts(self, answers: Tensor, y: Tensor) -> Tensor:
        """See :func:`fedquilt.metrics.multi_label.sums`."""
        return sums(answers, y)

    def constant(self, y: Tensor) -> Tensor:
        """The log-odds of each label."""
        return torch.logit(y.double().mean(0), eps=1e-6)
