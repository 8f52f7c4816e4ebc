"""Weights in files that torch.save wrote (.pt, .pth, .bin): only tensors are taken out of them, and nothing is run."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from fedquilt.errors import InputError

SUFFIXES = (".pt", ".pth", ".bin")
INSIDE = ("state_dict", "model_state_dict", "model")  # where trainers put the weights among other things
MOST_PICKLE = 64 * 2**20  # bytes of names and shapes; those of a model with 100,000 tensors take a quarter of it
MOST_SHARED = 4  # times the file's size: tensors may share their numbers, but not without end


def is_torch_file(path: Path) -> bool:
    """Whether a file is called as torch.save's files are."""
    return path.suffix in SUFFIXES


def read_torch(path: Path) -> dict[str, Tensor]:
    """The tensors of a file of ``torch.save(model.state_dict(), path)``, or of a dict that has such a table below
    'state_dict', 'model_state_dict' or 'model'.

    The file is read by ``torch.load(weights_only=True)``, which makes tensors and plain containers and refuses anything
    else. Numbers stay in the file until they are looked at (``mmap``). Before that the archive is checked: nothing in
    it is compressed, so that it cannot unpack to more than it is, and the list of tensors is of a sane size.
    """
    _check_archive(path)
    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)  # noqa: TID251 - the one place
    except Exception as error:  # a hostile file can raise anything; a pickle that asks for more than tensors does
        asked = re.search(
            r"GLOBAL ([\w.]+)", str(error)
        )  # torch's own words go on to how to trust the file: never here
        more = f"it asks for {asked[1]}" if asked else type(error).__name__
        raise InputError(
            f"'{path}' holds more than tensors, or is damaged, so it is not opened ({more}). Save the weights "
            "alone: safetensors.torch.save_file(model.state_dict(), 'model.safetensors')."
        ) from error
    tensors = _tensors(found, path)
    _check_sizes(tensors, path)
    return tensors


def _check_archive(path: Path) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise InputError(
            f"'{path}' is not a file that torch.save wrote (version 1.6 or later): {error}. Load it where it was made, "
            "and save it as safetensors."
        ) from error
    size = path.stat().st_size
    packed = [e.filename for e in entries if e.compress_type != zipfile.ZIP_STORED]
    if packed or sum(e.file_size for e in entries) > size:
        raise InputError(f"'{path}' is compressed ({', '.join(packed[:1])}), which torch.save never does. Not opened.")
    tree = sum(e.file_size for e in entries if e.filename.endswith(".pkl"))
    if tree > MOST_PICKLE:
        raise InputError(f"'{path}': the list of its tensors takes {tree:,} bytes, more than {MOST_PICKLE:,}.")


def _tensors(found: object, path: Path) -> dict[str, Tensor]:
    whole = found if isinstance(found, Mapping) else {}
    for inside in (whole, *(whole[n] for n in INSIDE if n in whole)):
        if _is_table(inside):
            return {str(name): tensor for name, tensor in inside.items()}
    told = ", ".join(map(str, list(whole)[:5])) if isinstance(found, Mapping) else type(found).__name__
    raise InputError(
        f"'{path}' holds no table of tensors, but {told or 'nothing'}. Save model.state_dict(), alone or below "
        f"{', '.join(INSIDE)}."
    )


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping) and bool(value) and all(isinstance(t, Tensor) for t in value.values())


def _check_sizes(tensors: Mapping[str, Tensor], path: Path) -> None:
    """A few bytes can pretend to be many numbers by steps of 0: none may be larger than what holds it."""
    total = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        total += size
        if tensor.layout != torch.strided or size > tensor.untyped_storage().nbytes():
            raise InputError(f"'{path}': the tensor '{name}' is not stored number by number. Save it contiguous.")
    if total > MOST_SHARED * path.stat().st_size:
        raise InputError(f"'{path}': its tensors would take {total:,} bytes, more than {MOST_SHARED} times the file.")
