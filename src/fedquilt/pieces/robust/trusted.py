"""What a server learns by itself, from rows that it trusts: the reference of ``fltrust``."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedquilt.core.exchange import Context
from fedquilt.core.objective import Objective
from fedquilt.core.params import Params, sub
from fedquilt.core.table import Table
from fedquilt.errors import InputError


@dataclass(frozen=True, eq=False)
class learned_on:
    """The change that some steps of SGD make from the round's model, on rows of the server's own.

    Methods whose whole model is shared can use it: the server has no private parts.

    Args:
        objective: The network and its loss, for example ``method.loss``.
        rows: A hundred will do, of all classes; ``federation.server_valid`` holds them, say.
        lr, steps, batch_size: How it learns; about as far as a client does.

    Example:
        >>> from fedquilt.pieces.robust import fltrust
        >>> from fedquilt.testing import digits, fedavg
        >>> rows = digits(clients=4).site(0, 0).train
        >>> aggregate = fltrust(reference=learned_on(fedavg().loss, rows))
    """

    objective: Objective
    rows: Table
    lr: float = 0.05
    steps: int = 10
    batch_size: int = 32

    def __post_init__(self) -> None:
        if not (self.lr > 0 and self.steps >= 1 and self.batch_size >= 1 and len(self.rows)):
            raise InputError(
                f"learned_on needs rows, lr > 0, steps >= 1, batch_size >= 1, got {len(self.rows)} rows, lr {self.lr}, "
                f"steps {self.steps} and batch_size {self.batch_size}."
            )

    def __call__(self, current: Params, context: Context) -> Params:
        """The server's own change in this round."""
        params, moved = dict(current), [n for n in self.objective.trainable if n in current]
        for batch in self.rows.batches(self.batch_size, 1, context.seed.fold("trusted"), self.steps):
            free = {n: params[n].detach().requires_grad_() for n in moved}
            with torch.enable_grad():
                loss = self.objective({**params, **free}, {"start": current}, batch)
            gradients = torch.autograd.grad(loss, list(free.values()))
            params |= {n: (t - self.lr * g).detach() for (n, t), g in zip(free.items(), gradients, strict=True)}
        return sub(params, current)
