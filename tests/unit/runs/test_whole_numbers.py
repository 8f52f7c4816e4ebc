"""Rows of whole numbers are token ids or numbers: where nothing looks them up, that is said."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedquilt.core.net import Net
from fedquilt.data import Federation
from fedquilt.methods.fedavg import FedAvg
from fedquilt.runs import preparation
from fedquilt.runs.runner import run

X = np.random.default_rng(0).integers(0, 50, (80, 5))
Y = (X[:, 0] > 25).astype(int)


class Counts(nn.Linear):
    """Takes its rows for numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.float())


def tokens() -> nn.Module:
    return nn.Sequential(nn.Embedding(50, 3), nn.Flatten(), nn.Linear(15, 2))


def played(build: Any, x: Any, caplog: pytest.LogCaptureFixture, **settings: Any) -> list[str]:
    federation = Federation.from_arrays(x, Y, clients=4, **settings)
    with caplog.at_level(logging.WARNING, "fedquilt"):
        for _ in range(2):
            assert list(run(FedAvg(objective=Net(build)), federation, rounds=1, engine="local"))
    return [record.getMessage() for record in caplog.records]


@pytest.fixture(autouse=True)
def untold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "_TOLD", [])


def test_it_is_said_once_what_whole_numbers_are_taken_for(caplog):
    (note,) = played(lambda: Counts(5, 2), X, caplog)
    assert note.startswith("note: rows of 5 whole numbers (int64) are taken for token ids")
    assert "x.astype('float32')" in note


def test_nothing_is_said_of_token_ids_and_of_floats(caplog):
    assert played(tokens, X, caplog) == played(lambda: Counts(5, 2), X.astype("float32"), caplog) == []


@pytest.mark.parametrize("standardise", ["federation", "clients"])
def test_the_remedy_makes_a_table_of_them(standardise):
    made = Federation.from_arrays(X.astype("float32"), Y, clients=4, standardise=standardise)
    rows = torch.cat([(t := made.site(c, 0).train).rows(t.all_rows()).x for c in made.ids])
    assert rows.mean(0).abs().max() < 1e-5
    assert (rows.std(0) - 1).abs().max() < 0.1
