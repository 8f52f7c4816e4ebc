"""A method of one's own: the server keeps momentum (FedAvgM, Hsu et al. 2019)."""

from dataclasses import dataclass, replace

from fedquilt import FedAvg, OnBase, record
from fedquilt.core.params import Params, add, scale, sub, zeros_like


@record
class Rolling:  # the server's state: the shared model and the velocity it has gathered
    shared: Params
    velocity: Params


@dataclass(frozen=True, kw_only=True)
class ServerMomentum(OnBase):  # v <- beta v + mean change;  w <- w + v; everything else is asked of the base
    base: FedAvg
    beta: float = 0.5

    def init_server(self, seed):
        shared = self.base.init_server(seed).shared
        return Rolling(shared, zeros_like(shared))

    def exchanges(self):
        return (replace(self.base.exchanges()[0], up=self.up),)

    def up(self, state, replies, context):
        merged = self.base.aggregate(state.shared, replies, context)
        velocity = add(scale(state.velocity, self.beta), sub(merged, state.shared))
        return state if merged is state.shared else Rolling(add(state.shared, velocity), velocity)  # nobody replied
