"""Batches of several clients as one: the same rows as each client's own batches."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedquilt import FedAvg, Federation, Net
from fedquilt.core.exchange import Context
from fedquilt.core.seed import Seed
from fedquilt.core.train import Descent
from fedquilt.engines import stacked as feed
from fedquilt.methods.fedavg import Client, Download
from fedquilt.pieces.optimizers import SGD

ROWS = {0: range(0, 12), 1: range(12, 24), 2: range(24, 31)}  # the last has fewer


def halved(columns):
    return {**columns, "x": columns["x"] / 2}


class Noisy:
    """A preparation with chance in it."""

    def __call__(self, columns):
        return columns

    def augmented(self, columns, seed):
        return {**columns, "x": columns["x"] + torch.rand(columns["x"].shape, generator=seed.torch())}


def descents(prepare=None, steps=None):
    columns = {"x": torch.arange(31.0).view(31, 1), "y": torch.arange(31) % 2}
    federation = Federation.from_rows(columns, {c: {"train": rows} for c, rows in ROWS.items()}, prepare=prepare)
    method = FedAvg(objective=Net.of(torch.nn.Linear, 1, 2), optimizer=SGD(0.1), batch_size=5, epochs=2, steps=steps)
    train, shared = method.exchanges()[0].work, method.net.init(Seed(0))
    found = []
    for client in ROWS:
        context, site = Context(0, client, Seed(client)), federation.site(client, 0)
        job = train.start(Download(shared=shared), Client(private={}), site, context)
        found.append(Descent(train, job, site, context))
    return found


def expected(descents):
    """Each lane's own batches, one list for each."""
    return [list(d.train.batches(d.job, d.site, d.context)) for d in descents]


@pytest.mark.parametrize("prepare", [None, halved, Noisy()], ids=["bare", "prepared", "random"])
@pytest.mark.parametrize("steps", [None, 7])
def test_lanes_are_fed_what_each_would_get_alone(prepare, steps):
    lanes = descents(prepare, steps)
    alone, fed = expected(lanes), feed.feed_of(lanes)
    for step in range(max(map(len, alone))):
        live = sum(len(batches) > step for batches in alone)
        columns, sizes = fed(live)
        for lane in range(live):
            batch = alone[lane][step]
            assert sizes[lane] == len(batch)
            for name, column in batch.columns.items():
                torch.testing.assert_close(columns[name][lane, : sizes[lane]], column, rtol=0, atol=0)
                filling = columns[name][lane, sizes[lane] :]
                assert (filling == column[0]).all()


def test_rows_of_one_store_are_looked_up_at_once_and_others_are_not(monkeypatch):
    ways = []
    for name in ("_gathered", "_stacked"):
        was = getattr(feed, name)
        monkeypatch.setattr(feed, name, lambda *args, was=was, name=name: ways.append(name) or was(*args))
    lanes = descents()
    feed.feed_of(lanes)
    feed.feed_of(descents(Noisy()))
    elsewhere = descents()[0]
    feed.feed_of([*lanes, replace(elsewhere)])
    assert ways == ["_gathered", "_stacked", "_stacked"]
