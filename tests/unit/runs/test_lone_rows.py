"""BatchNorm and clients of one row: refused before a run starts, in words, and only where it cannot work."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

from fedquilt import FedAvg, Federation, Net
from fedquilt.errors import InputError
from fedquilt.runs.build import _check_lone_rows

ROWS = {"few": 1, "some": 5}


def normed(norm: type[nn.Module] = nn.BatchNorm1d) -> FedAvg:
    return FedAvg(objective=Net(nn.Sequential(nn.Linear(3, 4), norm(4), nn.Linear(4, 2))))


def clients(rows: dict[str, int]) -> Federation:
    given = {name: (np.ones((n, 3), np.float32), np.arange(n) % 2) for name, n in rows.items()}
    return Federation.from_clients(given, test=0, valid=0)


def test_a_client_of_one_row_is_named():
    with pytest.raises(InputError, match=r"BatchNorm.*client 'few' has 1 training sample.*norm = 'group'"):
        _check_lone_rows(normed(), clients(ROWS), 10)
    with pytest.raises(InputError, match=r"train.batch_size is 1"):
        _check_lone_rows(normed(), clients({"some": 5}), 1)


def test_what_works_is_let_through():
    _check_lone_rows(normed(), clients({"a": 2, "b": 5}), 10)
    _check_lone_rows(normed(nn.LayerNorm), clients(ROWS), 10)
    spatial = nn.Sequential(nn.Unflatten(1, (1, 3)), nn.BatchNorm1d(1), nn.Flatten(), nn.Linear(3, 2))
    _check_lone_rows(FedAvg(objective=Net(spatial)), clients(ROWS), 1)  # three values of its one channel
