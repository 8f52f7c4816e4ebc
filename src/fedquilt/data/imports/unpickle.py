"""Arrays out of pickled objects without running anything: the one reader of pickles here.

A pickle is a program: it may call whatever it can name. This reader lets it name four things of numpy, and even for
these it gives stand-ins that only take notes: the arrays are made afterwards, from the notes, once shapes and lengths
are checked. Every other name is refused before anything is done with it.
"""

from __future__ import annotations

import io
import math
import pickle  # noqa: TID251 -- restricted below: no name is ever imported
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from fedquilt.core.errors import InputError

_DEPTH = 8  # a division needs four: array, dict, array, array
_TYPE = re.compile(r"[biuf][1248]|O8?")


def unpickled(data: bytes, where: str) -> Any:
    """Dicts, lists, texts, numbers and numeric arrays; anything else is refused by name."""
    try:
        return _plain(_Restricted(io.BytesIO(data), where).load())
    except InputError:
        raise
    except Exception as error:  # damaged bytes make the machine fail in any way it can
        raise InputError(f"{where} holds a damaged pickle: {error}. Make the file again.") from error


class _Restricted(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, where: str) -> None:
        super().__init__(stream)
        self._where = where

    def find_class(self, module: str, name: str) -> Any:
        found = _ADMITTED.get((module.replace("numpy.core", "numpy._core"), name))
        if found is None:
            raise InputError(
                f"{self._where} holds a pickle that asks for {module}.{name}. Only numpy arrays are read from pickles: "
                "anything else could run code. Do not trust the file; if it is your own, save x and y with np.savez."
            )
        return found


class _Call:
    """A name a pickle may use: it can be called, and nothing else."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    def __call__(self, *given: Any) -> Any:
        return self._make(*given)

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("it changes what is not its own")


class _Type:
    """Notes on a dtype: its code and byte order."""

    __slots__ = ("code", "order")

    def __init__(self, code: str) -> None:
        if not isinstance(code, str) or not _TYPE.fullmatch(code):
            raise pickle.UnpicklingError(f"arrays of type {code!r:.40} are not read")
        self.code, self.order = code, "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError(f"byte order {state[1]!r:.40}")
        self.order = state[1]

    @property
    def numeric(self) -> np.dtype[Any]:
        return np.dtype(self.order + self.code)


class _Array:
    """Notes on an array: its shape, its type, and its bytes or, for objects, its members."""

    __slots__ = ("state",)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state

    def value(self, depth: int) -> Any:
        _, shape, kind, by_columns, raw = self.state
        count = math.prod(shape)
        if kind.code.startswith("O"):
            if not isinstance(raw, list) or len(raw) != count:
                raise pickle.UnpicklingError("an array of objects without its members")
            members = [_plain(member, depth) for member in raw]
            return members if shape else members[0]
        if min(shape, default=0) < 0 or count * kind.numeric.itemsize != len(raw):
            raise pickle.UnpicklingError(f"an array of {shape!r:.40} with {len(raw)} bytes")
        return np.frombuffer(raw, kind.numeric).reshape(shape, order="F" if by_columns else "C")


def _scalar(kind: _Type, raw: bytes) -> Any:
    return np.frombuffer(raw, kind.numeric, count=1)[0]


def _plain(value: Any, depth: int = 0) -> Any:
    if depth > _DEPTH:
        raise pickle.UnpicklingError("it is nested too deeply")
    if isinstance(value, _Array):
        return value.value(depth + 1)
    if isinstance(value, dict):
        return {name: _plain(inner, depth + 1) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, depth + 1) for inner in value]
    return value


_ADMITTED = {
    ("numpy._core.multiarray", "_reconstruct"): _Call(lambda *given: _Array()),
    ("numpy._core.multiarray", "scalar"): _Call(_scalar),
    ("numpy", "ndarray"): _Call(lambda *given: _Array()),
    ("numpy", "dtype"): _Call(lambda code, *given: _Type(code)),
}
