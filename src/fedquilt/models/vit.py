"""Vision transformers of any size."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedquilt.errors import InputError
from fedquilt.models.split import Split, check_counts, check_share, check_switch


class ViT(Split):
    """A vision transformer with pre-norm blocks, learned positions and exact GELU.

    Below ``features``, names are those of the timm library.

    Args:
        patch: Side of a square patch; the image's side must be a multiple of it.
        width: Numbers in a patch's vector.
        depth: How many blocks there are.
        heads: Attention heads, each of width / heads numbers.
        mlp: Width of the MLPs.
        dropout: After the embedding, on attention weights, and after both parts of a block.
        class_token: The feature vector is that of a token of its own; otherwise the mean over patches.
        zero_head: The head starts at zero, so every class is equally likely before training.
        frozen: All but the head stay as they are, and never travel; for pretrained weights.

    Reference: Dosovitskiy et al., An Image Is Worth 16x16 Words, 2021, arXiv:2010.11929.

    Example:
        >>> import torch
        >>> ViT(width=16, depth=1, heads=2, mlp=32)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        classes: int = 10,
        channels: int = 3,
        size: int = 32,
        patch: int = 4,
        width: int = 192,
        depth: int = 12,
        heads: int = 3,
        mlp: int = 768,
        dropout: float = 0.0,
        class_token: bool = True,
        zero_head: bool = False,
        frozen: bool = False,
    ) -> None:
        check_counts(classes=classes, channels=channels, size=size, patch=patch, width=width, depth=depth)
        check_counts(heads=heads, mlp=mlp)
        check_share(dropout=dropout)
        check_switch(class_token=class_token, zero_head=zero_head, frozen=frozen)
        if size % patch:
            raise InputError(f"The image's side must be a multiple of patch; got size {size} and patch {patch}.")
        if width % heads:
            raise InputError(f"width must be a multiple of heads; got width {width} and heads {heads}.")
        features = _Features(channels, size, patch, width, depth, heads, mlp, dropout, class_token)
        super().__init__(features, nn.Linear(width, classes), (channels, size, size))
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
        if zero_head:
            nn.init.zeros_(self.head.weight)
        if frozen:
            self.frozen = ("features",)


class ViTCehgls(Split):
    """The six-layer ViT of CEHGLS: width 512, 8 heads, MLP 2048, dropout 0.5, zero head; the patch follows the size.

    Args:
        classes, channels, size: Of the images and their labels.
        dropout: After the embedding, on attention weights, and after both parts of a block.

    Reference: The project CEHGLS.

    Example:
        >>> from fedquilt import Net
        >>> net = Net.of(ViTCehgls, size=28, channels=1)
    """

    def __init__(self, classes: int = 10, channels: int = 3, size: int = 32, dropout: float = 0.5) -> None:
        patch = {28: 4, 32: 8, 64: 16, 224: 16}.get(size)
        if patch is None:
            raise InputError(f"ViTCehgls takes images of side 28, 32, 64 or 224, got size {size!r}. Use ViT.")
        made = ViT(
            classes, channels, size, patch=patch, width=512, depth=6, heads=8, mlp=2048, dropout=dropout, zero_head=True
        )
        super().__init__(made.features, made.head, made.shape)


class _Features(nn.Module):
    def __init__(
        self,
        channels: int,
        size: int,
        patch: int,
        width: int,
        depth: int,
        heads: int,
        mlp: int,
        dropout: float,
        class_token: bool,
    ) -> None:
        super().__init__()
        self.patch_embed = nn.Sequential()
        self.patch_embed.add_module("proj", nn.Conv2d(channels, width, patch, patch))
        tokens = (size // patch) ** 2 + class_token
        self.cls_token = nn.Parameter(torch.empty(1, 1, width)) if class_token else None
        self.pos_embed = nn.Parameter(torch.empty(1, tokens, width))
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads, mlp, dropout) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        if self.cls_token is not None:
            nn.init.normal_(self.cls_token, std=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patch_embed(x).flatten(2).transpose(1, 2)
        if self.cls_token is not None:
            tokens = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), tokens], dim=1)
        tokens = self.norm(self.blocks(self.drop(tokens + self.pos_embed)))
        vector: Tensor = tokens.mean(1) if self.cls_token is None else tokens[:, 0]
        return vector


class TransformerBlock(nn.Module):
    """x <- x + attention(norm(x)); x <- x + mlp(norm(x))."""

    def __init__(self, width: int, heads: int, mlp: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attn = _Attention(width, heads, dropout)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = _MLP(width, mlp, dropout)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attn(self.norm1(x)))
        out: Tensor = x + self.drop(self.mlp(self.norm2(x)))
        return out


class _MLP(nn.Module):
    def __init__(self, width: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.drop = nn.Dropout(dropout)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(self.drop(F.gelu(self.fc1(x))))
        return out


class _Attention(nn.Module):
    """softmax(Q Kᵀ / sqrt(width / heads)) V in each head, then one linear layer."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, tokens, width = x.shape
        parts = self.qkv(x).reshape(rows, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=self.dropout if self.training else 0.0)
        out: Tensor = self.proj(mixed.transpose(1, 2).reshape(rows, tokens, width))
        return out
