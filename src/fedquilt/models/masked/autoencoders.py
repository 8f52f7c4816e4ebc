"""Masked autoencoders made to measure for recipes: sizes or pretrained weights, adapters and precision."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from fedquilt.errors import InputError
from fedquilt.models.adapters import adapted
from fedquilt.models.masked.mae import MaskedAutoencoder
from fedquilt.models.split import check_choice
from fedquilt.models.weights.files import SETTINGS
from fedquilt.models.weights.start import with_weights

SIZES = ("patch", "width", "depth", "heads", "mlp", "decoder_width", "decoder_depth", "decoder_heads", "norm_pixels")
ADAPTING = ("adapter", "bottleneck", "rank", "alpha", "adapter_dropout", "where", "dtype")


def own_autoencoder(
    channels: int, size: int, pretrained: str | None = None, mask_ratio: float | None = None, **options: Any
) -> partial[nn.Module]:
    """A builder of :class:`MaskedAutoencoder` with adapters; its sizes are given, or are those of a pretrained one.

    Args:
        channels, size: Of the square images.
        pretrained: A folder of ``fedquilt pretrain-mae`` to begin from.
        mask_ratio: The share of patches that are hidden; by default 0.75, or as in pretraining.
        options: Sizes of :class:`MaskedAutoencoder`, and what :func:`with_adapters` takes.
    """
    sizes = {n: options.pop(n) for n in SIZES if n in options}
    if mask_ratio is not None:
        sizes["mask_ratio"] = mask_ratio
    if pretrained is None:
        return with_adapters(partial(MaskedAutoencoder, channels=channels, size=size, **sizes), **options)
    saved = settings_of(pretrained)
    for name, wanted in {**sizes, "channels": channels, "size": size}.items():
        if name != "mask_ratio" and saved[name] != wanted:
            raise InputError(f"The autoencoder at '{pretrained}' has {name} {saved[name]}, but {wanted} is wanted.")
    build = with_weights(partial(MaskedAutoencoder, **{**saved, **sizes}), pretrained, rename={})
    return with_adapters(build, **options)


def library_autoencoder(
    channels: int,
    size: int,
    folder: str,
    content: str | None = None,
    mask_ratio: float | None = None,
    norm_pixels: bool | None = None,
    **options: Any,
) -> partial[nn.Module]:
    """A builder of transformers' masked autoencoder with adapters.

    Args:
        channels, size: Of the square images.
        folder: A local folder in the form of transformers, or a name on its hub, such as facebook/vit-mae-base.
        content: A fingerprint of the folder; other weights are refused.
        mask_ratio: The share of patches that are hidden; by default as the folder says.
        norm_pixels: Whether the target of each patch is normalised by its own mean and deviation; by default as the
            folder says.
        options: What :func:`with_adapters` takes.

    Reference: He et al., Masked Autoencoders Are Scalable Vision Learners, 2022, arXiv:2111.06377.
    """
    from fedquilt.models.masked.hf_mae import ViTMAE

    given = {"folder": folder, "content": content, "mask_ratio": mask_ratio, "norm_pixels": norm_pixels}
    known: dict[str, Any] = {n: v for n, v in given.items() if v is not None}
    return with_adapters(partial(ViTMAE, channels=channels, size=size, **known), **options)


def settings_of(folder: str | Path) -> dict[str, Any]:
    """The arguments of the autoencoder that was saved in this folder by ``fedquilt pretrain-mae``."""
    file = Path(folder) / SETTINGS
    try:
        saved = json.loads(file.read_text(encoding="utf-8"))
        model = saved["model"]
        if saved["kind"] != "mae" or not isinstance(model, dict):
            raise KeyError("kind")
    except FileNotFoundError as error:
        raise InputError(
            f"There is no pretrained autoencoder at '{folder}' (no {SETTINGS}). Make one with fedquilt pretrain-mae."
        ) from error
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise InputError(f"'{file}' does not describe an autoencoder of fedquilt pretrain-mae.") from error
    return model


def with_adapters(
    build: Callable[[], nn.Module],
    adapter: str = "bottleneck",
    bottleneck: int = 64,
    rank: int = 8,
    alpha: float | None = None,
    adapter_dropout: float = 0.0,
    where: str = "all",
    dtype: str = "float32",
) -> partial[nn.Module]:
    """A builder of the same module, frozen, with adapters.

    Args:
        build: Makes the module.
        adapter: "bottleneck" after each block, "low_rank" beside linear layers, or "none".
        bottleneck: Width of a bottleneck.
        rank: Of a low-rank change.
        alpha: Scale of a low-rank change, which is divided by its rank; the rank if None.
        adapter_dropout: In the adapters.
        where: Adapters are in "all" blocks, or in the "upper" half of them.
        dtype: Of the module: "float32" or "bfloat16".
    """
    check_choice("adapter", adapter, ("bottleneck", "low_rank", "none"))
    if adapter == "none":
        return partial(adapted, build, dtype=dtype, kind="none")
    own = {"size": bottleneck} if adapter == "bottleneck" else {"rank": rank, "alpha": alpha}
    return partial(adapted, build, dtype=dtype, kind=adapter, where=where, dropout=adapter_dropout, **own)
