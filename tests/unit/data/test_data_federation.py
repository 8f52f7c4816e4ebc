"""Federations: who holds which rows, by id and never by position."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from fedquilt.core.table import Source
from fedquilt.data import Federation, Pixels
from fedquilt.errors import InputError

X = np.arange(200, dtype=np.float32).reshape(100, 2)  # row numbers, which stay as they are: standardise=False
Y = np.arange(100) % 4


def rows_of(table):
    """Which rows of X a table holds: the first column counts in twos."""
    return set() if table is None else set((table.whole().x[:, 0] / 2).int().tolist())


def small(**options):
    return Federation.from_arrays(X, Y, clients=5, standardise=False, **options)


def test_it_is_a_source():
    data: Source = small()
    assert data.ids == data.evaluated == (0, 1, 2, 3, 4)


def test_splits_are_disjoint_complete_and_of_the_right_size():
    data = small(test=0.2, valid=0.1)
    seen = []
    for client in data.ids:
        site = data.site(client, 0)
        parts = [rows_of(site.train), rows_of(site.valid), rows_of(data.evaluation(client, "test"))]
        assert [len(p) for p in parts] == [14, 2, 4]  # of 20 rows
        assert rows_of(data.evaluation(client, "valid")) == parts[1]
        assert data.size(client) == site.samples == 14
        seen += [row for part in parts for row in part]
    assert sorted(seen) == list(range(100))


def test_labels_belong_to_their_rows():
    data = small()
    for client in data.ids:
        batch = data.site(client, 0).train.whole()
        assert torch.equal(batch.y, (batch.x[:, 0] / 2).long() % 4)
        assert torch.equal(data.labels(client), batch.y)
        assert torch.equal(data.labels(client, "test"), data.evaluation(client, "test").whole().y)
        assert torch.equal(data.labels(client, "valid"), data.evaluation(client, "valid").whole().y)


@pytest.mark.parametrize(
    ("rows", "test", "valid", "sizes"),
    [  # train, valid, test; halves go up, one training sample always stays, validation gives way first
        (10, 0.2, 0.1, (7, 1, 2)),
        (5, 0.5, 0.0, (2, 0, 3)),
        (1, 0.9, 0.0, (1, 0, 0)),
        (2, 0.5, 0.4, (1, 0, 1)),
        (3, 0.2, 0.2, (1, 1, 1)),
        (8, 0.0, 0.0, (8, 0, 0)),
    ],
)
def test_fractions_round_and_leave_a_training_row(rows, test, valid, sizes):
    data = Federation.from_clients({"a": (X[:rows], Y[:rows])}, test=test, valid=valid)
    site, evaluation = data.site("a", 0), data.evaluation("a", "test")
    assert (len(site.train), len(site.valid or ()), len(evaluation or ())) == sizes
    assert (site.valid is None) == (sizes[1] == 0)
    assert (evaluation is None) == (sizes[2] == 0)


def test_ids_are_sorted_and_never_positions():
    pairs = {"b": (X[:10], Y[:10]), 7: (X[10:30], Y[10:30]), "a": (X[30:60], Y[30:60]), (2, "x"): (X[60:], Y[60:])}
    data = Federation.from_clients(pairs, test=0, valid=0, standardise=False)
    turned = Federation.from_clients(dict(reversed(pairs.items())), test=0, valid=0, standardise=False)
    assert data.ids == turned.ids == (7, "a", "b", (2, "x"))
    assert [data.size(c) for c in data.ids] == [20, 30, 10, 40]
    assert rows_of(data.site((2, "x"), 0).train) == set(range(60, 100))
    assert data.fingerprint() == turned.fingerprint()


def test_a_clients_split_does_not_depend_on_who_else_is_there():
    one = Federation.from_clients({"a": (X[:50], Y[:50])}, seed=1, standardise=False)
    two = Federation.from_clients({"0": (X[50:], Y[50:]), "a": (X[:50], Y[:50])}, seed=1, standardise=False)
    assert rows_of(one.evaluation("a", "test")) == rows_of(two.evaluation("a", "test"))
    other = Federation.from_clients({"a": (X[:50], Y[:50])}, seed=2, standardise=False)
    assert rows_of(one.evaluation("a", "test")) != rows_of(other.evaluation("a", "test"))


def test_numpy_ids_become_plain_ones():
    data = Federation.from_clients({np.int16(3): (X, Y), np.str_("s"): (X, Y), (np.int64(1), "k"): (X, Y)})
    assert data.ids == (3, "s", (1, "k"))
    assert [type(c) for c in data.ids] == [int, str, tuple]
    assert type(data.ids[2][0]) is int


@pytest.mark.parametrize("odd", [1.5, None, True, frozenset({1}), ("a", 2.0), b"x"])
def test_other_ids_are_refused(odd):
    with pytest.raises(InputError, match="A client id must be an int, a string, or a tuple of them, got"):
        Federation.from_clients({odd: (X, Y)})


def test_given_splits_are_kept_as_they_are_and_mix_with_fractions():
    given = {"train": (X[:6], Y[:6]), "test": (X[6:9], Y[6:9])}
    data = Federation.from_clients(
        {"fixed": given, "cut": (torch.tensor(X[50:60]), torch.tensor(Y[50:60]))}, standardise=False
    )
    assert rows_of(data.site("fixed", 0).train) == set(range(6))
    assert rows_of(data.evaluation("fixed", "test")) == {6, 7, 8}
    assert data.evaluation("fixed", "valid") is None
    assert data.site("cut", 0).samples == 7
    rows = (
        rows_of(data.site("cut", 0).train)
        | rows_of(data.evaluation("cut", "test"))
        | rows_of(data.evaluation("cut", "valid"))
    )
    assert rows == set(range(50, 60))


def test_users_are_natural_clients():
    user = np.array(["ann", "bob", "cy", "ann"] * 25)
    data = Federation.from_arrays(X, Y, user=user, test=0, valid=0, standardise=False)
    assert data.ids == ("ann", "bob", "cy")
    assert rows_of(data.site("bob", 0).train) == set(range(1, 100, 4))
    some = Federation.from_arrays(X, Y, user=user, clients=2, test=0, valid=0, standardise=False)
    assert len(some.ids) == 2
    assert set(some.ids) < set(data.ids)


def test_a_round_does_not_change_a_site():
    data = small()
    assert torch.equal(data.site(2, 0).train.index, data.site(2, 9).train.index)


def test_global_test_and_classes():
    data = small(global_test=(X[:10], np.full(10, 6)))
    assert len(data.global_test) == 10
    assert data.classes == 7  # the largest label anywhere is 6
    assert small().global_test is None
    assert small(classes=12).classes == 12


def test_images_are_stored_as_bytes_channels_first():
    grey = np.random.default_rng(0).integers(0, 256, (10, 6, 5), dtype=np.uint8)
    data = Federation.from_arrays(grey, Y[:10], clients=1, test=0, valid=0, global_test=(grey, Y[:10]))
    assert data.columns["x"].dtype == torch.uint8
    assert data.columns["x"].shape == (10, 1, 6, 5)
    assert data.prepare == Pixels()
    assert torch.allclose(data.site(0, 0).train.whole().x, torch.tensor(grey)[:, None] / 255)
    assert data.global_test.whole().x.shape == (10, 1, 6, 5)
    colour = np.random.default_rng(0).integers(0, 256, (10, 6, 5, 3), dtype=np.uint8)
    turned = Federation.from_arrays(colour, Y[:10], clients=1).columns["x"]
    assert turned.is_contiguous()
    assert np.array_equal(turned.numpy(), colour.transpose(0, 3, 1, 2))
    kept = Federation.from_arrays(turned, Y[:10], clients=1).columns["x"]
    assert torch.equal(kept, turned)


def test_storage_types():
    def stored(x):
        return Federation.from_arrays(x, Y, clients=2).columns["x"].dtype

    assert stored(X.astype(np.float64)[:, None]) == stored(X.astype(np.float16)) == torch.float32
    assert stored(X.astype(np.float64)) == torch.float64  # a table keeps its digits until its columns are standardised
    assert small().site(0, 0).train.whole().x.dtype == torch.float32
    assert stored(X.astype(np.int32)) == stored(X.astype(np.uint16)) == torch.int64
    assert small().columns["y"].dtype == torch.int64
    shared = Federation.from_arrays(X, Y, clients=2).columns["x"]
    assert shared.data_ptr() == X.ctypes.data  # nothing is copied that need not be


def test_unknown_clients_and_splits_are_named():
    data = small()
    for ask in (lambda: data.site("zoe", 0), lambda: data.evaluation("zoe", "test"), lambda: data.size("zoe")):
        with pytest.raises(InputError, match=r"There is no client 'zoe' in this federation of 5: 0, 1, 2, 3, 4\."):
            ask()
    with pytest.raises(InputError, match="'valid' or 'test', got 'train'"):
        data.evaluation(0, "train")
    with pytest.raises(InputError, match="train, valid and test, got 'dev'"):
        data.labels(0, "dev")


def test_majority_by_hand():
    # a answers 1 (twice of three) and is right on 1 of 2; b answers 0 (a tie of 0 and 2, the smaller) and is right
    # on 3 of 3; c has no test samples. Over all: labels 0: 1, 1: 2, 2: 1 + c's 2, 3 -> counts 0:1, 1:2, 2:2, 3:1 -> 1.
    y = torch.tensor([1, 1, 3, 1, 0, 0, 2, 0, 0, 0, 2])
    clients = {
        "a": {"train": [0, 1, 2], "test": [3, 4]},
        "b": {"train": [5, 6], "test": [7, 8, 9]},
        "c": {"train": [10]},
    }
    data = Federation.from_rows(
        {"x": torch.zeros(11, 1), "y": y}, clients, global_test=(np.zeros((4, 1)), [1, 1, 2, 0])
    )
    found = data.majority()
    assert found.clients[:2].tolist() == [0.5, 1.0]
    assert np.isnan(found.clients[2])
    assert found.personal == pytest.approx(4 / 5)
    assert found.overall == pytest.approx(1 / 5)
    assert found.global_test == 0.5
    assert data.pooled().majority().clients[:2].tolist() == [0.5, 0.0]  # everyone now answers 1


def test_label_counts_and_summary():
    data = small(test=0, valid=0)
    counts = data.label_counts()
    assert counts.shape == (5, 4)
    assert counts.sum(axis=0).tolist() == [25] * 4
    facts = data.summary()
    json.dumps(facts)
    assert facts["rows"] == {"train": 100, "valid": 0, "test": 0}
    assert facts["training samples per client"] == {"least": 20, "median": 20.0, "most": 20}
    assert facts["bytes"] == 100 * (2 * 4 + 8)
    assert "5 clients" in repr(data)
