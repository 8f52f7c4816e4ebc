"""Networks for windows of sensor signals, [channels, length]."""

from __future__ import annotations

from torch import nn

from fedquilt.errors import InputError
from fedquilt.models.split import Split, check_counts


class SignalCNN(Split):
    """Two convolutions along time (32 and 64 maps) with ReLU and max pooling by 2, and one hidden layer.

    For windows such as those of smartphone activity data (HAR: 9 channels of 128 samples; HAPT: 6).

    Args:
        span: Samples that a convolution sees.
        hidden: Width of the hidden layer.

    Example:
        >>> import torch
        >>> SignalCNN()(torch.zeros(2, 9, 128)).shape
        torch.Size([2, 6])
    """

    def __init__(
        self, classes: int = 6, channels: int = 9, length: int = 128, span: int = 9, hidden: int = 128
    ) -> None:
        check_counts(classes=classes, channels=channels, length=length, span=span, hidden=hidden)
        steps = ((length - span + 1) // 2 - span + 1) // 2
        if steps < 1:
            least = 2 * (span + 1) + span - 1
            raise InputError(f"SignalCNN with span {span} takes windows of at least {least} samples, got {length}.")
        features = nn.Sequential(
            nn.Conv1d(channels, 32, span),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(32, 64, span),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Flatten(),
            nn.Linear(64 * steps, hidden),
            nn.ReLU(),
        )
        super().__init__(features, nn.Linear(hidden, classes), (channels, length))
