"""Federations as a whole: pooled, shared with other processes without a copy, and told apart by a fingerprint."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from fedquilt.data import Dirichlet, Federation
from fedquilt.errors import InputError
from fedquilt.records.record import pack, unpack

X = np.arange(200, dtype=np.float32).reshape(100, 2)
Y = np.arange(100) % 4


def rows_of(table):
    """Which rows of X a table holds: the first column counts in twos."""
    return set() if table is None else set((table.whole().x[:, 0] / 2).int().tolist())


def small(**options):
    return Federation.from_arrays(X, Y, clients=5, **options)


def test_pooled_trains_on_everything_and_is_evaluated_like_the_original():
    data = Federation.from_arrays(X, Y, partition=Dirichlet(0.3, 5), clients=6)
    pooled = data.pooled()
    assert pooled.ids == ("pooled",)
    assert pooled.evaluated == data.ids
    site = pooled.site("pooled", 0)
    assert rows_of(site.train) == set().union(*(rows_of(data.site(c, 0).train) for c in data.ids))
    assert rows_of(site.valid) == set().union(*(rows_of(data.evaluation(c, "valid")) for c in data.ids))
    assert len(pooled.labels("pooled", "valid")) == len(site.valid)
    for client in data.ids:
        for split in ("valid", "test"):
            assert rows_of(pooled.evaluation(client, split)) == rows_of(data.evaluation(client, split))
            assert torch.equal(pooled.labels(client, split), data.labels(client, split))
    with pytest.raises(InputError, match="no client 0 in this federation of 1: 'pooled'"):
        pooled.site(0, 0)


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize(
    "travel", [lambda v: unpack(pack(v)), lambda v: json.loads(json.dumps(v))], ids=["pack", "json"]
)
def test_sharing_rebuilds_on_the_very_same_memory(pooled, travel):
    pairs = {("n", 1): (X[:40], Y[:40]), 3: (X[40:], Y[40:])}
    data = Federation.from_clients(pairs, global_test=(X, Y))
    data = data.pooled() if pooled else data
    tensors = data.columns_for_sharing()
    twin = Federation.from_shared(tensors, travel(data.layout()), data.prepare)
    assert (twin.ids, twin.evaluated, twin.classes) == (data.ids, data.evaluated, data.classes)
    assert twin.fingerprint() == data.fingerprint()
    assert {n: t.data_ptr() for n, t in twin.columns_for_sharing().items()} == {
        n: t.data_ptr() for n, t in tensors.items()
    }
    assert twin.site(data.ids[0], 0).train.columns["x"].data_ptr() == data.columns["x"].data_ptr()
    for client in data.evaluated:
        assert rows_of(twin.evaluation(client, "test")) == rows_of(data.evaluation(client, "test"))
        assert rows_of(twin.evaluation(client, "valid")) == rows_of(data.evaluation(client, "valid"))
    assert len(twin.global_test) == 100


def test_a_shared_federation_without_a_tensor_is_refused():
    data = small()
    tensors = data.columns_for_sharing()
    del tensors["train.index"]
    with pytest.raises(InputError, match=r"lacks 'train.index'"):
        Federation.from_shared(tensors, data.layout(), None)


def test_the_fingerprint_sees_one_byte_one_row_and_one_id():
    base = small().fingerprint()
    assert base == small().fingerprint()
    assert len(base) == 64
    x = X.copy()
    x.view(np.uint8)[50, 3] ^= 1
    assert Federation.from_arrays(x, Y, clients=5).fingerprint() != base
    y = Y.copy()
    y[0] += 1
    assert Federation.from_arrays(X, y, clients=5).fingerprint() != base
    assert small(seed=1).fingerprint() != base
    assert small(global_test=(X[:1], Y[:1])).fingerprint() != base
    assert small().pooled().fingerprint() != base
    names = [Federation.from_clients({name: (X, Y)}, test=0, valid=0).fingerprint() for name in (1, "1")]
    assert names[0] != names[1]


def test_many_clients_are_cheap():
    many = 20_000
    data = Federation.from_arrays(np.zeros((many * 5, 1), np.float32), np.zeros(many * 5, int), clients=many, valid=0)
    assert data.size(many - 1) == 4
    held = sum(t.numel() * t.element_size() for n, t in data.columns_for_sharing().items() if "columns" not in n)
    assert held == 8 * (many * 5 + 3 * (many + 1))  # one index entry for each row, one offset for each client and split
