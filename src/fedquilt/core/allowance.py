"""How much local training one task may ask for, where somebody limits it: at a site, whose server names the method."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

from fedquilt.errors import InputError
from fedquilt.records.declared import shown


class OverLimit(InputError):
    """A task asks for more than is allowed here; the text may leave the site."""


@dataclass
class Allowance:
    """What one task may do: passes of each training, and steps of all of them."""

    epochs: int
    steps: int
    asked: int = 0  # steps so far

    def take(self, epochs: int | None, steps: int) -> None:
        """A training is about to begin; raises if it asks for too much."""
        if epochs is not None and epochs > self.epochs:
            raise OverLimit(f"the task asks for {shown(epochs)} epochs, and this site allows {self.epochs}")
        self.asked += steps
        if self.asked > self.steps:
            raise OverLimit(f"the task asks for {shown(self.asked)} steps, and this site allows {self.steps}")


ALLOWED: ContextVar[Allowance | None] = ContextVar("ALLOWED", default=None)


def ask(epochs: int | None, steps: int) -> None:
    """Ask for so much training, before it begins; raises where less is allowed."""
    allowance = ALLOWED.get()
    if allowance is not None:
        allowance.take(epochs, steps)
