"""Your own networks: any torch.nn.Module. [model] in recipe.toml selects one and sets its options."""

from torch import Tensor, nn


class MyCNN(nn.Module):
    """For images. ``shape`` (channels, height, width) and ``classes`` come from the data; ``width`` is an option."""

    def __init__(self, shape: tuple[int, int, int], classes: int, width: int = 16) -> None:
        super().__init__()
        channels, height, breadth = shape
        self.features = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
        )
        self.head = nn.Linear(width * (height // 2) * (breadth // 2), classes)  # private in personalised methods

    def forward(self, x: Tensor) -> Tensor:
        """Class scores (logits)."""
        return self.head(self.features(x))


class MyMLP(nn.Module):
    """For tables. ``features`` (number of columns) and ``classes`` come from the data; ``width`` is an option."""

    def __init__(self, features: int, classes: int, width: int = 32) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(features, width), nn.ReLU())
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores (logits)."""
        return self.head(self.features(x))
