"""A method of one's own: the server keeps momentum (FedAvgM, Hsu et al. 2019).

Run: python examples/own_method.py
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedquilt import FedAvg, Federation, Net, OnBase, record, run
from fedquilt.core.params import Params, add, scale, sub, zeros_like
from fedquilt.data import Dirichlet
from fedquilt.models import MLP


# The method: 22 lines.
@record
class Rolling:
    """The server's state: the shared model and the velocity it has gathered."""

    shared: Params
    velocity: Params


@dataclass(frozen=True, kw_only=True)
class ServerMomentum(OnBase):
    """v <- beta v + mean change;  w <- w + v. Everything else is asked of the base."""

    base: FedAvg
    beta: float = 0.5

    def init_server(self, seed):
        shared = self.base.init_server(seed).shared
        return Rolling(shared, zeros_like(shared))

    def exchanges(self):
        (train,) = self.base.exchanges()
        return (replace(train, up=self.up),)

    def up(self, state, replies, context):
        change = sub(self.base.aggregate(state.shared, replies, context), state.shared)
        velocity = add(scale(state.velocity, self.beta), change)
        return Rolling(add(state.shared, velocity), velocity)


def main() -> dict[str, float]:
    """Compare it with its base; returns the accuracies."""
    federation = Federation.from_source("digits", partition=Dirichlet(0.3), clients=10)
    base = FedAvg(objective=Net.of(MLP, features=64, classes=10), batch_size=10)
    found = {}
    for name, method in {"FedAvg": base, "with server momentum": ServerMomentum(base=base)}.items():
        for snapshot in run(method, federation, rounds=10):
            found[name] = snapshot.metrics["test_accuracy"]
        print(f"{name}: accuracy {found[name]:.3f} after {snapshot.round} rounds, state {snapshot.digest()[:12]}")
    return found


if __name__ == "__main__":
    main()
