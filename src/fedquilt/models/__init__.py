"""Networks with a features/head split, masked autoencoders with adapters, and how to ask for one by name."""

from fedquilt.models.adapters import Adapter, LowRank, adapted, inject
from fedquilt.models.counts import Audit, ModelSize, audit, count
from fedquilt.models.encoder import TextEncoder, tokenise
from fedquilt.models.masked.hf_mae import ViTMAE
from fedquilt.models.masked.mae import MaskedAutoencoder
from fedquilt.models.masked.masking import Pictures, Reconstruction, pictures
from fedquilt.models.registry import available, make, net
from fedquilt.models.resnet import ResNet
from fedquilt.models.signals import SignalCNN
from fedquilt.models.small import MLP, CNNCifar, CNNMnist, FedAvgCNN, LeNet5, LogisticRegression
from fedquilt.models.text import CharRNN, TextCNN
from fedquilt.models.vit import ViT, ViTCehgls
from fedquilt.models.weights.start import Loaded, load_weights, with_weights
from fedquilt.moved import moved

__all__ = [
    "MLP",
    "Adapter",
    "Audit",
    "CNNCifar",
    "CNNMnist",
    "CharRNN",
    "FedAvgCNN",
    "LeNet5",
    "Loaded",
    "LogisticRegression",
    "LowRank",
    "MaskedAutoencoder",
    "ModelSize",
    "Pictures",
    "Reconstruction",
    "ResNet",
    "SignalCNN",
    "TextCNN",
    "TextEncoder",
    "ViT",
    "ViTCehgls",
    "ViTMAE",
    "adapted",
    "audit",
    "available",
    "count",
    "inject",
    "load_weights",
    "make",
    "net",
    "pictures",
    "tokenise",
    "with_weights",
]


def __getattr__(name: str) -> object:
    """Names of 0.1."""
    return moved(f"{__name__}:{name}")
