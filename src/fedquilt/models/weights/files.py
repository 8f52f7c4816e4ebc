"""Weights on disk: safetensors files (or those of torch.save), folders of them, and a fingerprint of their content."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from fedquilt.errors import InputError
from fedquilt.models.weights.torch_files import is_torch_file, read_torch

SINGLE, INDEX, SETTINGS = "model.safetensors", "model.safetensors.index.json", "config.json"
OLD_SINGLE, OLD_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"  # where there are no safetensors


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """Every tensor of a safetensors file, of one of torch.save, or of a folder with one (or with shards and their
    index)."""
    tensors: dict[str, Tensor] = {}
    for file in weight_files(path):
        if is_torch_file(file):
            tensors |= {name: tensor.clone() for name, tensor in read_torch(file).items()}
            continue
        try:
            tensors |= load_file(file)
        except (SafetensorError, OSError) as error:
            raise InputError(f"'{file}' cannot be read as safetensors: {error}.") from error
    return tensors


def weight_files(path: str | Path) -> list[Path]:
    """The files that hold the weights, in a fixed order."""
    place = Path(path)
    try:
        file, folder = place.is_file(), place.is_dir()
    except OSError as error:
        raise InputError(f"There are no weights at '{str(place)[:200]}': {error.strerror}.") from error
    if file:
        return [place]
    if not folder:
        raise InputError(f"There are no weights at '{place}'. Give a .safetensors file, or a folder with {SINGLE}.")
    if (place / SINGLE).is_file():
        return [place / SINGLE]
    if (place / INDEX).is_file():
        return _shards(place / INDEX)
    if (place / OLD_SINGLE).is_file():
        return [place / OLD_SINGLE]
    if (place / OLD_INDEX).is_file():
        return _shards(place / OLD_INDEX)
    raise InputError(f"The folder '{place}' has neither {SINGLE} nor {INDEX}. Save the model as safetensors.")


def _shards(index: Path) -> list[Path]:
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise InputError(f"'{index}' is not an index of shards: it needs a table called weight_map.") from error
    files = [index.parent / name for name in names]
    lacking = [file.name for file in files if not file.is_file()]
    if lacking:
        raise InputError(f"'{index}' names {', '.join(lacking[:3])}, which the folder does not have.")
    return files


def fingerprint(path: str | Path) -> str:
    """A hash of the content: the weights and, of a folder, also its config.json. Where it lies does not matter."""
    files = weight_files(path)
    settings = Path(path) / SETTINGS
    whole = hashlib.sha256()
    for file in [*files, *([settings] if settings.is_file() else [])]:
        stat = file.stat()
        whole.update(_hash(file.resolve(), stat.st_mtime_ns, stat.st_size))
    return whole.hexdigest()


@lru_cache(maxsize=256)
def _hash(file: Path, changed: int, size: int) -> bytes:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").digest()


def check_content(path: str | Path, content: str | None) -> None:
    """Raise when the files are no longer those whose fingerprint was taken."""
    if content is not None and (found := fingerprint(path)) != content:
        raise InputError(
            f"The weights at '{path}' have changed: their fingerprint is {found[:12]}, the run began with "
            f"{content[:12]}. Restore the old ones, or start a new run."
        )
