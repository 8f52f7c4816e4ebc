"""Names of vision transformers elsewhere, turned into the names of ``ViT``: timm's, and those of transformers."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

Tensors = Mapping[str, Tensor]


def translate(tensors: Tensors) -> dict[str, Tensor]:
    """Tensors by the names used here, if they are in a layout that is known; otherwise as they are."""
    bare = {n.removeprefix("vit."): t for n, t in tensors.items()}
    if any(n.startswith("features.") for n in tensors):
        return dict(tensors)
    if "embeddings.cls_token" in bare:
        return from_transformers(bare)
    if "blocks.0.attn.qkv.weight" in tensors:
        return from_timm(tensors)
    return dict(tensors)


def from_timm(tensors: Tensors) -> dict[str, Tensor]:
    """timm's ``VisionTransformer``: everything but the head moves below ``features``."""
    return {n if n.startswith("head.") else f"features.{n}": t for n, t in tensors.items()}


_RENAMED = (  # transformers' name, ours
    (r"^embeddings\.cls_token$", "features.cls_token"),
    (r"^embeddings\.position_embeddings$", "features.pos_embed"),
    (r"^embeddings\.patch_embeddings\.projection\.", "features.patch_embed.proj."),
    (r"^encoder\.layer\.(\d+)\.attention\.output\.dense\.", r"features.blocks.\1.attn.proj."),
    (r"^encoder\.layer\.(\d+)\.intermediate\.dense\.", r"features.blocks.\1.mlp.fc1."),
    (r"^encoder\.layer\.(\d+)\.output\.dense\.", r"features.blocks.\1.mlp.fc2."),
    (r"^encoder\.layer\.(\d+)\.layernorm_before\.", r"features.blocks.\1.norm1."),
    (r"^encoder\.layer\.(\d+)\.layernorm_after\.", r"features.blocks.\1.norm2."),
    (r"^layernorm\.", "features.norm."),
    (r"^classifier\.", "head."),
)
_QUERY = re.compile(r"^encoder\.layer\.(\d+)\.attention\.attention\.query\.(weight|bias)$")
_LEFT = ("pooler.",)  # a ViT classifier does not use the pooler


def from_transformers(tensors: Tensors) -> dict[str, Tensor]:
    """``ViTModel`` or ``ViTForImageClassification``: query, key and value are joined into one matrix."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        asked = _QUERY.match(name)
        if asked:
            parts = [tensors.get(name.replace(".query.", f".{p}.")) for p in ("query", "key", "value")]
            here = [p for p in parts if p is not None]
            found[f"features.blocks.{asked[1]}.attn.qkv.{asked[2]}"] = torch.cat(here)
        elif not name.startswith(_LEFT) and ".attention.attention." not in name:
            found[_renamed(name)] = tensor
    return found


def _renamed(name: str) -> str:
    for pattern, ours in _RENAMED:
        new, count = re.subn(pattern, ours, name)
        if count:
            return new
    return name
