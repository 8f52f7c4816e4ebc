"""Randomness as a value."""

from __future__ import annotations

import hashlib

import pytest
import torch

from fedquilt.core.seed import Seed


def test_fold_is_the_documented_hash():
    """blake2b (8 bytes, little endian, 63 bits) of the repr of (value, *keys): the same on every machine."""
    digest = hashlib.blake2b(b"(5, 'batches', 3)", digest_size=8).digest()
    assert Seed(5).fold("batches", 3) == Seed(int.from_bytes(digest, "little") & (2**63 - 1))


def test_foldings_differ_by_purpose_type_and_grouping():
    root = Seed(0)
    folded = [
        root.fold("a"),
        root.fold("a", 1),
        root.fold("a", "1"),
        root.fold(("a", 1)),
        root.fold("a").fold(1),
        root.fold(1, "a"),
        Seed(1).fold("a"),
        root,
    ]
    assert len(set(folded)) == len(folded)


def test_generators_start_at_the_same_point_every_time():
    seed = Seed(3)
    assert torch.equal(torch.rand(4, generator=seed.torch()), torch.rand(4, generator=seed.torch()))
    assert seed.numpy().integers(2**60) == seed.numpy().integers(2**60)
    assert not torch.equal(torch.rand(4, generator=seed.torch()), torch.rand(4, generator=Seed(4).torch()))


def test_ambient_seeds_inside_and_restores_outside_also_after_an_error():
    before = torch.get_rng_state()
    with Seed(3).ambient():
        inside = torch.rand(4)

    def fails():
        with Seed(3).ambient():
            torch.rand(9)
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(inside, torch.rand(4, generator=Seed(3).torch()))
