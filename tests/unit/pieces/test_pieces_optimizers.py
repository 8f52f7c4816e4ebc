"""Optimisers: equal to torch.optim."""

from __future__ import annotations

import pytest
import torch

from fedquilt import SGD, Adam, AdamW, FedAvg
from fedquilt.errors import InputError
from fedquilt.testing import network

PAIRS = [
    (SGD(0.1), torch.optim.SGD, {"lr": 0.1}),
    (SGD(0.1, momentum=0.9), torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    (SGD(0.1, momentum=0.9, nesterov=True), torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    (SGD(0.1, weight_decay=0.1), torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.1}),
    (
        SGD(0.05, momentum=0.5, nesterov=True, weight_decay=0.1),
        torch.optim.SGD,
        {"lr": 0.05, "momentum": 0.5, "nesterov": True, "weight_decay": 0.1},
    ),
    (Adam(0.01), torch.optim.Adam, {"lr": 0.01}),
    (Adam(0.01, betas=(0.5, 0.9), eps=1e-3), torch.optim.Adam, {"lr": 0.01, "betas": (0.5, 0.9), "eps": 1e-3}),
    (Adam(0.01, weight_decay=0.1), torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1}),
    (AdamW(0.01), torch.optim.AdamW, {"lr": 0.01}),
    (AdamW(0.01, weight_decay=0.0), torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.0}),
    (AdamW(0.1, weight_decay=0.3), torch.optim.AdamW, {"lr": 0.1, "weight_decay": 0.3}),
]


@pytest.mark.parametrize(("ours", "kind", "settings"), PAIRS, ids=[str(p[0]) for p in PAIRS])
def test_twenty_steps_equal_torch_optim(ours, kind, settings):
    draw = torch.Generator().manual_seed(0)
    weights = [torch.randn(shape, generator=draw) for shape in ((4, 3), (5,), ())]
    theirs = [w.clone().requires_grad_() for w in weights]
    start = [w.clone() for w in weights]
    reference, memory = kind(theirs, **settings), ours.init(weights)
    for count in range(1, 21):
        grads = [torch.randn(w.shape, generator=draw) for w in weights]
        for weight, grad in zip(theirs, grads, strict=True):
            weight.grad = grad.clone()
        reference.step()
        kept = [g.clone() for g in grads]
        ours.step(weights, grads, memory, ours.lr, count)
        assert all(map(torch.equal, grads, kept))  # the gradient is given to the method afterwards
    for a, b, s in zip(weights, theirs, start, strict=True):
        torch.testing.assert_close(a, b.detach(), rtol=0, atol=1e-6)
        assert not torch.allclose(a, s, atol=1e-3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SGD(0.0), "lr must be a positive number, got 0.0"),
        (lambda: SGD(float("nan")), "got nan"),
        (lambda: Adam(float("inf")), "got inf"),
        (lambda: SGD(0.1, momentum=1.0), r"momentum must be in \[0, 1\), got 1.0"),
        (lambda: SGD(0.1, nesterov=True), "nesterov needs momentum"),
        (lambda: AdamW(0.1, weight_decay=-1.0), "weight_decay must be >= 0, got -1.0"),
        (lambda: Adam(0.1, betas=(0.9, 1.0)), "betas"),
    ],
)
def test_impossible_settings_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize(
    ("wrong", "got"),
    [
        (torch.optim.SGD, r"got torch.optim.SGD\. .*client_update"),
        (torch.optim.Adam([torch.zeros(1)]), r"got torch.optim.Adam\. .*client_update"),
        (SGD, r"got <class '.*SGD'>\.$"),
        (0.1, r"got 0.1\.$"),
    ],
)
def test_what_is_no_optimiser_of_this_library_is_refused_with_the_remedy(wrong: object, got: str) -> None:
    with pytest.raises(InputError, match=r"SGD\(0.1\) or Adam.*learning rate.*" + got):
        FedAvg(network(), optimizer=wrong)
