"""A masked autoencoder of any size: a vision transformer that guesses the patches it does not see."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedquilt.errors import InputError
from fedquilt.models.masked.masking import (
    Reconstruction,
    check_noise,
    fixed_noise,
    hidden_error,
    mask_of,
    patchify,
    pooled,
    visible,
)
from fedquilt.models.split import check_counts, check_share, check_switch
from fedquilt.models.vit import TransformerBlock


def _check_width(name: str, width: int, heads: int) -> None:
    if width % heads or width % 4:
        raise InputError(
            f"{name}width must be a multiple of {name}heads and, for its positions, of 4; got "
            f"{name}width {width} and {name}heads {heads}."
        )


class MaskedAutoencoder(nn.Module):
    """An encoder that sees some patches of an image and a decoder that guesses the pixels of all of them.

    As published: pre-norm blocks, a class token, fixed sine and cosine positions.

    Args:
        channels, size: Of the square images.
        patch: Side of a square patch; the image's side must be a multiple of it.
        width: Numbers in a patch's vector in the encoder.
        depth: Blocks of the encoder.
        heads: Attention heads of the encoder.
        mlp: Width of the encoder's MLPs; 4 x width by default.
        decoder_width: Numbers in a patch's vector in the decoder, whose MLPs are 4 times as wide.
        decoder_depth: Blocks of the decoder.
        decoder_heads: Attention heads of the decoder.
        mask_ratio: The share of patches that are hidden.
        norm_pixels: The target of each patch is normalised by its own mean and deviation.

    Reference: He et al., Masked Autoencoders Are Scalable Vision Learners, 2022, arXiv:2111.06377.

    Example:
        >>> import torch
        >>> model = MaskedAutoencoder(channels=1, size=8, patch=2, width=16, depth=1, heads=2)
        >>> model(torch.zeros(3, 1, 8, 8)).embedding.shape
        torch.Size([3, 16])
    """

    def __init__(
        self,
        channels: int = 3,
        size: int = 32,
        patch: int = 4,
        width: int = 64,
        depth: int = 4,
        heads: int = 4,
        mlp: int | None = None,
        decoder_width: int = 32,
        decoder_depth: int = 1,
        decoder_heads: int = 4,
        mask_ratio: float = 0.75,
        norm_pixels: bool = True,
    ) -> None:
        super().__init__()
        self.settings = {n: v for n, v in locals().items() if n not in ("self", "__class__")}  # all arguments
        inner = 4 * width if mlp is None else mlp
        check_counts(channels=channels, size=size, patch=patch, width=width, depth=depth, heads=heads, mlp=inner)
        check_counts(decoder_width=decoder_width, decoder_depth=decoder_depth, decoder_heads=decoder_heads)
        check_share(mask_ratio=mask_ratio)
        check_switch(norm_pixels=norm_pixels)
        if size % patch:
            raise InputError(f"The image's side must be a multiple of patch; got size {size} and patch {patch}.")
        _check_width("", width, heads)
        _check_width("decoder_", decoder_width, decoder_heads)
        self.channels, self.size, self.patch, self.width = channels, size, patch, width
        self.mask_ratio, self.norm_pixels = float(mask_ratio), norm_pixels
        self.patches = (size // patch) ** 2
        if not 0 < visible(self.patches, mask_ratio) < self.patches:
            raise InputError(
                f"mask_ratio {mask_ratio} leaves {visible(self.patches, mask_ratio)} of {self.patches} patches "
                "visible; at least one must be visible and one hidden."
            )
        self.patch_embed = nn.Linear(patch * patch * channels, width)
        self.cls_token = nn.Parameter(torch.empty(1, 1, width))
        self.positions = _Positions(self.patches, width)
        self.blocks = nn.ModuleList(TransformerBlock(width, heads, inner) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.decoder = _Decoder(self.patches, width, decoder_width, decoder_depth, decoder_heads, patch**2 * channels)
        nn.init.normal_(self.cls_token, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    def forward(self, images: Tensor, noise: Tensor | None = None) -> Reconstruction:
        """Hide patches by the noise, guess them, and say how wrong the guess was."""
        self._check(images)
        noise = fixed_noise(images, self.patches) if noise is None else noise
        check_noise(noise, images, self.patches)
        mask = mask_of(noise, self.mask_ratio)
        target = patchify(images, self.patch)
        tokens = self._encode(target, mask.kept)
        prediction = self.decoder(tokens, mask.back).float()
        loss = hidden_error(prediction, target, mask.hidden, self.norm_pixels)
        return Reconstruction(loss, pooled(tokens), prediction, mask.hidden)

    def embed(self, images: Tensor, noise: Tensor | None = None) -> Tensor:
        """[B, D] float32: the mean of the patch tokens, of all patches or of those that the noise leaves visible."""
        self._check(images)
        kept = None
        if noise is not None:
            check_noise(noise, images, self.patches)
            kept = mask_of(noise, self.mask_ratio).kept
        return pooled(self._encode(patchify(images, self.patch), kept))

    def _encode(self, patches: Tensor, kept: Tensor | None) -> Tensor:
        """[B, 1 + visible, D]: the normed tokens of the last block, the class token first."""
        positions = self.positions.table
        tokens = self.patch_embed(patches.to(self.patch_embed.weight.dtype)) + positions[1:]
        if kept is not None:
            tokens = tokens.gather(1, kept[..., None].expand(-1, -1, tokens.shape[2]))
        first = (self.cls_token + positions[:1]).expand(tokens.shape[0], -1, -1)
        tokens = torch.cat([first, tokens], dim=1)
        for block in self.blocks:
            tokens = block(tokens)
        out: Tensor = self.norm(tokens)
        return out

    def _check(self, images: Tensor) -> None:
        wanted = (self.channels, self.size, self.size)
        if images.shape[1:] != wanted or not images.is_floating_point():
            raise InputError(
                f"MaskedAutoencoder takes images [B, {', '.join(map(str, wanted))}] of floating-point numbers, got "
                f"{tuple(images.shape)} {str(images.dtype).removeprefix('torch.')}."
            )


class _Decoder(nn.Module):
    """Mask tokens at the hidden places, positions, blocks, and the pixels of every patch."""

    def __init__(self, patches: int, entering: int, width: int, depth: int, heads: int, pixels: int) -> None:
        super().__init__()
        self.embed = nn.Linear(entering, width)
        self.mask_token = nn.Parameter(torch.empty(1, 1, width))
        self.positions = _Positions(patches, width)
        self.blocks = nn.ModuleList(TransformerBlock(width, heads, 4 * width) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.pixels = nn.Linear(width, pixels)
        nn.init.normal_(self.mask_token, std=0.02)

    def forward(self, tokens: Tensor, back: Tensor) -> Tensor:
        tokens = self.embed(tokens)
        rows, patches, width = tokens.shape[0], back.shape[1], tokens.shape[2]
        guesses = self.mask_token.expand(rows, patches + 1 - tokens.shape[1], -1)
        placed = torch.cat([tokens[:, 1:], guesses], dim=1).gather(1, back[..., None].expand(-1, -1, width))
        tokens = torch.cat([tokens[:, :1], placed], dim=1) + self.positions.table
        for block in self.blocks:
            tokens = block(tokens)
        out: Tensor = self.pixels(self.norm(tokens))[:, 1:]
        return out


class _Positions(nn.Module):
    """Fixed positions, which are computed and not saved."""

    table: Tensor

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.register_buffer("table", sine_positions(patches, width), persistent=False)


def sine_positions(patches: int, width: int) -> Tensor:
    """[1 + P, D]: zero for the class token, then sines and cosines of the column and of the row of each patch."""
    side = round(patches**0.5)
    steps = torch.arange(side, dtype=torch.float64)
    rates = 10000.0 ** -(torch.arange(width // 4, dtype=torch.float64) / (width // 4))
    angles = steps[:, None] * rates
    waves = torch.cat([angles.sin(), angles.cos()], dim=1)  # [side, width / 2]
    columns, rows = waves.repeat(side, 1), waves.repeat_interleave(side, 0)
    grid = torch.cat([columns, rows], dim=1).float()
    return torch.cat([grid.new_zeros(1, width), grid])
