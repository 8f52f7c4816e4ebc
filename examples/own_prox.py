"""A method of one's own that changes the local loss alone: FedAvg with a proximal term (FedProx, Li et al. 2020)."""

from dataclasses import dataclass

from fedquilt import FedAvg


@dataclass(frozen=True)
class Pull:  # mu/2 |w - w_start|^2, w_start being the shared values that the client began from
    mu: float

    def __call__(self, out, params, fixed, batch):
        return self.mu / 2 * sum((params[name] - start).square().sum() for name, start in fixed["start"].items())


@dataclass(frozen=True, kw_only=True)
class Pulled(FedAvg):
    mu: float = 0.1

    @property
    def loss(self):
        return super().loss.plus(Pull(self.mu))
