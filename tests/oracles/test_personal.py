"""FedPer, FedRep, FedBN, fine-tuning, FedBABU and Ditto on models small enough to follow by hand."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.errors import InputError
from fedquilt.methods.personalised.ditto import Ditto
from fedquilt.methods.personalised.fedbabu import FedBABU
from fedquilt.methods.personalised.fedbn import FedBN
from fedquilt.methods.personalised.fedper import FedPer
from fedquilt.methods.personalised.fedrep import FedRep
from fedquilt.methods.personalised.finetune import FedAvgFineTune
from fedquilt.pieces.optimizers import SGD
from helpers.scalar import DATA, LOSS, START, N, descend, gradient, mean
from helpers.toy import Normed, digits, fedavg, last, squared_error

LR = 0.1
WORK = {"optimizer": SGD(LR), "batch_size": 4}
PLAIN = {"optimizer": SGD(0.05), "batch_size": 32}


class Chain(nn.Module):
    """out = head * (body * x), from body 1/2 and head 2."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Parameter(torch.tensor(0.5))
        self.head = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.head * (self.body * x)


CHAIN = Objective(Net(Chain), (squared_error,))


def gradients(client, body, head):
    """d/d(body), d/d(head) of mean (head body x - y)^2 / 2: with w = head body, head gradient(w) and body
    gradient(w)."""
    whole = gradient(client, head * body)
    return head * whole, body * whole


def found(snapshot):
    models = [snapshot.personal_model(k) for k in N]
    return [(float(m["body"]), float(m["head"])) for m in models]


@pytest.mark.parametrize("rounds", [1, 3])
def test_fedper(rounds):
    """Body and head step together; bodies are averaged by examples, heads stay."""
    body, heads = 0.5, dict.fromkeys(N, 2.0)
    for _ in range(rounds):
        bodies = {}
        for k in N:
            db, dh = gradients(k, body, heads[k])
            bodies[k], heads[k] = body - LR * db, heads[k] - LR * dh
        body = mean(bodies)
    got = found(last(FedPer(CHAIN, **WORK), DATA, rounds=rounds))
    assert np.allclose(got, [(body, heads[k]) for k in N], rtol=1e-5)


@pytest.mark.parametrize("rounds", [1, 3])
def test_fedrep(rounds):
    """Three steps of the head with the body as received, then two of the body with the new head."""
    body, heads = 0.5, dict.fromkeys(N, 2.0)
    for _ in range(rounds):
        bodies = {}
        for k in N:
            for _ in range(3):
                heads[k] -= LR * gradients(k, body, heads[k])[1]
            bodies[k] = body
            for _ in range(2):
                bodies[k] -= LR * gradients(k, bodies[k], heads[k])[0]
        body = mean(bodies)
    got = found(last(FedRep(CHAIN, head_epochs=3, epochs=2, **WORK), DATA, rounds=rounds))
    assert np.allclose(got, [(body, heads[k]) for k in N], rtol=1e-5)


@pytest.mark.parametrize("tune", ["all", "head", "body"])
def test_fedbabu(tune):
    """Two rounds of body steps with the head at 2, then two tuning steps from the new global model."""
    body = 0.5
    for _ in range(2):
        body = mean({k: body - LR * gradients(k, body, 2.0)[0] for k in N})
    expected = []
    for k in N:
        b, h = body, 2.0
        for _ in range(2):
            db, dh = gradients(k, b, h)
            b, h = b - LR * db * (tune != "head"), h - LR * dh * (tune != "body")
        expected.append((b, h))
    snapshot = last(FedBABU(CHAIN, tune=tune, tune_epochs=2, **WORK), DATA, rounds=2)
    assert np.allclose(found(snapshot), expected, rtol=1e-5)
    assert float(snapshot.state.shared["head"]) == 2.0
    assert float(snapshot.state.shared["body"]) == pytest.approx(body, rel=1e-5)


def test_fine_tuning_leaves_the_global_model_alone():
    """FedAvg for two rounds, then each client three steps from the result."""
    w = START
    for _ in range(2):
        w = mean({k: descend(k, w, LR, 1) for k in N})
    snapshot = last(FedAvgFineTune(LOSS, tune_epochs=3, **WORK), DATA, rounds=2)
    assert float(snapshot.state.shared["w"]) == pytest.approx(w, rel=1e-5)
    got = [float(snapshot.personal_model(k)["w"]) for k in N]
    assert got == pytest.approx([descend(k, w, LR, 3) for k in N], rel=1e-5)


def ditto_by_hand(rounds, lam, steps):
    w, v = START, dict.fromkeys(N, START)
    for _ in range(rounds):
        for k in N:
            for _ in range(steps):
                v[k] -= LR * (gradient(k, v[k]) + lam * (v[k] - w))  # w as received, not the client's trained one
        w = mean({k: descend(k, w, LR, 2) for k in N})
    return w, v


@pytest.mark.parametrize(("rounds", "lam", "own"), [(1, 0.5, None), (3, 0.5, None), (3, 2.0, 4)])
def test_ditto(rounds, lam, own):
    snapshot = last(Ditto(LOSS, lam=lam, own_epochs=own, epochs=2, **WORK), DATA, rounds=rounds)
    w, v = ditto_by_hand(rounds, lam, own or 2)
    assert float(snapshot.state.shared["w"]) == pytest.approx(w, rel=1e-5)
    assert [float(snapshot.personal_model(k)["w"]) for k in N] == pytest.approx(list(v.values()), rel=1e-5)


def test_ditto_has_the_global_model_of_fedavg_to_the_bit():
    net = Net(partial(Normed, width=8))
    ours, plain = (
        last(m, digits(), rounds=2).state.shared for m in (Ditto(net, **PLAIN), fedavg(objective=net, **PLAIN))
    )
    assert all(torch.equal(ours[n], plain[n]) for n in plain)


def test_fedbn_keeps_all_four_tensors_of_each_layer_and_the_counter():
    method = FedBN(Net(partial(Normed, width=8)), **PLAIN)
    snapshot = last(method, digits(), rounds=2)
    home = {f"bn.{n}" for n in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")}
    assert not home & snapshot.state.shared.keys()
    assert {n for n in method.net.names if method.parts.private(n)} == home
    a, b = (snapshot.personal_model(k) for k in (0, 1))
    assert not torch.equal(a["bn.running_mean"], b["bn.running_mean"])
    assert torch.equal(a["first.weight"], b["first.weight"])
    with pytest.raises(InputError, match="has none"):
        FedBN(LOSS)


def test_a_head_that_is_not_there_is_refused():
    for method in (FedPer, FedRep, FedBABU):
        with pytest.raises(InputError, match="no part 'top'; its parts are w"):
            method(LOSS, head=("top",))
