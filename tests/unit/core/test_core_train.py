"""Local training: steps worked by hand, and equality with a bare PyTorch loop."""

from __future__ import annotations

import pytest
import torch
from torch import nn, tensor
from torch.func import functional_call

from fedquilt.core.exchange import Context
from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.core.params import nothing, under
from fedquilt.core.seed import Seed
from fedquilt.core.train import Job, Train
from fedquilt.errors import InputError, StageError
from fedquilt.pieces.objectives import cross_entropy, prox
from fedquilt.pieces.optimizers import SGD, Adam
from fedquilt.pieces.schedules import step_down
from helpers.toy import Normed, OneWeight, give_back, site_of, squared_error, start_from, trained, weight_itself

GRADIENT = Objective(Net(OneWeight), (weight_itself,))
ZERO = {"w": tensor(0.0)}
ROWS = site_of(x=torch.ones(10), y=torch.zeros(10))


def images(rows=36, seed=2):
    draw = torch.Generator().manual_seed(seed)
    return site_of(x=torch.randn(rows, 64, generator=draw), y=torch.arange(rows) % 10)


def test_prox_holds_the_model_near_its_start():
    """loss = w, start at 0, lr 1, mu 1, two steps.

    step 1: gradient = 1 + 1 * (0 - 0)   -> w = -1
    step 2: gradient = 1 + 1 * (-1 - 0)  -> w = -1       (without prox: -2)
    """
    assert trained(GRADIENT.plus(prox(1.0)), ZERO, ROWS, steps=2).params["w"] == -1.0
    assert trained(GRADIENT, ZERO, ROWS, steps=2).params["w"] == -2.0


def test_two_steps_on_a_squared_error():
    """loss = mean (w x - y)^2 / 2 with x = (1, 2), y = (1, 4): gradient = mean x (w x - y) = 2.5 w - 4.5, lr 0.2.

    w0 = 0 -> w1 = 0.9 -> w2 = 0.9 - 0.2 (2.25 - 4.5) = 1.35; loss 4.25, then (0.01 + 4.84) / 4 = 1.2125.
    """
    objective = Objective(Net(OneWeight), (squared_error,))
    got = trained(objective, ZERO, site_of(x=[1.0, 2.0], y=[1.0, 4.0]), lr=0.2, steps=2)
    assert float(got.params["w"]) == pytest.approx(1.35, abs=1e-6)
    assert float(got.gradient["w"]) == pytest.approx(-2.25, abs=1e-6)
    assert got.loss == pytest.approx((4.25 + 1.2125) / 2, abs=1e-6)
    assert (got.steps, got.lr) == (2, 0.2)


@pytest.mark.parametrize(
    ("settings", "steps"), [({"epochs": 1}, 3), ({"epochs": 2}, 6), ({"steps": 5}, 5), ({"steps": 2}, 2)]
)
def test_epochs_are_passes_and_steps_are_steps(settings, steps):
    """10 rows in batches of 4 are 3 steps a pass; each step moves w by -1."""
    got = trained(GRADIENT, ZERO, ROWS, batch_size=4, **settings)
    assert (got.steps, float(got.params["w"])) == (steps, -steps)


def test_no_rows_no_steps():
    got = trained(GRADIENT, ZERO, site_of(x=torch.ones(0), y=torch.zeros(0)), steps=3)
    assert (got.steps, got.loss, got.params["w"], got.gradient) == (0, 0.0, 0.0, {})


