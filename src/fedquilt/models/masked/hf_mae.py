"""Masked autoencoders of the ``transformers`` library, versions 4 and 5, behind our own interface (extra ``hf``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fedquilt.errors import InputError
from fedquilt.models.masked.mae import sine_positions
from fedquilt.models.masked.masking import Reconstruction, check_noise, fixed_noise, hidden_error, patchify, pooled
from fedquilt.models.split import check_share, check_switch
from fedquilt.models.weights.files import check_content
from fedquilt.models.weights.hub import library, pretrained


class ViTMAE(nn.Module):
    """``ViTMAEForPreTraining`` of transformers: the same names of tensors, below ``vit`` and ``decoder``.

    Only the encoder's output and the decoder's are asked of the library; the loss is computed here, equal to its own.

    Args:
        folder: A local folder in the form of transformers, or a name on its hub, such as facebook/vit-mae-base.
        config: Instead of a folder: settings of ``ViTMAEConfig``; the weights are then drawn at random.
        mask_ratio, norm_pixels: By default those of the settings.
        channels, size: Of the images it is wanted for; a model for others is refused.
        content: A fingerprint of the folder; other weights are refused.

    Example:
        >>> model = ViTMAE("folder/of/the/weights")  # doctest: +SKIP
    """

    def __init__(
        self,
        folder: str | None = None,
        config: Mapping[str, Any] | None = None,
        mask_ratio: float | None = None,
        norm_pixels: bool | None = None,
        channels: int | None = None,
        size: int | None = None,
        content: str | None = None,
    ) -> None:
        super().__init__()
        if (folder is None) == (config is None):
            raise InputError("ViTMAE takes a folder (or a name on the hub) or a config, one of the two.")
        model = _made(config) if folder is None else _loaded(folder, content)
        self.vit, self.decoder, self.config = model.vit, model.decoder, model.config
        if mask_ratio is not None:
            check_share(mask_ratio=mask_ratio)
            self.config.mask_ratio = mask_ratio
        if norm_pixels is not None:
            check_switch(norm_pixels=norm_pixels)
            self.config.norm_pix_loss = norm_pixels
        self.channels, self.size = int(self.config.num_channels), int(self.config.image_size)
        if (channels or self.channels, size or self.size) != (self.channels, self.size):
            raise InputError(
                f"This autoencoder takes images of {self.channels} channels and side {self.size}, the data have "
                f"{channels} and {size}. Resize the images, for example with the transform 'resize'."
            )
        self.patch, self.width = int(self.config.patch_size), int(self.config.hidden_size)
        self.patches = (self.size // self.patch) ** 2
        self.mask_ratio, self.norm_pixels = float(self.config.mask_ratio), bool(self.config.norm_pix_loss)

    def forward(self, images: Tensor, noise: Tensor | None = None) -> Reconstruction:
        """Hide patches by the noise, guess them, and say how wrong the guess was."""
        noise = fixed_noise(images, self.patches) if noise is None else noise
        seen = self._encode(images, noise)
        prediction = self.decoder(seen.last_hidden_state, seen.ids_restore).logits.float()
        hidden = seen.mask.float()
        loss = hidden_error(prediction, patchify(images, self.patch), hidden, self.norm_pixels)
        return Reconstruction(loss, pooled(seen.last_hidden_state), prediction, hidden)

    def embed(self, images: Tensor, noise: Tensor | None = None) -> Tensor:
        """[B, D] float32: the mean of the patch tokens, of all patches or of those that the noise leaves visible."""
        if noise is not None:
            return pooled(self._encode(images, noise).last_hidden_state)
        in_order = torch.arange(self.patches, device=images.device).float().expand(images.shape[0], -1)
        with self._hiding(0.0):
            return pooled(self._encode(images, in_order).last_hidden_state)

    def _encode(self, images: Tensor, noise: Tensor) -> Any:
        wanted = (self.channels, self.size, self.size)
        if images.shape[1:] != wanted or not images.is_floating_point():
            raise InputError(
                f"This ViTMAE takes images [B, {', '.join(map(str, wanted))}] of floating-point numbers, got "
                f"{tuple(images.shape)} {str(images.dtype).removeprefix('torch.')}. Resize them, or take another model."
            )
        check_noise(noise, images, self.patches)
        return self.vit(images.to(self.vit.layernorm.weight.dtype), noise=noise)

    @contextmanager
    def _hiding(self, ratio: float) -> Iterator[None]:
        """The library reads the ratio from its settings at every pass."""
        before = self.config.mask_ratio
        self.config.mask_ratio = ratio
        try:
            yield
        finally:
            self.config.mask_ratio = before


def _made(config: Mapping[str, Any] | None) -> Any:
    """A model drawn at random. Version 5 of the library may leave positions at zero, which a checkpoint never has."""
    found = library()
    model = found.ViTMAEForPreTraining(found.ViTMAEConfig(**(config or {})))
    for positions in (model.vit.embeddings.position_embeddings, model.decoder.decoder_pos_embed):
        if not positions.is_meta and not positions.any():
            positions.data.copy_(sine_positions(positions.shape[1] - 1, positions.shape[2])[None])
    return model


def _loaded(folder: str, content: str | None) -> Any:
    if not isinstance(folder, str) or not folder:
        raise InputError(f"folder must be a folder or a name on the hub, got {folder!r}.")
    check_content(folder, content)
    if torch.get_default_device().type == "meta":  # only sizes are asked for
        return library().ViTMAEForPreTraining(pretrained("ViTMAEConfig", folder))
    return pretrained("ViTMAEForPreTraining", folder, use_safetensors=True, dtype=torch.float32)
