"""What a federation refuses, and that the sentence says what, which value, and what to do."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedquilt.data import IID, Dirichlet, Federation, Pixels
from fedquilt.errors import InputError

X = np.zeros((20, 3), np.float32)
Y = np.arange(20) % 2
HOLES = X.copy()
HOLES[[4, 7], 1] = np.nan
BYTES = np.zeros((20, 4, 4), np.uint8)


def arrays(x=X, y=Y, **options):
    return lambda: Federation.from_arrays(x, y, **{"clients": 2, **options})


def clients(given, **options):
    return lambda: Federation.from_clients(given, **options)


def rows(given, columns=None, **options):
    return lambda: Federation.from_rows(columns or {"x": torch.tensor(X), "y": torch.tensor(Y)}, given, **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (arrays(y=Y[:19]), "x has 20 rows but y has 19. Give one label for each row"),
        (arrays(X[:0], Y[:0]), "x and y are empty. Give at least one row"),
        (arrays(y=Y.astype(float)), r"y holds float64, but labels are whole numbers.*astype\('int64'\)"),
        (arrays(y=Y - 1), r"negative label -1 \(10 rows\)"),
        (arrays(y=np.array(["a"] * 20)), "y holds <U1, not numbers; np.unique"),
        (arrays(y=Y[:, None]), r"y has shape \(20, 1\).*y.reshape\(-1\)"),
        (arrays(HOLES[:, None]), r"NaN or infinite values in 2 of 20 rows \(the first is row 4\)"),
        (arrays(HOLES, standardise=None), r"NaN or infinite values in 2 of 20 rows \(the first is row 4\)"),
        (arrays(X + np.inf), r"infinite values in .* of 20 rows .*leave those cells empty \(NaN\)"),
        (arrays(np.float64(3.0)), "x is a single number"),
        (arrays(X.astype(complex)), "complex"),
        (arrays(np.array([object()] * 20)), "x holds object, not numbers"),
        (arrays(clients=21), "21 clients cannot share 20 rows"),
        (arrays(clients=0), "clients must be a whole number of at least 1, got 0"),
        (arrays(classes=1), "classes is 1, but y has the label 1. Give 2 or more"),
        (arrays(test=1.0), "test must be a fraction from 0 to below 1, got 1.0"),
        (arrays(valid=-0.1), "valid must be a fraction from 0 to below 1, got -0.1"),
        (arrays(test=float("nan")), "test must be a fraction"),
        (arrays(test=0.6, valid=0.4), "test \\+ valid is 1, which leaves nothing to train on"),
        (arrays(global_test=(X[:, :2], Y)), r"global_test: rows of x are \(2,\) torch.float32, but elsewhere"),
        (arrays(global_test=(X, Y[:3])), "global_test: x has 20 rows but y has 3"),
        (arrays(user=Y[:3], clients=None), r"user has shape \(3,\), but there are 20 rows"),
        (arrays(user=Y, partition=IID(), clients=None), "Both partition and user"),
        (arrays(user=Y, clients=3), "clients is 3, but there are 2 users"),
        (arrays(user=Y / 2, clients=None), "A client id must be an int"),
        (arrays(partition=lambda y, n, s: [np.arange(20)]), "The partition made 1 parts for 2 clients"),
        (arrays(partition=lambda y, n, s: [np.arange(20)] * 2), "each of the rows 0 to 19 to one client at most"),
        (arrays(partition=Dirichlet(0.001, 0), clients=15), "clients have no training samples: .*drop_empty=True"),
        (arrays(prepare=Pixels()), "Pixels prepares byte images .uint8., but x is torch.float32"),
        (arrays(BYTES, prepare=Pixels(mean=(0.1, 0.2, 0.3))), "Pixels has 3 channels, but x has 1"),
        (clients({}), "None of 0 clients has a row"),
        (clients({"a": (X, Y[:3])}), "client 'a': x has 20 rows but y has 3"),
        (clients({"a": {"train": (X[:, None], Y), "test": (HOLES[:, None], Y)}}), "client 'a', test: x has NaN"),
        (clients({"a": (X, Y), "b": (X[:0], Y[:0])}), "1 of 2 clients have no training samples: 'b'"),
        (clients({"a": (X, Y), "b": {"test": (X, Y)}}), "1 of 2 clients have no training samples: 'b'"),
        (clients({"a": (X, Y), "b": ([], [])}), "no training samples: 'b'"),
        (clients({"a": {"train": (X, Y), "dev": (X, Y)}}), "Client 'a' has a split 'dev'"),
        (clients({"a": X}), r"client 'a': expected \(x, y\), got ndarray"),
        (clients({"a": (X, Y), "b": (X[:, :2], Y)}), "All clients need inputs of one shape and type"),
        (clients({"a": (X, Y)}, test=0.5, valid=0.5), "leaves nothing to train on"),
        (rows({}), "There are no clients"),
        (rows({0: {"train": [0, 20]}}), "Row numbers go from 0 to 20, but the columns have 20 rows"),
        (rows({0: {"train": [0]}, 5: {"train": [1, 2], "test": [2]}}), "Client 5 has row 2 twice"),
        (rows({0: {"training": [0]}}), "Client 0 has a split 'training'"),
        (rows({0: {"train": [0]}}, {"y": torch.zeros(3).long()}), "must be of one length and include x"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_drop_empty_leaves_the_empty_ones_out():
    data = Federation.from_clients({"a": (X, Y), "b": ([], []), "c": (X, Y)}, drop_empty=True)
    assert data.ids == data.evaluated == ("a", "c")
    assert data.size("c") == 14
    with pytest.raises(InputError, match="None of 1 clients has a row"):
        Federation.from_clients({"b": ([], [])}, drop_empty=True)
    skewed = Federation.from_arrays(X, Y, partition=Dirichlet(0.001, 0), clients=15, test=0, valid=0, drop_empty=True)
    assert len(skewed.ids) < 15
    assert sum(skewed.size(c) for c in skewed.ids) == 20


def test_a_federation_without_labels_says_so():
    data = Federation.from_rows({"x": torch.zeros(4, 1), "z": torch.zeros(4)}, {"a": {"train": [0, 1, 2, 3]}})
    assert data.classes is None
    assert set(data.site("a", 0).train.whole().columns) == {"x", "z"}
    with pytest.raises(InputError, match=r"no labels: its columns are \['x', 'z'\]"):
        data.labels("a")


def test_read_only_and_reversed_arrays_are_fine():
    frozen = X.copy()
    frozen.flags.writeable = False
    data = Federation.from_clients({"a": (frozen, Y), "b": (X[::-1], Y[::-1].astype(">i4"))})
    assert data.classes == 2


def test_labels_that_begin_at_1_are_said_to_make_one_class_more(caplog: pytest.LogCaptureFixture) -> None:
    x, y = np.zeros((40, 3), np.float32), np.arange(40) % 2
    assert Federation.from_arrays(x, y, clients=2).classes == 2
    assert Federation.from_arrays(x, y + 1, clients=2, classes=3).classes == 3
    assert not caplog.records
    assert Federation.from_arrays(x, y + 1, clients=2).classes == 3
    (note,) = [record.getMessage() for record in caplog.records]
    assert note.startswith("note: no row has label 0: y has labels from 1 to 2, which are taken for 3 classes.")
    assert "y - 1" in note