def test_clip_bounds_the_norm_over_all_tensors():
    """Gradients 3 and 4 have norm 5; clipped to 1 they are 0.6 and 0.8 (up to the 1e-6 in torch's own rule)."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(tensor(0.0)), nn.Parameter(tensor(0.0))

        def forward(self, x):
            return x * 0

    def loss(out, params, fixed, batch):
        return 3 * params["a"] + 4 * params["b"]

    start = {"a": tensor(0.0), "b": tensor(0.0)}
    got = trained(Objective(Net(Two), (loss,)), start, ROWS, clip=1.0).params
    assert (float(got["a"]), float(got["b"])) == pytest.approx((-0.6, -0.8), abs=1e-6)
    loose = trained(Objective(Net(Two), (loss,)), start, ROWS, clip=5.1).params
    assert (float(loose["a"]), float(loose["b"])) == (-3.0, -4.0)


def test_only_the_chosen_names_move():
    net = Net(Normed)
    params = net.init(Seed(0))
    got = trained(Objective(net, (cross_entropy,)), params, images(), lr=0.1, only=under("head"))
    moved = {n for n in net.trainable if not torch.equal(got.params[n], params[n])}
    assert moved == set(got.gradient) == {"head.weight", "head.bias"}


def test_training_nothing_is_refused_at_the_objective():
    with pytest.raises(StageError, match="objective"):
        trained(GRADIENT, ZERO, ROWS, only=nothing)


def test_schedule_and_rate_multiply_the_learning_rate():
    """lr 1, factor 0.1 from round 3 on, rate 0.5: one step of gradient 1 moves w by 0.05."""
    late = trained(GRADIENT, ZERO, ROWS, round=3, schedule=step_down((3,), 0.1))
    assert float(late.params["w"]) == pytest.approx(-0.1)
    assert trained(GRADIENT, ZERO, ROWS, round=2, schedule=step_down((3,), 0.1)).params["w"] == -1.0

    def start(download, client, site, context):
        return Job(params=download, rate=0.5)

    work = Train(start=start, objective=GRADIENT, finish=give_back, optimizer=SGD(1.0), schedule=step_down((3,), 0.1))
    _, upload = work(ZERO, None, ROWS, Context(3, 0, Seed(0)))
    assert float(upload["w"]) == pytest.approx(-0.05)


def test_a_job_may_choose_its_epochs():
    def start(download, client, site, context):
        return Job(params=download, epochs=3)

    work = Train(start=start, objective=GRADIENT, finish=give_back, optimizer=SGD(1.0), epochs=1)
    assert work(ZERO, None, ROWS, Context(0, 0, Seed(0)))[1]["w"] == -3.0


@pytest.mark.parametrize("build", [lambda: nn.Linear(64, 10), Normed], ids=["linear", "batchnorm"])
def test_training_is_a_bare_torch_loop_bit_for_bit(build):
    """Same batches, torch.optim.SGD with momentum on a plain module: weights and buffers are equal to the bit."""
    net, seed, site = Net(build), Seed(3), images()
    params = net.init(Seed(0))
    settings = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
    objective = Objective(net, (cross_entropy,))
    got = trained(objective, params, site, optimizer=SGD(**settings), batch_size=8, epochs=2, seed=3)
    module = build()
    module.load_state_dict(params)
    optimizer = torch.optim.SGD(module.parameters(), **settings)
    losses = []
    for batch in site.train.batches(8, 2, seed.fold("batches")):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(batch.x), batch.y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert all(torch.equal(t, got.params[n]) for n, t in module.state_dict().items())
    assert got.loss == pytest.approx(sum(losses) / len(losses), abs=1e-6)
    assert all(torch.equal(p.grad, got.gradient[n]) for n, p in module.named_parameters())


def test_batchnorm_buffers_are_updated_and_counted():
    """36 rows in batches of 12 for 2 epochs: 6 batches seen; the running mean has moved away from 0."""
    net = Net(Normed)
    params = net.init(Seed(0))
    got = trained(Objective(net, (cross_entropy,)), params, images(), lr=0.1, batch_size=12, epochs=2).params
    assert (int(params["bn.num_batches_tracked"]), int(got["bn.num_batches_tracked"])) == (0, 6)
    assert float(params["bn.running_mean"].abs().sum()) == 0.0 < float(got["bn.running_mean"].abs().sum())


def test_dropout_and_batches_follow_the_turn_s_seed_and_disturb_nothing():
    net = Net(lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 10)))
    params, objective = net.init(Seed(0)), Objective(net, (cross_entropy,))
    one = trained(objective, params, images(), lr=0.1, seed=1).params["1.weight"]
    torch.rand(5)
    before = torch.get_rng_state()
    assert torch.equal(trained(objective, params, images(), lr=0.1, seed=1).params["1.weight"], one)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(trained(objective, params, images(), lr=0.1, seed=2).params["1.weight"], one)


@pytest.mark.parametrize("optimizer", [SGD(0.1, momentum=0.9), Adam(0.01)], ids=["sgd", "adam"])
def test_memory_continues_where_an_earlier_update_stopped(optimizer):
    """Whole batches, so that no order matters: 3 steps, then 4 with the memory, are 7 steps."""
    net, site = Net.of(nn.Linear, 64, 10), images()
    objective, params = Objective(net, (cross_entropy,)), net.init(Seed(0))
    whole = trained(objective, params, site, optimizer=optimizer, steps=7)
    first = trained(objective, params, site, optimizer=optimizer, steps=3)
    frozen = [t.clone() for s in first.memory.slots for t in s]

    def go_on(memory):
        def start(download, client, site, context):
            return Job(params=download, memory=memory)

        work = Train(start=start, objective=objective, finish=give_back, optimizer=optimizer, steps=4, batch_size=1000)
        return work.run(first.params, None, site, Context(0, 0, Seed(0)))[3]

    second, afresh = go_on(first.memory), go_on(None)
    torch.testing.assert_close(second.params["weight"], whole.params["weight"], rtol=0, atol=1e-6)
    assert (second.memory.steps, afresh.memory.steps) == (7, 4)
    assert not torch.allclose(afresh.params["weight"], whole.params["weight"], atol=1e-4)
    assert all(map(torch.equal, frozen, [t for s in first.memory.slots for t in s]))


def test_training_changes_copies_only():
    net, site = Net(Normed), images()
    params = net.init(Seed(0))
    before = {n: t.clone() for n, t in params.items()}
    trained(Objective(net, (cross_entropy,)), params, site, lr=0.5, batch_size=8)
    assert all(torch.equal(t, before[n]) and not t.requires_grad for n, t in params.items())


def test_the_objective_runs_the_network_once_and_adds_its_terms():
    calls = []

    class Counting(nn.Linear):
        def forward(self, x):
            calls.append(len(x))
            return super().forward(x)

    net = Net.of(Counting, 64, 10)
    params = {n: t.requires_grad_() for n, t in net.init(Seed(0)).items()}
    batch = images().train.whole()
    zero = {n: torch.zeros_like(t) for n, t in params.items()}
    total = Objective(net, (cross_entropy,)).plus(prox(0.5))(params, {"start": zero}, batch)
    assert calls == [36]
    expected = nn.functional.cross_entropy(functional_call(nn.Linear(64, 10), params, batch.x), batch.y)
    expected = expected + 0.25 * sum(p.square().sum() for p in params.values())
    assert total.item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("bad", [{"epochs": 0}, {"batch_size": 0}, {"steps": 0}])
def test_settings_below_one_are_refused(bad):
    with pytest.raises(InputError, match=f"{next(iter(bad))} must be at least 1, got 0"):
        Train(start=start_from, objective=GRADIENT, finish=give_back, optimizer=SGD(), **bad)
