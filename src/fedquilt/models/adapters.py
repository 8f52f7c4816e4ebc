"""Small trainable parts in a model that is otherwise frozen: bottleneck adapters and low-rank changes."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedquilt.errors import InputError
from fedquilt.models.split import check_choice, check_counts, check_share

Kind = Literal["bottleneck", "low_rank"]
Where = str | Callable[[int, int, str], bool]
PLACES = ("vit.encoder.layer", "vit.layers", "encoder.layer", "encoder.layers", "blocks", "features.blocks")
LINEARS = ("qkv", "query", "value", "q_proj", "v_proj")


class Adapter(nn.Module):
    """A(H) = H + dropout(W_up GELU(W_down H + b_down) + b_up): a bottleneck beside the identity, equal to it at first.

    W_down begins with deviation sqrt(2 / size) (Kaiming, fan out), all else with zeros; so in the first step only W_up
    and b_up have a gradient. GELU is the exact one. Houlsby et al. 2019, arXiv:1902.00751.

    Args:
        width: Numbers in a token.
        size: Numbers in the bottleneck.
        dropout: On what is added.
    """

    def __init__(self, width: int, size: int = 64, dropout: float = 0.0) -> None:
        super().__init__()
        check_counts(width=width, size=size)
        check_share(dropout=dropout)
        self.down, self.up = nn.Linear(width, size), nn.Linear(size, width)
        self.drop = nn.Dropout(dropout)
        nn.init.kaiming_normal_(self.down.weight, mode="fan_out", nonlinearity="relu")
        for zero in (self.down.bias, self.up.weight, self.up.bias):
            nn.init.zeros_(zero)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [..., width], changed a little."""
        out: Tensor = tokens + self.drop(self.up(F.gelu(self.down(tokens))))
        return out


class LowRank(nn.Module):
    """What is added to a linear layer's output: (alpha / rank) B A dropout(x), zero at first because B is.

    Hu et al. 2021, arXiv:2106.09685.

    Args:
        entering, leaving: Numbers into and out of the layer.
        rank: Of the change of its weight.
        alpha: Its scale is alpha / rank; by default 1.
        dropout: On what enters.
    """

    def __init__(
        self, entering: int, leaving: int, rank: int = 8, alpha: float | None = None, dropout: float = 0.0
    ) -> None:
        super().__init__()
        check_counts(rank=rank)
        check_share(dropout=dropout)
        if alpha is not None and not 0 < alpha < math.inf:
            raise InputError(f"alpha must be a number above 0, got {alpha!r}.")
        self.down, self.up = nn.Linear(entering, rank, bias=False), nn.Linear(rank, leaving, bias=False)
        self.drop, self.scale = nn.Dropout(dropout), 1.0 if alpha is None else alpha / rank
        nn.init.kaiming_uniform_(self.down.weight, a=math.sqrt(5))
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """The change of the layer's output for this input."""
        out: Tensor = self.scale * self.up(self.down(self.drop(x)))
        return out


class _Place(NamedTuple):
    path: str
    module: nn.Module


def inject(
    model: nn.Module,
    kind: Kind = "bottleneck",
    where: Where = "all",
    size: int = 64,
    rank: int = 8,
    alpha: float | None = None,
    dropout: float = 0.0,
    layers: Iterable[str] = LINEARS,
) -> nn.Module:
    """Freeze every parameter of the model and give it adapters, in ``model.adapters``; the same model is returned.

    An adapter is called on what its block, or linear layer, returns: nothing is wrapped, so names and types of the
    backbone stay. A tensor is replaced; of a tuple the first item is; of an output object its hidden states are.

    Args:
        kind: "bottleneck": an :class:`Adapter` after each block. "low_rank": a :class:`LowRank` beside linear layers.
        where: "all" blocks, the "upper" half of them, or a function of (number, how many, path) that chooses.
        size: Of the bottleneck.
        rank, alpha: Of the low-rank change.
        dropout: In the adapters.
        layers: Last names of the linear layers of a block that a low-rank change is for.
    """
    check_choice("kind", kind, ("bottleneck", "low_rank"))
    if hasattr(model, "adapters"):
        raise InputError(f"{type(model).__name__} already has adapters (or a part of that name).")
    model.requires_grad_(False)
    added = nn.ModuleDict()
    for path, block in _chosen(model, where):
        if kind == "bottleneck":
            made: nn.Module = Adapter(_width(model, block, path), size, dropout)
            added[path.replace(".", "-")] = _like(made, block)
            block.register_forward_hook(partial(_after, made))
            continue
        for name, linear in _linears(block, tuple(layers), path):
            made = LowRank(linear.in_features, linear.out_features, rank, alpha, dropout)
            added[f"{path}.{name}".replace(".", "-")] = _like(made, linear)
            linear.register_forward_hook(partial(_beside, made))
    model.adapters = added
    return model


