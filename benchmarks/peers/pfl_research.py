"""pfl-research's FederatedAveraging on its simulated backend; with the argument 2, cohorts shared by two processes."""

import importlib.metadata
import os
import socket
import subprocess
import sys

if sys.argv[1:] == ["2"] and "PFL_WORKER_RANK" not in os.environ:  # as its guide to distributed simulations says
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    os.environ |= {"PFL_WORKER_ADDRESSES": f"127.0.0.1:{port},127.0.0.1:{port + 1}", "PFL_WORKER_RANK": "0"}
    subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "PFL_WORKER_RANK": "1", "PEERS_OUT": os.devnull})

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch.nn import functional as F
from work import BATCH, asked, now, told

work, data, rounds = asked()
torch.set_num_threads(1)


class Trained(type(data.network())):
    """The network with the two methods that pfl-research asks for."""

    def loss(self, x, y):
        """Cross-entropy."""
        return F.cross_entropy(self(x), y)

    def metrics(self, x, y):
        """What an evaluation sums; none is asked for."""
        return {"loss": Weighted(float(F.cross_entropy(self(x), y)) * len(y), len(y))}


class Ends(TrainingProcessCallback):
    """Remembers when rounds ended."""

    def __init__(self):
        self.ends = [now()]

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        """Never stops the run."""
        self.ends.append(now())
        return False, Metrics()


rng = np.random.default_rng(0)
queue: list[int] = []


def sampled() -> int:
    """The next client: each round a cohort without repetition, the same in all processes."""
    if not queue:
        queue.extend(int(c) for c in rng.choice(work.clients, work.cohort, replace=False))
    return queue.pop(0)


def dataset(user: int) -> Dataset:
    """The rows of one client, in an order of their own."""
    x, y = data.client(user)
    order = torch.randperm(len(y))
    return Dataset(raw_data=[x[order], y[order]])


module = Trained()
module.load_state_dict(data.start)
model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
backend = SimulatedBackend(training_data=FederatedDataset(dataset, sampled), val_data=None)
steps = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=work.lr, local_batch_size=BATCH)
plan = NNAlgorithmParams(
    central_num_iterations=rounds, evaluation_frequency=rounds + 1, train_cohort_size=work.cohort, val_cohort_size=0
)
timed = Ends()
FederatedAveraging().run(
    algorithm_params=plan,
    backend=backend,
    model=model,
    model_train_params=steps,
    model_eval_params=NNEvalHyperParams(local_batch_size=100),
    callbacks=[timed],
)
told(timed.ends, data.accuracy(module), version=importlib.metadata.version("pfl"))
