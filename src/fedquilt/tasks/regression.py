"""One number, or a vector of numbers, for each row."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedquilt.core.plain import Row
from fedquilt.errors import InputError
from fedquilt.metrics.regression import KIND, METRICS, sums
from fedquilt.metrics.table import Metric
from fedquilt.tasks.task import Task

LARGEST = 1e15  # of a target: its square is summed


@dataclass(frozen=True)
class Regression(Task):
    """Predict one number or several: targets [rows] or [rows, d].

    A model's outputs are standardised: the answer is ``centre + scale * output``, and losses are of standardised
    errors, so that learning rates need not know the units of targets. Metrics are in the units of targets.

    Args:
        main: The metric that methods are compared by.
        loss: 'mse' (squared error), 'mae' (absolute), 'huber' (squared up to ``delta``, then absolute), 'quantile'
            (the pinball loss, whose best answer is the ``quantile`` of targets).
        delta: Of the Huber loss, in standard deviations.
        quantile: Of the quantile loss.
        centre, scale: Of targets, one number or one for each; by default mean and deviation of all training targets.

    Example:
        >>> import torch
        >>> task = Regression(centre=(10.0,), scale=(2.0,))
        >>> task.answers(torch.tensor([[0.5]])).tolist()
        [[11.0]]
    """

    kind: ClassVar[str] = KIND
    name: ClassVar[str] = "regression"
    trivial: ClassVar[str] = "mean of training targets"
    known: ClassVar[tuple[Metric, ...]] = METRICS
    main: str = "mae"
    loss: Literal["mse", "mae", "huber", "quantile"] = "mse"
    delta: float = 1.0
    quantile: float = 0.5
    centre: float | tuple[float, ...] | None = None
    scale: float | tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss not in ("mse", "mae", "huber", "quantile"):
            raise InputError(f"loss should be 'mse', 'mae', 'huber' or 'quantile', got {self.loss!r}.")
        if not self.delta > 0:
            raise InputError(f"delta should be more than 0, got {self.delta!r}.")
        if not 0 < self.quantile < 1:
            raise InputError(f"quantile should be between 0 and 1, got {self.quantile!r}.")
        if self.scale is not None and not all(s > 0 for s in _each(self.scale)):
            raise InputError(f"scale should be more than 0, got {self.scale!r}.")

    def targets(self, y: object, where: str) -> Tensor:
        """Finite numbers as float32, [rows] or [rows, d]."""
        given = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
        if given.dtype.kind not in "biuf":
            raise InputError(f"{where}: y holds {given.dtype}, but targets of a regression are numbers.")
        if given.ndim not in (1, 2) or (given.ndim == 2 and not given.shape[1]):
            raise InputError(f"{where}: y has shape {given.shape}. Give one number for each row, or a row of numbers.")
        wide = given.astype(np.float64)
        odd = ~(np.abs(wide) <= LARGEST).reshape(len(wide), -1).all(1)
        if odd.any():
            raise InputError(
                f"{where}: y has NaN, infinite or huge values in {int(odd.sum())} of {len(wide)} rows (the first is "
                f"row {int(odd.argmax())}). Fill them in or drop those rows."
            )
        return torch.from_numpy(wide.astype(np.float32))

    def fitted(self, y: Tensor) -> Regression:
        """With the mean and deviation of these targets, where they are not given."""
        wide = y.double().reshape(len(y), -1)
        spread = wide.std(0, correction=0)
        spread = torch.where(spread > 0, spread, 1.0)
        centre = tuple(wide.mean(0).tolist()) if self.centre is None else self._as_many(self.centre, wide.shape[1])
        scale = tuple(spread.tolist()) if self.scale is None else self._as_many(self.scale, wide.shape[1])
        return replace(self, centre=centre, scale=scale)

    def _as_many(self, given: float | tuple[float, ...], wanted: int) -> tuple[float, ...]:
        values = _each(given)
        if len(values) not in (1, wanted):
            raise InputError(f"There are {wanted} targets in a row, but centre or scale has {len(values)} numbers.")
        return values * (wanted // len(values))

    def numbers(self) -> Row:
        """Centre and scale."""
        return {name: None if v is None else list(_each(v)) for name, v in self._places().items()}

    def _places(self) -> dict[str, float | tuple[float, ...] | None]:
        return {"centre": self.centre, "scale": self.scale}

    def _place(self, like: Tensor) -> tuple[Tensor, Tensor]:
        centre, scale = (
            like.new_tensor(default if v is None else _each(v))
            for v, default in ((self.centre, 0.0), (self.scale, 1.0))
        )
        return centre, scale

    def standardised(self, y: Tensor) -> Tensor:
        """Targets as a model's outputs should be: [rows, d]."""
        wide = y.reshape(len(y), -1)
        centre, scale = self._place(wide)
        return (wide - centre) / scale

    def answers(self, out: Tensor) -> Tensor:
        """Outputs in the units of targets."""
        centre, scale = self._place(out)
        return out * scale + centre

    def losses(self, out: Tensor, y: Tensor) -> Tensor:
        """The loss of each row, a mean over its targets."""
        wanted = self.standardised(y)
        if self.loss == "mse":
            each = (out - wanted).square()
        elif self.loss == "mae":
            each = (out - wanted).abs()
        elif self.loss == "huber":
            each = F.huber_loss(out, wanted, reduction="none", delta=self.delta)
        else:
            short = wanted - out
            each = torch.maximum(self.quantile * short, (self.quantile - 1) * short)
        return each.mean(1)

    def counts(self, answers: Tensor, y: Tensor) -> Tensor:
        """See :func:`fedquilt.metrics.regression.sums`."""
        wide = y.double().reshape(len(y), -1)
        return sums(answers, wide, self._place(wide)[0])

    def constant(self, y: Tensor) -> Tensor:
        """The mean of targets."""
        return self.standardised(y.double()).mean(0)


def _each(value: float | tuple[float, ...] | list[float]) -> tuple[float, ...]:
    return tuple(map(float, value)) if isinstance(value, tuple | list) else (float(value),)
