"""Streams in which every client has a list of data sets of its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedquilt.config.config import parse
from fedquilt.data import Federation
from fedquilt.data.streams.kinds import ClientDatasets
from fedquilt.errors import InputError
from fedquilt.runs.build import federation_of

SHAPES = {"small": (8, 8), "large": (12, 12), "colour": (10, 10, 3), "other": (8, 8), "floats": (8, 8)}


def divide(source=None, classes=None) -> Federation:
    """30 images of one brightness for each name, in three classes, over two clients."""
    level = 10 * (1 + list(SHAPES).index(source))
    x = np.full((30, *SHAPES[source]), level, np.uint8)
    if source == "floats":
        x = x[:, None].astype(np.float32)
    return Federation.from_arrays(x, np.arange(30) % 3, clients=2, test=0.2, valid=0.1, seed=0)


def test_every_client_has_its_own_data_set_with_its_own_classes():
    made = ClientDatasets(sources=(("small", "colour"), ("large", "other")), size=6, rounds_per_task=2)(divide, None)
    assert made.ids == (0, 1)
    seen = {}
    for round in (0, 2):
        for client in made.ids:
            site = made.site(client, round)
            rows = site.train.all_rows()
            x, y = made.tasks[0].columns["x"][rows], made.tasks[0].columns["y"][rows]
            assert x.shape[1:] == (3, 6, 6)
            seen[round, client] = (int(x.unique()), set(y.tolist()))
            held = [made.evaluation_of(client, split, round // 2) for split in ("valid", "test")]
            assert len(rows) + sum(len(table) for table in held) == 30
    assert seen[0, 0] == (10, {0, 1, 2})
    assert seen[2, 0] == (30, {3, 4, 5})
    assert seen[0, 1] == (20, {6, 7, 8})
    assert seen[2, 1] == (40, {9, 10, 11})
    assert made.classes == 12


def test_images_of_one_shape_stay_as_they_are():
    made = ClientDatasets(sources=(("small",), ("other",)))(divide, None)
    assert made.tasks[0].columns["x"].shape[1:] == (1, 8, 8)
    assert made.tasks[0].columns["x"].dtype == torch.uint8


def test_what_does_not_fit_is_refused():
    with pytest.raises(InputError, match=r"stream\.size"):
        ClientDatasets(sources=(("small",), ("large",)))(divide, None)
    with pytest.raises(InputError, match="prepared alike"):
        ClientDatasets(sources=(("small",), ("floats",)))(divide, None)
    for bad in ((), (("small",), ()), (("small", "other"), ("large",))):
        with pytest.raises(InputError, match="as many for each"):
            ClientDatasets(sources=bad)
    with pytest.raises(InputError, match="size"):
        ClientDatasets(sources=(("small",),), size=0)


def test_from_a_recipe():
    stream = {"kind": "client_datasets", "sources": [["digits", "digits"], ["digits", "digits"]], "size": 16}
    made = federation_of(parse({"data": {"clients": 2, "limit": 60, "partition": "iid"}, "stream": stream}))
    assert made.site(0, 0).train.whole().x.shape[1:] == (3, 16, 16)
    assert len(made.tasks) == 2
