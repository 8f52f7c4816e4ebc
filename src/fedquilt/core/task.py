"""What the core, data and methods know of a task; the tasks themselves are in :mod:`fedquilt.tasks`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from torch import Tensor

from fedquilt.core.params import Params
from fedquilt.core.plain import Array, Ints, Row
from fedquilt.core.table import Batch, Table


class Task(Protocol):
    """What the targets are, what a model makes of a row, and how both are compared.

    None in the place of a task means one class label for each row.
    """

    @property
    def kind(self) -> str:
        """Of its score records: metrics say which kinds they are computed from."""
        ...

    @property
    def name(self) -> str:
        """What people read."""
        ...

    @property
    def numeric(self) -> bool:
        """Whether its targets are columns of numbers, not names."""
        ...

    def targets(self, y: object, where: str) -> Tensor:
        """Targets as they are stored: checked, one for each row."""
        ...

    def outputs(self, y: Tensor) -> int:
        """How many numbers a model makes of a row with such targets."""
        ...

    def fitted(self, y: Tensor) -> Task:
        """The task with what it takes from training targets, such as their scale."""
        ...

    def numbers(self) -> Row:
        """What :meth:`fitted` took, as plain values: arguments of the task."""
        ...

    def strata(self, y: Array) -> Ints:
        """A number from 0 for each row, by which rows with like targets go together: partitions by label use it."""
        ...

    def constant(self, y: Tensor) -> Tensor:
        """What a model that ignores its input should make of every row: [outputs]."""
        ...

    def value(self, out: Tensor, y: Tensor) -> float:
        """The main metric of these outputs; NaN where it has no value."""
        ...

    def losses(self, out: Tensor, y: Tensor) -> Tensor:
        """The loss of each row."""
        ...

    def __call__(self, out: object, params: Params, fixed: Mapping[str, Any], batch: Batch) -> Tensor:
        """The mean loss: a term of an objective."""
        ...

    def score(self) -> Callable[[Callable[[Params, Batch], Tensor], Params, Table], Any]:
        """What scores a model on a table."""
        ...
