"""A network of one's own: any torch.nn.Module; features and classes are given by the data, width by the recipe."""

from torch import Tensor, nn


class Wide(nn.Module):
    """Two layers.

    Args:
        width: Of the hidden layer.
    """

    def __init__(self, features: int, classes: int, width: int = 64) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Flatten(), nn.Linear(features, width), nn.ReLU())
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        return self.head(self.features(x))
