"""How much is kept, round by round."""

from __future__ import annotations

from dataclasses import dataclass

from fedquilt.core.errors import InputError


@dataclass(frozen=True)
class Density:
    """K_1 = k_init; then K_t = clip(1 - mu * accuracy, k_min, 1) with the accuracy of the merged model before.

    Args:
        k_init: In the first round, and until an accuracy is known; in (0, 1].
        mu: In [0, 1]. 0.035 gives the densities of the published runs, K from 0.997 to 0.966; 1 really sparsifies.
        k_min: Never less, in (0, 1].
        fixed: If set, K of every round.
    """

    k_init: float = 0.95
    mu: float = 0.035
    k_min: float = 0.01
    fixed: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("k_init", self.k_init), ("k_min", self.k_min), ("keep", self.fixed)):
            if value is not None and not 0 < value <= 1:
                raise InputError(f"{name} is a share of what is kept, in (0, 1], got {value}.")
        if not 0 <= self.mu <= 1:
            raise InputError(f"mu must be in [0, 1], got {self.mu}.")

    def __call__(self, accuracy: float | None) -> float:
        """K after this accuracy; None before the first."""
        if self.fixed is not None:
            return self.fixed
        if accuracy is None:
            return self.k_init
        if not 0 <= accuracy <= 1:
            raise InputError(f"An accuracy is a fraction in [0, 1], got {accuracy}.")
        return min(max(1 - self.mu * accuracy, self.k_min), 1.0)
