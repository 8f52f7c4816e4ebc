"""(b) for other devices: every method trains on one without mixing its tensors with the CPU's, and ends where ``local``
ends. The device is pretended, so that this is seen on machines without any; see ``helpers/pretended.py``."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from conformance.cases import CASES, Case
from fedquilt.core.net import Net
from fedquilt.core.params import under
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch
from fedquilt.data import Dirichlet, Federation
from fedquilt.data.sources.sources import read
from fedquilt.metrics.classify import classify
from fedquilt.records.record import tensors_in
from helpers.pretended import DEVICE, Far, Pretended, Pretending
from helpers.toy import last

TOLERANCE = 1e-3  # of a tensor's largest value, for attention, which torch computes in another way on other devices


def few() -> Federation:
    """So few digits that all methods are done in seconds: an operation on a pretended device takes long."""
    x, y = (column[:150] for column in read("digits").pair)
    return Federation.from_arrays(x, y, Dirichlet(5.0), 3, classes=10, seed=0)


FEW = few()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_b_another_device_agrees_with_local(case: Case, monkeypatch: pytest.MonkeyPatch):
    made: list[int] = []
    new = Far.__new__
    monkeypatch.setattr(Far, "__new__", staticmethod(lambda cls, near: (made.append(1), new(cls, near))[1]))
    near = last(case.method, FEW, rounds=1, score=classify)
    assert not made
    far = last(case.method, FEW, rounds=1, engine=Pretended(), score=classify)
    assert made  # it was used
    if not case.guesses:
        assert far.digest() == near.digest()
        return
    for a, b in zip(tensors_in(near.state), tensors_in(far.state), strict=True):
        assert a.shape == b.shape
        if a.numel():
            assert float((a.double() - b.double()).abs().max()) <= TOLERANCE * float(a.double().abs().max())


def test_the_pretended_device_refuses_what_cuda_refuses():
    near = torch.ones(3)
    with Pretending():
        far = near.to(DEVICE)
        assert (far + torch.tensor(1.0)).tolist() == [2.0] * 3  # a lone number may be on the CPU
        assert far[torch.tensor([0, 2])].cpu().tolist() == [1.0, 1.0]
        for wrong in (lambda: far + near, lambda: near.add_(far), lambda: torch.mm(near[None], far[:, None])):
            with pytest.raises(RuntimeError, match="same device"):
                wrong()
        with pytest.raises(RuntimeError, match="generator"):
            torch.rand(2, generator=torch.Generator(), device=DEVICE)
        with pytest.raises(RuntimeError, match="numpy"):
            far.numpy()


class Keeping(nn.Module):
    """What must follow the values to a device: the frozen weight of a recurrent layer, and a buffer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.GRU(2, 3, batch_first=True)
        self.register_buffer("shift", torch.ones(3), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The last output, shifted."""
        return self.cells(x)[0][:, -1] + self.shift


def test_what_a_network_keeps_follows_its_values_from_device_to_device():
    net = Net(Keeping, frozen=under("cells.weight_hh_l0"))
    params, batch = net.init(Seed(0)), Batch({"x": torch.randn(4, 5, 2)})
    expected = net(params, batch)
    for _ in range(2):  # there, to another model there, and back
        with Pretending():
            there = Batch({"x": batch.x.to(DEVICE)})
            for _ in range(2):
                assert torch.equal(net(net.own(params, DEVICE), there).cpu(), expected)
        assert torch.equal(net(dict(params), batch), expected)
