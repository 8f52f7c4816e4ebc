"""Small networks for vectors and images."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from fedquilt.errors import InputError
from fedquilt.models.split import Split, check_counts, check_share


class LogisticRegression(Split):
    """One linear layer: multinomial logistic regression. It has no parameters in ``features``.

    Example:
        >>> import torch
        >>> LogisticRegression(features=64, classes=10)(torch.zeros(2, 64)).shape
        torch.Size([2, 10])
    """

    flat = True

    def __init__(self, features: int, classes: int) -> None:
        check_counts(features=features, classes=classes)
        super().__init__(nn.Flatten(), nn.Linear(features, classes), (features,))


class MLP(Split):
    """Linear layers with ReLU between them; the last hidden layer is the feature vector.

    Args:
        hidden: Width of each hidden layer.

    Example:
        >>> import torch
        >>> MLP(features=64, classes=10, hidden=(32, 16))(torch.zeros(2, 64)).shape
        torch.Size([2, 10])
    """

    flat = True

    def __init__(self, features: int, classes: int, hidden: Sequence[int] = (200,)) -> None:
        if not isinstance(hidden, Sequence):
            raise InputError(f"hidden must be one width for each hidden layer, like (200,), got {hidden!r}.")
        check_counts(features=features, classes=classes, **{f"hidden[{i}]": h for i, h in enumerate(hidden)})
        widths = (features, *hidden)
        layers: list[nn.Module] = [nn.Flatten()]
        for wide, narrow in pairwise(widths):
            layers += [nn.Linear(wide, narrow), nn.ReLU()]
        super().__init__(nn.Sequential(*layers), nn.Linear(widths[-1], classes), (features,))


class LeNet5(Split):
    """LeNet-5 with tanh and average pooling: 61,706 parameters for 1x28x28 and 10 classes.

    28x28 images are padded to the 32x32 of the paper. The features hold 60,856 of the parameters; studies of clustered
    federations call this split of it SplitLeNet.

    Reference: LeCun, Bottou, Bengio and Haffner, Gradient-Based Learning Applied to Document Recognition, 1998.

    Example:
        >>> import torch
        >>> LeNet5()(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """

    def __init__(self, classes: int = 10, channels: int = 1, size: int = 28) -> None:
        check_counts(classes=classes, channels=channels)
        if size not in (28, 32):
            raise InputError(f"LeNet5 takes images of 28x28 or 32x32, got size {size!r}. Resize them, or use MLP.")
        features = nn.Sequential(
            nn.Conv2d(channels, 6, 5, padding=2 if size == 28 else 0),
            nn.Tanh(),
            nn.AvgPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.Tanh(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(400, 120),
            nn.Tanh(),
            nn.Linear(120, 84),
            nn.Tanh(),
        )
        super().__init__(features, nn.Linear(84, classes), (channels, size, size))


class FedAvgCNN(Split):
    """The CNN of the FedAvg paper without padding: its features have 576,896 parameters for 1x28x28.

    Two 5x5 convolutions (32 and 64 maps) with ReLU and 2x2 max pooling, one hidden layer, one head. Unpadded as in
    most later personalisation code.

    Args:
        hidden: Width of the hidden layer.

    Reference: McMahan et al., Communication-Efficient Learning of Deep Networks, 2017, arXiv:1602.05629.

    Example:
        >>> import torch
        >>> FedAvgCNN(hidden=64)(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """

    def __init__(self, classes: int = 10, channels: int = 1, size: int = 28, hidden: int = 512) -> None:
        check_counts(classes=classes, channels=channels, size=size, hidden=hidden)
        side = ((size - 4) // 2 - 4) // 2
        if side < 1:
            raise InputError(f"FedAvgCNN takes images of at least 16x16, got size {size}. Use MLP for smaller ones.")
        features = nn.Sequential(
            nn.Conv2d(channels, 32, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * side * side, hidden),
            nn.ReLU(),
        )
        super().__init__(features, nn.Linear(hidden, classes), (channels, size, size))


class CNNMnist(Split):
    """Two 5x5 convolutions (10 and 20 maps), dropout, and 50 hidden units: 21,840 parameters for 1x28x28.

    The small MNIST network of many federated studies. Theirs ends in a log-softmax; here it ends in scores, which
    is the same to cross-entropy: log-softmax of a log-softmax changes nothing.

    Args:
        hidden: Width of the hidden layer.
        dropout: After the second convolution and the hidden layer.

    Example:
        >>> import torch
        >>> CNNMnist()(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self, classes: int = 10, channels: int = 1, size: int = 28, hidden: int = 50, dropout: float = 0.5
    ) -> None:
        check_counts(classes=classes, channels=channels, size=size, hidden=hidden)
        check_share(dropout=dropout)
        side = ((size - 4) // 2 - 4) // 2
        if side < 1:
            raise InputError(f"CNNMnist takes images of at least 16x16, got size {size}. Use MLP for smaller ones.")
        features = nn.Sequential(
            nn.Conv2d(channels, 10, 5),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(10, 20, 5),
            nn.Dropout2d(dropout),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(20 * side * side, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
        )
        super().__init__(features, nn.Linear(hidden, classes), (channels, size, size))


class CNNCifar(Split):
    """Three padded 3x3 convolutions (64, 128, 256 maps), each with ReLU and 2x2 max pooling, and 512 hidden units.

    2,473,610 parameters for 3x32x32 and 10 classes; used in studies of clustered federations.

    Args:
        hidden: Width of the hidden layer.

    Example:
        >>> import torch
        >>> CNNCifar(hidden=64)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(self, classes: int = 10, channels: int = 3, size: int = 32, hidden: int = 512) -> None:
        check_counts(classes=classes, channels=channels, size=size, hidden=hidden)
        if size < 8:
            raise InputError(f"CNNCifar takes images of at least 8x8, got size {size}. Use MLP for smaller ones.")
        layers: list[nn.Module] = []
        for narrow, wide in pairwise((channels, 64, 128, 256)):
            layers += [nn.Conv2d(narrow, wide, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.Flatten(), nn.Linear(256 * (size // 8) ** 2, hidden), nn.ReLU()]
        super().__init__(nn.Sequential(*layers), nn.Linear(hidden, classes), (channels, size, size))
