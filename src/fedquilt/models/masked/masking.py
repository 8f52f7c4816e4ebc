"""What masked autoencoders share: patches, masks from noise, the loss of hidden patches, and pictures of it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fedquilt.core.seed import Seed
from fedquilt.errors import InputError


class Reconstruction(NamedTuple):
    """What one pass over a batch of images gives.

    Args:
        loss: [B] float32: the mean over an image's hidden patches of the mean squared error of a patch.
        embedding: [B, D] float32: the mean of the last layer's tokens of the visible patches, without the class token.
        prediction: [B, P, patch x patch x channels] float32: what the model takes each patch to be.
        mask: [B, P] float32: 1 where a patch was hidden.

    Example:
        >>> import torch
        >>> from fedquilt.models import MaskedAutoencoder
        >>> model = MaskedAutoencoder(channels=1, size=8, patch=2, width=16, depth=1, heads=2)
        >>> float(model(torch.zeros(3, 1, 8, 8)).mask.mean())
        0.75
    """

    loss: Tensor
    embedding: Tensor
    prediction: Tensor
    mask: Tensor


class Masked(Protocol):
    """The one interface of masked autoencoders, own or of the transformers library.

    ``noise`` [B, P] is data: the patches with the smallest numbers stay visible, so the same noise hides the same
    patches everywhere. Without it, ``forward`` hides the same fixed patches of every image, and ``embed`` none.
    """

    channels: int
    size: int
    patch: int
    patches: int
    width: int
    mask_ratio: float
    norm_pixels: bool

    def __call__(self, images: Tensor, noise: Tensor | None = None) -> Reconstruction:
        """Hide patches, guess them, and say how wrong the guess was."""
        ...

    def embed(self, images: Tensor, noise: Tensor | None = None) -> Tensor:
        """The embedding [B, D] alone, float32."""
        ...


class Mask(NamedTuple):
    """Which patches stay: their numbers [B, kept], the way back [B, P], and 1 for each hidden one [B, P]."""

    kept: Tensor
    back: Tensor
    hidden: Tensor


def visible(patches: int, ratio: float) -> int:
    """How many patches stay visible: all but P − int(P · (1 − ratio)) of them."""
    return int(patches * (1 - ratio))


def mask_of(noise: Tensor, ratio: float) -> Mask:
    """The mask of this noise [B, P]: the patches with the smallest numbers stay visible, in that order."""
    order = torch.argsort(noise, dim=1, stable=True)
    back = torch.argsort(order, dim=1, stable=True)
    count = visible(noise.shape[1], ratio)
    return Mask(order[:, :count], back, (back >= count).float())


def fixed_noise(images: Tensor, patches: int) -> Tensor:
    """Noise that is the same for every image, for passes whose mask does not matter."""
    row = torch.rand(patches, generator=Seed(0).fold("mask").torch(), device="cpu").to(images.device)
    return row.expand(images.shape[0], -1)


def check_noise(noise: Tensor, images: Tensor, patches: int) -> None:
    """Raise unless there is one number for each patch of each image."""
    if noise.shape != (len(images), patches):
        raise InputError(
            f"noise must have one number for each patch of each image, shape {(len(images), patches)}, "
            f"got {tuple(noise.shape)}. Draw it with torch.rand(len(images), model.patches)."
        )


def patchify(images: Tensor, patch: int) -> Tensor:
    """[B, C, H, H] -> [B, P, patch x patch x C]: square patches row by row, channels innermost."""
    rows, channels, height, width = images.shape
    if height % patch or width % patch:
        raise InputError(f"The image's sides must be multiples of patch; got {height} x {width} and patch {patch}.")
    grid = images.reshape(rows, channels, height // patch, patch, width // patch, patch).permute(0, 2, 4, 3, 5, 1)
    return grid.reshape(rows, (height // patch) * (width // patch), patch * patch * channels)


def unpatchify(patches: Tensor, patch: int, channels: int) -> Tensor:
    """[B, P, patch x patch x C] -> [B, C, H, H]: the way back for square images."""
    rows, count, numbers = patches.shape
    side = round(count**0.5)
    if side * side != count or numbers != patch * patch * channels:
        raise InputError(
            f"{count} patches of {numbers} numbers do not make a square image with patch {patch} and "
            f"{channels} channels."
        )
    grid = patches.reshape(rows, side, side, patch, patch, channels).permute(0, 5, 1, 3, 2, 4)
    return grid.reshape(rows, channels, side * patch, side * patch)


def normalised(target: Tensor) -> Tensor:
    """(x − mean) / sqrt(var + 1e-6) of each patch, with the unbiased variance."""
    return (target - target.mean(-1, keepdim=True)) / (target.var(-1, keepdim=True) + 1e-6).sqrt()


def hidden_error(prediction: Tensor, target: Tensor, hidden: Tensor, norm_pixels: bool) -> Tensor:
    """[B] float32: the mean over hidden patches of the mean squared error of a patch."""
    wanted = target.float()
    if norm_pixels:
        wanted = normalised(wanted)
    errors = (prediction.float() - wanted).square().mean(-1)
    return (errors * hidden).sum(1) / hidden.sum(1)


def pooled(tokens: Tensor) -> Tensor:
    """[B, 1 + L, D] -> [B, D] float32: the mean of the patch tokens; the first, the class token, does not count."""
    return tokens[:, 1:].float().mean(1)


class Pictures(NamedTuple):
    """Images as they are, with hidden patches grey, and with hidden patches as the model guesses them [B, C, H, H].

    Example:
        >>> import torch
        >>> from fedquilt.models import MaskedAutoencoder
        >>> model = MaskedAutoencoder(channels=1, size=8, patch=2, width=16, depth=1, heads=2)
        >>> images = torch.zeros(3, 1, 8, 8)
        >>> pictures(model(images), images, patch=2, norm_pixels=True).completed.shape
        torch.Size([3, 1, 8, 8])
    """

    original: Tensor
    visible: Tensor
    completed: Tensor


@torch.no_grad()
def pictures(found: Reconstruction, images: Tensor, patch: int, norm_pixels: bool) -> Pictures:
    """A reconstruction to look at; a guess of normalised pixels is given each patch's own mean and deviation."""
    target = patchify(images.float(), patch)
    guess = found.prediction
    if norm_pixels:
        guess = guess * (target.var(-1, keepdim=True) + 1e-6).sqrt() + target.mean(-1, keepdim=True)
    hidden = found.mask[..., None]
    grey = target.mean((1, 2), keepdim=True)

    def seen(other: Tensor) -> Tensor:
        return unpatchify(target * (1 - hidden) + other * hidden, patch, images.shape[1])

    return Pictures(images.float(), seen(grey), seen(guess))
