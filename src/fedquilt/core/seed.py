"""Randomness as a value: a seed is folded with what it is for, and only then gives a generator."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedquilt.errors import InputError

_MASK = (1 << 63) - 1


@dataclass(frozen=True)
class Seed:
    """A reproducible source of randomness.

    ``fold`` gives a seed for one purpose; two different foldings are independent, and neither
    depends on how often the other was used.

    Example:
        >>> root = Seed(0)
        >>> root.fold("batches", 3) == root.fold("batches", 3)
        True
        >>> root.fold("batches", 3) == root.fold("batches", 4)
        False
    """

    value: int

    def __post_init__(self) -> None:
        if self.value < 0:
            raise InputError(f"A seed must be 0 or larger, got {self.value}.")

    def fold(self, *keys: object) -> Seed:
        """A new seed from this one and any keys (ints, strings, tuples of them)."""
        text = repr((self.value, *map(_plain, keys))).encode()
        found = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") & _MASK
        made = object.__new__(
            Seed
        )  # there is nothing to check, and seeds are folded several times in every client update
        object.__setattr__(made, "value", found)
        return made

    def torch(self) -> torch.Generator:
        """A fresh CPU generator; it starts at the same point every time."""
        return torch.Generator().manual_seed(self.value)

    def numpy(self) -> np.random.Generator:
        """A fresh numpy generator; it starts at the same point every time."""
        return np.random.default_rng(self.value)

    @contextmanager
    def ambient(self) -> Iterator[None]:
        """Seed torch's own default generators inside the block and restore them after it.

        Module constructors and dropout draw from the default generator and take no other; this is
        the one place where it is touched, and nothing outside the block notices.
        """
        before = torch.get_rng_state()
        devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else range(0)
        cuda = [torch.cuda.get_rng_state(d) for d in devices]
        torch.default_generator.manual_seed(self.value)
        for device in devices:
            torch.cuda.default_generators[device].manual_seed(self.value)
        try:
            yield
        finally:
            torch.set_rng_state(before)
            for device, state in zip(devices, cuda, strict=True):
                torch.cuda.set_rng_state(state, device)

    @contextmanager
    def everywhere(self) -> Iterator[None]:
        """As :meth:`ambient`, and also the generators of Python's ``random`` and of ``numpy.random``: around code of
        other people, which may draw from any of them."""
        before, numbers = random.getstate(), np.random.get_state()
        with self.ambient():
            self.sow()
            try:
                yield
            finally:
                random.setstate(before)
                np.random.set_state(numbers)

    def sow(self) -> None:
        """Seed the default generators of torch, numpy and Python: only inside :meth:`everywhere`."""
        torch.default_generator.manual_seed(self.value)
        np.random.seed(self.value & 0xFFFFFFFF)
        random.seed(self.value)


def _plain(key: object) -> Any:
    """A key whose text is the same for equal keys: numpy's numbers become Python's."""
    if type(key) is int or type(key) is str:
        return key
    if isinstance(key, tuple):
        return tuple(_plain(part) for part in key)
    return key.item() if isinstance(key, np.generic) else key
