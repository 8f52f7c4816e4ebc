"""Small networks. Each is ``head(features(x))``, so that methods can keep the one and share the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from fedquilt.core.errors import InputError


class Split(nn.Module):
    """A network in two parts: ``features`` makes a vector of each row, ``head`` makes class scores of the vector."""

    def __init__(self, features: nn.Module, head: nn.Linear, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.features = features
        self.head = head
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        """Class scores, one row for each row of x."""
        if x.shape[1:] != self.shape:
            self._check(x)
        scores: Tensor = self.head(self.features(x))
        return scores

    def _check(self, x: Tensor) -> None:
        raise InputError(f"{type(self).__name__} takes {_text(self.shape)}, got {_text(x.shape[1:])}.{_AXES}")


class _Flat(Split):
    """A network that flattens its input first, so any shape with the right count will do."""

    def _check(self, x: Tensor) -> None:
        if math.prod(x.shape[1:]) != self.shape[0] or x.dim() < 2:
            raise InputError(
                f"{type(self).__name__} takes {_text(self.shape)} (or any shape with {self.shape[0]} numbers), "
                f"got {_text(x.shape[1:])}."
            )


class LogisticRegression(_Flat):
    """One linear layer: multinomial logistic regression. It has no parameters in ``features``."""

    def __init__(self, features: int, classes: int) -> None:
        _check_counts(features=features, classes=classes)
        super().__init__(nn.Flatten(), nn.Linear(features, classes), (features,))


class MLP(_Flat):
    """Linear layers with ReLU between them; the last hidden layer is the feature vector."""

    def __init__(self, features: int, classes: int, hidden: Sequence[int] = (200,)) -> None:
        if not isinstance(hidden, Sequence):
            raise InputError(f"hidden must be one width for each hidden layer, like (200,), got {hidden!r}.")
        _check_counts(features=features, classes=classes, **{f"hidden[{i}]": h for i, h in enumerate(hidden)})
        widths = (features, *hidden)
        layers: list[nn.Module] = [nn.Flatten()]
        for wide, narrow in pairwise(widths):
            layers += [nn.Linear(wide, narrow), nn.ReLU()]
        super().__init__(nn.Sequential(*layers), nn.Linear(widths[-1], classes), (features,))


class LeNet5(Split):
    """LeNet-5 with tanh and average pooling: 61,706 parameters for 1x28x28 and 10 classes.

    LeCun, Bottou, Bengio, Haffner 1998. 28x28 images are padded to the 32x32 of the paper.
    """

    def __init__(self, classes: int = 10, channels: int = 1, size: int = 28) -> None:
        _check_counts(classes=classes, channels=channels)
        if size not in (28, 32):
            raise InputError(f"LeNet5 takes images of 28x28 or 32x32, got size {size!r}. Resize them, or use MLP.")
        features = nn.Sequential(
            nn.Conv2d(channels, 6, 5, padding=2 if size == 28 else 0), nn.Tanh(), nn.AvgPool2d(2),
            nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2),
            nn.Flatten(), nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh(),
        )  # fmt: skip
        super().__init__(features, nn.Linear(84, classes), (channels, size, size))


class FedAvgCNN(Split):
    """The CNN of the FedAvg paper without padding: its features have 576,896 parameters for 1x28x28.

    Two 5x5 convolutions (32 and 64 maps) with ReLU and 2x2 max pooling, one hidden layer, one head. McMahan et
    al. 2017, arXiv:1602.05629; unpadded as in most later personalisation code.
    """

    def __init__(self, classes: int = 10, channels: int = 1, size: int = 28, hidden: int = 512) -> None:
        _check_counts(classes=classes, channels=channels, size=size, hidden=hidden)
        side = ((size - 4) // 2 - 4) // 2
        if side < 1:
            raise InputError(f"FedAvgCNN takes images of at least 16x16, got size {size}. Use MLP for smaller ones.")
        features = nn.Sequential(
            nn.Conv2d(channels, 32, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(64 * side * side, hidden), nn.ReLU(),
        )  # fmt: skip
        super().__init__(features, nn.Linear(hidden, classes), (channels, size, size))


_AXES = " Images are channels first; a single one needs a batch axis, x[None]."


def _text(shape: Sequence[int]) -> str:
    return "rows of shape (" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"


def _check_counts(**counts: int) -> None:
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{name} must be a whole number of at least 1, got {value!r}.")
