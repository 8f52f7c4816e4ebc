"""Batches travel to a device in order and whole."""

import pytest
import torch

from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch
from fedquilt.core.tree import carried, elsewhere, moved
from fedquilt.engines.local import Local
from fedquilt.rounds.rounds import Rounds
from helpers.toy import fedavg, points

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
BATCHES = [Batch({"x": torch.full((2, 3), float(i)), "y": torch.tensor([i, i])}) for i in range(5)]


def test_on_the_cpu_batches_stay_what_they_are():
    for device in (None, torch.device("cpu")):
        assert not elsewhere(device)
        assert all(a is b for a, b in zip(carried(BATCHES, device), BATCHES, strict=True))


def test_another_device_gets_every_batch_and_its_weights():
    device = torch.device("meta")
    found = list(carried([*BATCHES, Batch(BATCHES[0].columns, torch.ones(2))], device))
    assert elsewhere(device)
    assert len(found) == 6
    assert all(t.device == device for batch in found for t in batch.columns.values())
    assert found[-1].weight is not None
    assert found[-1].weight.device == device


def test_trees_keep_their_shape():
    tree = {"a": (torch.ones(2), [torch.zeros(1), "word"]), "b": 3}
    found = moved(tree, torch.device("meta"))
    assert found["b"] == 3
    assert found["a"][1][1] == "word"
    assert isinstance(found["a"], tuple)
    assert found["a"][0].device.type == "meta"


@CUDA
def test_on_cuda_batches_come_in_order():
    found = list(carried(BATCHES, torch.device("cuda")))
    assert all(torch.equal(a.x.cpu(), b.x) and torch.equal(a.y.cpu(), b.y) for a, b in zip(found, BATCHES, strict=True))


@CUDA
def test_cuda_agrees_with_the_cpu_but_for_rounding():
    data = points(30, 40)
    states = []
    for engine in (Local(), Local("cuda")):
        rounds = Rounds(fedavg(), data, engine, Seed(0))
        rounds.play()
        states.append(rounds.state.shared)
    for name, tensor in states[0].items():
        assert torch.allclose(tensor, states[1][name], atol=1e-4)
