"""Start from weights that were trained before.

Names of vision transformers elsewhere, turned into the names of ``ViT``: timm's, and those of transformers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from fedquilt.errors import InputError
from fedquilt.models.weights.files import check_content, fingerprint, read_tensors

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


Builder = Callable[[], nn.Module]
Rename = Mapping[str, str]


@dataclass(frozen=True)
class Loaded:
    """What became of each name.

    Args:
        taken: Names that now have the file's values.
        fresh: Names of the head that stay as they were built: the file has none, or one for other classes.
        missing: Other names that the file does not have.
        unexpected: Names of the file that the module does not have.
        mismatched: Name, shape in the file, shape in the module.

    Example:
        >>> loaded = load_weights(model, "weights.safetensors")  # doctest: +SKIP
    """

    taken: tuple[str, ...]
    fresh: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    mismatched: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]

    @property
    def complete(self) -> bool:
        """Whether everything but the head was found, and nothing else was."""
        return not (self.missing or self.unexpected or self.mismatched)

    @property
    def useful(self) -> bool:
        """Whether anything was taken, and not the head alone where there is more."""
        body = [n for n in self.taken if not _is_head(n)]
        return bool(body) or (bool(self.taken) and not self.missing and not self.mismatched)

    def __str__(self) -> str:
        parts = [f"{len(self.taken)} tensors taken"]
        parts += [f"left fresh: {_few(self.fresh)}"] if self.fresh else []
        parts += [f"{len(self.missing)} missing: {_few(self.missing)}"] if self.missing else []
        parts += [f"{len(self.unexpected)} unexpected: {_few(self.unexpected)}"] if self.unexpected else []
        shapes = [f"{n} is {a} in the file and {b} here" for n, a, b in self.mismatched]
        return "; ".join(parts + ([f"{len(shapes)} of other shape: {_few(shapes)}"] if shapes else []))


def load_weights(module: nn.Module, path: str | Path, rename: Rename | None = None, strict: bool = True) -> Loaded:
    """Copy the weights of a safetensors file, or of a folder with ``model.safetensors`` or shards, into the module.

    Args:
        rename: Prefixes of the file's names and what replaces each, the longest first. Without it, the layouts of
            vision transformers in timm and transformers are recognised.
        strict: Refuse files in which a name is missing, unexpected, or of another shape. The head is excepted: where it
            does not fit, it stays as built. Without strict, what fits is taken.
    """
    if not isinstance(module, nn.Module):
        raise InputError(f"load_weights takes a module, got {type(module).__name__}. For a builder: with_weights.")
    given = read_tensors(path)
    tensors = translate(given) if rename is None else _replaced(given, rename)
    found = _compare(tensors, module.state_dict())
    if (strict and not found.complete) or not found.useful:
        advice = "Give rename={'prefix there': 'prefix here'}" + (
            ", or strict=False to take what fits" if strict else ""
        )
        raise InputError(f"The weights at '{path}' do not fit {type(module).__name__}: {found}. {advice}.")
    state = module.state_dict()
    with torch.no_grad():
        for name in found.taken:
            state[name].copy_(tensors[name])
    return found


def with_weights(
    build: Builder, path: str | Path, rename: Rename | None = None, strict: bool = True
) -> partial[nn.Module]:
    """A builder of the same module that starts from these weights, in every process and for every seed.

    The builder remembers a fingerprint of the content and refuses to go on with other weights. A head that does not
    fit is drawn from the run's seed, as ever.
    """
    place = Path(path).resolve()
    given = None if rename is None else dict(rename)
    return partial(started, build, str(place), content=fingerprint(place), rename=given, strict=strict)


def started(build: Builder, path: str, content: str, rename: Rename | None = None, strict: bool = True) -> nn.Module:
    """The module of ``build`` with the weights at the path, which must still have this content."""
    check_content(path, content)
    module = build()
    load_weights(module, path, rename, strict)
    return module


def _compare(tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> Loaded:
    fits = {n for n, t in wanted.items() if n in tensors and tensors[n].shape == t.shape}
    head, body = _parted(wanted)
    fresh = () if fits.issuperset(head) else head  # the head is taken as a whole, or not at all
    apart = [n for n in body if n not in fits]
    return Loaded(
        taken=tuple(n for n in wanted if n in fits and n not in fresh),
        fresh=fresh,
        missing=tuple(n for n in apart if n not in tensors),
        unexpected=tuple(n for n in _parted(tensors)[1] if n not in wanted),
        mismatched=tuple((n, tuple(tensors[n].shape), tuple(wanted[n].shape)) for n in apart if n in tensors),
    )


def _parted(names: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the head, and all others."""
    every = list(names)
    return tuple(filter(_is_head, every)), tuple(n for n in every if not _is_head(n))


def _is_head(name: str) -> bool:
    return name.startswith("head.")


def _replaced(tensors: Mapping[str, Tensor], rename: Rename) -> dict[str, Tensor]:
    prefixes = sorted(rename, key=len, reverse=True)
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        prefix = next((p for p in prefixes if name.startswith(p)), "")
        new = rename[prefix] + name.removeprefix(prefix) if prefix in rename else name
        if new in found:
            raise InputError(f"rename gives two tensors the name {new!r}; the second was {name!r} in the file.")
        found[new] = tensor
    return found


def _few(names: Iterable[str]) -> str:
    every = list(names)
    return ", ".join(every[:4]) + (f" and {len(every) - 4} more" if len(every) > 4 else "")
