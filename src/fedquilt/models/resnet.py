"""Residual networks of basic blocks: ResNet-10, -18 and -34."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from fedquilt.errors import InputError
from fedquilt.models.split import Split, check_choice, check_counts

BLOCKS = {10: (1, 1, 1, 1), 18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}  # basic blocks in each of the four stages
_SMALLEST = {"3x3": 8, "7x7": 32}


class ResNet(Split):
    """A residual network with stages of 64, 128, 256 and 512 maps and global average pooling.

    The features of ResNet-18 hold 11,168,832 parameters with the 3x3 stem and three channels, those of ResNet-34
    21,276,992; the norm does not change the number.

    Args:
        depth: 10, 18 or 34.
        norm: "group" (at most 32 groups of at least two maps) has no statistics to average between clients;
            "batch" is BatchNorm.
        stem: "3x3" keeps the size (CIFAR); "7x7" halves it twice (ImageNet).
        width: Maps of the first stage; each further stage has twice as many.

    Reference: He, Zhang, Ren and Sun, Deep Residual Learning for Image Recognition, 2016, arXiv:1512.03385.

    Example:
        >>> import torch
        >>> ResNet(depth=10, width=8)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        classes: int = 10,
        channels: int = 3,
        size: int = 32,
        depth: int = 18,
        norm: str = "group",
        stem: str = "3x3",
        width: int = 64,
    ) -> None:
        check_counts(classes=classes, channels=channels, size=size, width=width)
        check_choice("norm", norm, ("group", "batch"))
        check_choice("stem", stem, ("3x3", "7x7"))
        if depth not in BLOCKS:
            raise InputError(f"depth must be one of {', '.join(map(str, BLOCKS))}, got {depth!r}.")
        if size < _SMALLEST[stem]:
            least = _SMALLEST[stem]
            raise InputError(f"ResNet with a {stem} stem takes images of at least {least}x{least}, got size {size}.")
        parts: OrderedDict[str, nn.Module] = OrderedDict(stem=_stem(channels, width, norm, stem))
        narrow = width
        for stage, count in enumerate(BLOCKS[depth]):
            wide, stride = width * 2**stage, 1 if stage == 0 else 2
            blocks = [BasicBlock(narrow if i == 0 else wide, wide, stride if i == 0 else 1, norm) for i in range(count)]
            parts[f"stage{stage + 1}"], narrow = nn.Sequential(*blocks), wide
        parts |= {"pool": nn.AdaptiveAvgPool2d(1), "flat": nn.Flatten()}
        super().__init__(nn.Sequential(parts), nn.Linear(narrow, classes), (channels, size, size))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


class BasicBlock(nn.Module):
    """y = relu(F(x) + x) with two 3x3 convolutions in F; where the shape changes, x passes a 1x1 convolution."""

    def __init__(self, narrow: int, wide: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(narrow, wide, 3, stride, 1, bias=False)
        self.norm1 = _norm(norm, wide)
        self.conv2 = nn.Conv2d(wide, wide, 3, 1, 1, bias=False)
        self.norm2 = _norm(norm, wide)
        same = stride == 1 and narrow == wide
        skip = () if same else (Every(stride), nn.Conv2d(narrow, wide, 1, bias=False), _norm(norm, wide))
        self.skip = nn.Sequential(*skip)

    def forward(self, x: Tensor) -> Tensor:
        """One residual step."""
        inner = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(inner)) + self.skip(x))


class Every(nn.Module):
    """Every so many pixels in both directions.

    A 1x1 convolution with a stride sees the same pixels, but with few channels in channels-last layout its gradient
    writes past its memory (oneDNN issue 6035, seen with torch 2.13).
    """

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """The pixels."""
        return x if self.stride == 1 else x[:, :, :: self.stride, :: self.stride]


def _stem(channels: int, width: int, norm: str, stem: str) -> nn.Module:
    if stem == "3x3":
        return nn.Sequential(nn.Conv2d(channels, width, 3, 1, 1, bias=False), _norm(norm, width), nn.ReLU())
    first = nn.Conv2d(channels, width, 7, 2, 3, bias=False)
    return nn.Sequential(first, _norm(norm, width), nn.ReLU(), nn.MaxPool2d(3, 2, 1))


def _norm(norm: str, maps: int) -> nn.Module:
    return nn.BatchNorm2d(maps) if norm == "batch" else nn.GroupNorm(groups(maps), maps)


def groups(maps: int) -> int:
    """The most groups, at most 32, that divide the maps evenly with at least two maps in each; else one."""
    return max((g for g in range(1, 33) if maps % g == 0 and 2 * g <= maps), default=1)
