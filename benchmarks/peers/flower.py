"""Flower's simulation runtime: its own FedAvg, two Ray actors of one core and one thread each."""

import logging

import flwr
from flower_app import client
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from work import asked, now, told

server = ServerApp()


class Timed(FedAvg):
    """FedAvg that remembers when its rounds ended."""

    ends: list[float]

    def aggregate_train(self, server_round, replies):
        """As FedAvg."""
        done = super().aggregate_train(server_round, replies)
        self.ends.append(now())
        return done


@server.main()
def serve(grid, context):
    """Play the rounds and score the result."""
    work, data, rounds = asked()
    strategy = Timed(
        fraction_train=work.cohort / work.clients,
        fraction_evaluate=0.0,
        min_train_nodes=work.cohort,
        min_available_nodes=work.clients,
    )
    strategy.ends = [began]
    module = data.network()
    result = strategy.start(grid=grid, initial_arrays=ArrayRecord(module.state_dict()), num_rounds=rounds)
    module.load_state_dict(result.arrays.to_torch_state_dict())
    told(strategy.ends, data.accuracy(module), version=flwr.__version__)


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.ERROR)
    work, _, _ = asked()
    began = now()
    resources = {"num_cpus": 1, "num_gpus": 0.0}
    config = {"client_resources": resources, "init_args": {"num_cpus": 2, "include_dashboard": False}}
    run_simulation(server_app=server, client_app=client, num_supernodes=work.clients, backend_config=config)
