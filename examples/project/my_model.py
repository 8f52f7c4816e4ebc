"""Networks of your own: any torch.nn.Module. The recipe names one, and gives its options: [model] of recipe.toml."""

from torch import Tensor, nn


class MyCNN(nn.Module):
    """For images. The data give ``shape`` (channels, height, width) and ``classes``; ``width`` is an option."""

    def __init__(self, shape: tuple[int, int, int], classes: int, width: int = 16) -> None:
        super().__init__()
        channels, height, breadth = shape
        self.features = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
        )
        self.head = nn.Linear(width * (height // 2) * (breadth // 2), classes)  # personalised methods keep it local

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes."""
        return self.head(self.features(x))


class MyMLP(nn.Module):
    """For tables. The data give ``features``, the number of columns, and ``classes``; ``width`` is an option."""

    def __init__(self, features: int, classes: int, width: int = 32) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(features, width), nn.ReLU())
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes."""
        return self.head(self.features(x))
