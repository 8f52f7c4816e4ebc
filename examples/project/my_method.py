"""A method of your own: FedAvg whose server keeps momentum (FedAvgM). What else there is: docs/own-method.md."""

from dataclasses import dataclass, replace

from fedquilt import OnBase, record
from fedquilt.core.params import Params, add, scale, sub, zeros_like


@record
class ServerState:
    """What the server keeps from round to round: the global model, and the velocity it has gathered."""

    shared: Params
    velocity: Params


@dataclass(frozen=True, init=False)
class MyMethod(OnBase):
    """v <- beta v + mean change;  w <- w + v. Clients train as in FedAvg.

    Args:
        beta: How much of the velocity stays, in [0, 1); 0 is FedAvg.
    """

    beta: float = 0.5

    def init_server(self, seed):
        """Before the first round."""
        shared = self.base.init_server(seed).shared
        return ServerState(shared, zeros_like(shared))

    def exchanges(self):
        """FedAvg's exchange, with a step of the server that is our own."""
        (train,) = self.base.exchanges()
        return (replace(train, up=self.up),)

    def up(self, state, replies, context):
        """After each round: all that clients sent, into the next state."""
        change = sub(self.base.aggregate(state.shared, replies, context), state.shared)
        velocity = add(scale(state.velocity, self.beta), change)
        return ServerState(add(state.shared, velocity), velocity)
