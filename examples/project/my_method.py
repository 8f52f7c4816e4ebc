"""Your own method: FedAvg with server momentum (FedAvgM). The complete interface: docs/own-method.md."""

from dataclasses import dataclass, replace

from fedquilt import OnBase, record
from fedquilt.core.params import Params, add, scale, sub, zeros_like


@record
class ServerState:
    """Server state: the global model and the velocity."""

    shared: Params
    velocity: Params


@dataclass(frozen=True, init=False)
class MyMethod(OnBase):
    """v <- beta v + mean update;  w <- w + v. Clients train as in FedAvg.

    Args:
        beta: Momentum, in [0, 1); 0 is FedAvg.
    """

    beta: float = 0.5

    def init_server(self, seed):
        """The initial server state."""
        shared = self.base.init_server(seed).shared
        return ServerState(shared, zeros_like(shared))

    def exchanges(self):
        """FedAvg's exchange with a custom server step."""
        (train,) = self.base.exchanges()
        return (replace(train, up=self.up),)

    def up(self, state, replies, context):
        """Aggregate the replies of a round into the next state; without replies, nothing changes."""
        replies = list(replies)
        if not replies:
            return state
        update = sub(self.base.aggregate(state.shared, replies, context), state.shared)
        velocity = add(scale(state.velocity, self.beta), update)
        return ServerState(add(state.shared, velocity), velocity)
