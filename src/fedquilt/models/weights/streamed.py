"""Models on disk, one tensor at a time: reading, comparing, and writing in the layout they came in."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedquilt.errors import InputError
from fedquilt.models.weights.files import INDEX, OLD_INDEX, weight_files
from fedquilt.models.weights.torch_files import is_torch_file, read_torch
from fedquilt.records.registered import CODES, DTYPES


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file, unread."""

    file: Path
    shape: tuple[int, ...]
    dtype: torch.dtype
    start: int

    @property
    def size(self) -> int:
        """Its bytes."""
        return math.prod(self.shape) * torch.empty((), dtype=self.dtype).element_size()


class StoredModel(Mapping[str, Tensor]):
    """A safetensors file, one of torch.save, or a folder of them with their index, whose tensors are read when they are
    asked for.

    Only the tensor that was read last is held, so that asking for it again costs nothing. Numbers must be finite.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.files = weight_files(path)
        self.entries: dict[str, StoredTensor] = {}
        self._stack, self._open = ExitStack(), dict[Path, IO[bytes]]()
        self._last: tuple[str, Tensor] | None = None
        self._sound: set[str] = set()
        self._mapped: dict[str, Tensor] = {}  # of files of torch.save: in memory only as far as they are looked at
        for file in self.files:
            self._look(file)

    def _look(self, file: Path) -> None:
        if is_torch_file(file):
            for name, tensor in read_torch(file).items():
                self._enter(name, StoredTensor(file, tuple(tensor.shape), tensor.dtype, 0))
                self._mapped[name] = tensor
            return
        try:
            with safe_open(str(file), framework="pt"):  # the library checks that the header and the bytes agree
                stream = self._open[file] = self._stack.enter_context(file.open("rb"))
        except (SafetensorError, OSError) as error:
            raise InputError(f"'{file}' cannot be read as safetensors: {error}.") from error
        length = int.from_bytes(stream.read(8), "little")
        header: dict[str, Any] = json.loads(stream.read(length))
        header.pop("__metadata__", None)
        for name, told in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            if told["dtype"] not in DTYPES:
                raise InputError(f"'{file}': the tensor '{name}' is of dtype {told['dtype']}, which cannot be merged.")
            place = 8 + length + told["data_offsets"][0]
            self._enter(name, StoredTensor(file, tuple(told["shape"]), DTYPES[told["dtype"]], place))

    def _enter(self, name: str, entry: StoredTensor) -> None:
        if entry.dtype not in CODES:
            raise InputError(f"'{entry.file}': the tensor '{name}' is of dtype {entry.dtype}, which cannot be merged.")
        if name in self.entries:
            raise InputError(f"'{self.path}' has the tensor '{name}' in two files.")
        self.entries[name] = entry

    def __getitem__(self, name: str) -> Tensor:
        if self._last is None or self._last[0] != name:
            self._last = None
            mapped = self._mapped.get(name)
            tensor = self._read(self.entries[name]) if mapped is None else mapped.contiguous().clone()
            if name not in self._sound and not finite(tensor):
                raise InputError(f"'{self.path}': '{name}' holds numbers that are not finite. Did training diverge?")
            self._sound.add(name)
            self._last = (name, tensor)
        return self._last[1]

    def _read(self, entry: StoredTensor) -> Tensor:
        if not entry.size:
            return torch.empty(entry.shape, dtype=entry.dtype)
        buffer = np.empty(entry.size, dtype=np.uint8)
        stream: Any = self._open[entry.file]
        stream.seek(entry.start)
        if stream.readinto(buffer) != entry.size:
            raise InputError(f"'{entry.file}' became shorter while it was read.")
        return torch.from_numpy(buffer).view(entry.dtype).view(entry.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def dtypes(self) -> dict[str, torch.dtype]:
        """The dtype of each tensor."""
        return {n: e.dtype for n, e in self.entries.items()}

    @property
    def numbers(self) -> int:
        """How many numbers in all."""
        return sum(math.prod(e.shape) for e in self.entries.values())

    def close(self) -> None:
        """Let go of the files."""
        self._last = None
        self._mapped.clear()
        self._stack.close()


def finite(tensor: Tensor) -> bool:
    """Whether a tensor holds neither NaN nor infinity."""
    return not tensor.is_floating_point() or math.isfinite(float(tensor.sum())) or bool(tensor.isfinite().all())


def compare(base: StoredModel, other: StoredModel) -> list[str]:
    """Every way in which another model does not fit: names, shapes, dtypes."""
    problems = [
        f"'{other.path}' {what} {', '.join(names[:3])}" + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        for what, names in (("lacks", _less(base, other)), ("has besides", _less(other, base)))
        if names
    ]
    for name, entry in base.entries.items():
        mine = other.entries.get(name)
        if mine is not None and (mine.shape, mine.dtype) != (entry.shape, entry.dtype):
            problems.append(
                f"'{other.path}': '{name}' is {mine.shape} {CODES[mine.dtype]}, "
                f"but {entry.shape} {CODES[entry.dtype]} in '{base.path}'"
            )
    return problems


def _less(one: StoredModel, other: StoredModel) -> list[str]:
    return [n for n in one.entries if n not in other.entries]


class CheckpointWriter:
    """Writes a model tensor by tensor, in the same files and order as another one; whole or not at all.

    Give tensors in the order of ``names``. Nothing appears at the target before ``finish``. Files are safetensors, also
    where the other's are not.
    """

    def __init__(self, like: StoredModel, target: Path) -> None:
        self.like, self.target = like, target
        self.folder = like.path.is_dir()
        self.part = target.with_name(target.name + ".part")
        self.names = [n for file in like.files for n, e in like.entries.items() if e.file == file]
        self._file: IO[bytes] | None = None
        self._of: Path | None = None
        if self.part.is_dir():
            shutil.rmtree(self.part)
        target.parent.mkdir(parents=True, exist_ok=True)
        if self.folder:
            self.part.mkdir()

    def add(self, name: str, tensor: Tensor) -> None:
        """The next tensor."""
        entry = self.like.entries[name]
        if (tuple(tensor.shape), tensor.dtype) != (entry.shape, entry.dtype):
            raise InputError(f"'{name}' should be written as {entry.shape} {entry.dtype}, got {tensor.dtype}.")
        if entry.file != self._of:
            self._begin(entry.file)
        assert self._file is not None
        raw: Any = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        self._file.write(memoryview(raw))

    def _begin(self, source: Path) -> None:
        if self._file is not None:
            self._file.close()
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        end = 0
        for name in self.names:
            entry = self.like.entries[name]
            if entry.file == source:
                span = [end, end + entry.size]
                header[name] = {"dtype": CODES[entry.dtype], "shape": list(entry.shape), "data_offsets": span}
                end += entry.size
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self._of = source
        self._file = (self.part / _written_as(source) if self.folder else self.part).open("wb")
        self._file.write(len(text).to_bytes(8, "little") + text)

    def finish(self) -> None:
        """Close the files, add what else was in the folder (settings, tokenizer, index), and put all in place."""
        if self._file is not None:
            self._file.close()
        if self.folder:
            self._copy_rest()
            if self.target.is_dir():
                shutil.rmtree(self.target)
        self.part.replace(self.target)

    def _copy_rest(self) -> None:
        for file in sorted(self.like.path.iterdir()):
            if file.is_file() and file.suffix in (".json", ".txt", ".model") and file.name != OLD_INDEX:
                shutil.copyfile(file, self.part / file.name)
        if len(self.like.files) > 1 and is_torch_file(self.like.files[0]):
            shards = {name: _written_as(entry.file) for name, entry in self.like.entries.items()}
            (self.part / INDEX).write_text(
                json.dumps({"metadata": {}, "weight_map": shards}, indent=1), encoding="utf-8"
            )

    def abandon(self) -> None:
        """Leave nothing behind."""
        if self._file is not None:
            self._file.close()
        if self.part.is_dir():
            shutil.rmtree(self.part)
        else:
            self.part.unlink(missing_ok=True)


def _written_as(source: Path) -> str:
    """The name of a file of a folder that is written: that of transformers where it changes to safetensors."""
    if not is_torch_file(source):
        return source.name
    return source.stem.replace("pytorch_model", "model", 1) + ".safetensors"
