"""Networks with a features/head split, and how to ask for one by name."""

from fedquilt.models.counts import Counts, count
from fedquilt.models.encoder import TextEncoder, tokenise
from fedquilt.models.registry import available, make, net
from fedquilt.models.resnet import ResNet
from fedquilt.models.signals import SignalCNN
from fedquilt.models.small import MLP, CNNCifar, CNNMnist, FedAvgCNN, LeNet5, LogisticRegression
from fedquilt.models.text import CharRNN, TextCNN
from fedquilt.models.vit import ViT, ViTCehgls
from fedquilt.models.weights import Loaded, load_weights, with_weights

__all__ = [
    "MLP", "CNNCifar", "CNNMnist", "CharRNN", "Counts", "FedAvgCNN", "LeNet5", "Loaded", "LogisticRegression", "ResNet",
    "SignalCNN", "TextCNN", "TextEncoder", "ViT", "ViTCehgls", "available", "count", "load_weights", "make", "net",
    "tokenise", "with_weights",
]  # fmt: skip