def adapted(
    build: Callable[[], nn.Module], dtype: str = "float32", kind: str = "bottleneck", **options: Any
) -> nn.Module:
    """What ``build`` makes, in this dtype, with adapters of this kind (or "none"): a builder for ``Net``."""
    check_choice("dtype", dtype, ("float32", "bfloat16"))
    model = build().to(getattr(torch, dtype))
    return model if kind == "none" else inject(model, kind, **options)  # type: ignore[arg-type]


def blocks_of(model: nn.Module) -> tuple[str, nn.ModuleList | nn.Sequential]:
    """Where the encoder's blocks are, and the list of them."""
    for path in PLACES:
        try:
            found = model.get_submodule(path)
        except AttributeError:
            continue
        if isinstance(found, nn.ModuleList | nn.Sequential) and len(found):
            return path, found
    raise InputError(f"{type(model).__name__} has no list of blocks at any of these places: {', '.join(PLACES)}.")


def _chosen(model: nn.Module, where: Where) -> list[_Place]:
    place, blocks = blocks_of(model)
    count = len(blocks)
    rules: dict[str, Callable[[int, int, str], bool]] = {"all": lambda *_: True, "upper": lambda i, n, _: i >= n // 2}
    if isinstance(where, str):
        check_choice("where", where, tuple(rules))
    choose = rules[where] if isinstance(where, str) else where
    chosen = [_Place(f"{place}.{i}", b) for i, b in enumerate(blocks) if choose(i, count, f"{place}.{i}")]
    if not chosen:
        raise InputError(f"where chose none of the {count} blocks at {place}.")
    return chosen


def _width(model: nn.Module, block: nn.Module, path: str) -> int:
    """How many numbers a token has: what the model says, or the size of the block's first norm."""
    norm = next((m for m in block.modules() if isinstance(m, nn.LayerNorm)), None)
    if norm is not None:
        return int(norm.normalized_shape[-1])
    known = getattr(model, "width", None)
    if not isinstance(known, int):
        raise InputError(f"How wide are the tokens? The block {path} has no LayerNorm and the model no 'width'.")
    return known


def _linears(block: nn.Module, layers: tuple[str, ...], path: str) -> list[tuple[str, nn.Linear]]:
    found = [(n, m) for n, m in block.named_modules() if isinstance(m, nn.Linear)]
    chosen = [(n, m) for n, m in found if n.rpartition(".")[2] in layers]
    unseen = [n for n, m in chosen if isinstance(m, nn.modules.linear.NonDynamicallyQuantizableLinear)]
    if unseen or not chosen:
        why = f"{unseen[0]} is used by its parent without being called" if unseen else "it has none of these"
        raise InputError(
            f"A low-rank change of {path} needs linear layers called {', '.join(layers)}, but {why}. Its linear "
            f"layers are {', '.join(n for n, _ in found)}."
        )
    return chosen


def _like(adapter: nn.Module, host: nn.Module) -> nn.Module:
    first = next((p for p in host.parameters()), None)
    return adapter if first is None else adapter.to(device=first.device, dtype=first.dtype)


def _after(adapter: nn.Module, block: nn.Module, given: tuple[Any, ...], out: Any) -> Any:
    """The block's output with its hidden states adapted, in the type it came in."""
    if isinstance(out, Tensor):
        return adapter(out)
    if isinstance(out, tuple) and out and isinstance(out[0], Tensor):
        first = adapter(out[0])
        named = getattr(type(out), "_make", None)
        return (first, *out[1:]) if named is None else named((first, *out[1:]))
    for name in ("last_hidden_state", "hidden_states"):
        states = getattr(out, name, None)
        if isinstance(states, Tensor):
            changed = copy.copy(out)
            setattr(changed, name, adapter(states))
            return changed
    raise InputError(f"A block returned {type(out).__name__}: neither a tensor, nor a tuple of one, nor hidden states.")


def _beside(adapter: nn.Module, linear: nn.Module, given: tuple[Any, ...], out: Tensor) -> Tensor:
    changed: Tensor = out + adapter(given[0])
    return changed
