"""A task of one's own, as recipes name it: the answer should be above the target in nine of ten rows."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedquilt.metrics.table import Metric
from fedquilt.tasks import Regression

BELOW = Metric(
    id="below",
    name="rows below",
    of=lambda counts: counts.sums["below"][:, 0] / counts.rows,
    kinds=("regression",),
    summaries=("pooled",),
    statistic=lambda answers, y: (y <= answers[:, 0]).double().sum().reshape(1),
)


@dataclass(frozen=True)
class Upper(Regression):
    """An answer that a share of the targets lies below."""

    name: ClassVar[str] = "upper bound"
    known: ClassVar[tuple[Metric, ...]] = (BELOW, *Regression.known)
    main: str = "mae"
    share: float = 0.9

    def losses(self, out, y):
        """The pinball loss of each row."""
        short = self.standardised(y) - out
        return torch.maximum(self.share * short, (self.share - 1) * short).mean(1)
