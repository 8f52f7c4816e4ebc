"""Networks with a features/head split, and how to ask for one by name."""

from fedquilt.models.registry import available, make
from fedquilt.models.small import MLP, FedAvgCNN, LeNet5, LogisticRegression

__all__ = ["MLP", "FedAvgCNN", "LeNet5", "LogisticRegression", "available", "make"]
