"""Clients side by side: as one after another, but for rounding; what cannot go so is refused by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedquilt.core.exchange import Context
from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.core.seed import Seed
from fedquilt.core.train import Descent, Memory, Train, Trained
from fedquilt.data import Dirichlet, Federation
from fedquilt.engines.lanes import Lanes
from fedquilt.engines.stacked import alike, descend, steps_of
from fedquilt.engines.workers import Workers
from fedquilt.errors import ExchangeError, InputError
from fedquilt.methods.fedavg import FedAvg
from fedquilt.models.registry import net
from fedquilt.pieces.objectives import cross_entropy, prox
from fedquilt.pieces.optimizers import SGD, AdamW
from fedquilt.records.record import tensors_in
from fedquilt.rounds.client import one_thread
from helpers.toy import Normed, give_back, last, site_of, squared_error, start_from

NET = net("mlp", (8,), 3, hidden=(6,))
SIZES = (7, 12, 5, 1)  # rows of four clients: batches of 4 are ragged in every way


def close(value: float) -> Any:
    return pytest.approx(value, rel=1e-5, abs=1e-7)


def near(a: Any, b: Any) -> bool:
    """Whether two dicts of tensors, or tuples of them, are equal but for rounding."""
    pairs = list(zip(tensors_in(a), tensors_in(b), strict=True))
    return bool(pairs) and all(torch.allclose(x, y, rtol=1e-4, atol=1e-6) for x, y in pairs)


def descents(train: Train, sizes: tuple[int, ...] = SIZES, memory: Memory | None = None) -> list[Descent]:
    """A descent for each size, from places of their own."""
    found = []
    for client, rows in enumerate(sizes):
        draw = Seed(client).torch()
        site = site_of(x=torch.randn(rows, 8, generator=draw), y=torch.randint(3, (rows,), generator=draw))
        context = Context(0, client, Seed(5).fold(client))
        job = start_from(train.objective.net.init(Seed(client)), None, site, context)
        found.append(Descent(train, replace(job, memory=memory), site, context))
    return found


def training(**settings: Any) -> Train:
    given = {"optimizer": SGD(0.1), "batch_size": 4, "epochs": 2, **settings}
    objective = given.pop("objective", Objective(NET, (cross_entropy,)))
    return Train(start=start_from, objective=objective, finish=give_back, **given)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"optimizer": SGD(0.1, momentum=0.9, weight_decay=0.01)},
        {"optimizer": AdamW(0.01)},
        {"clip": 0.3},
        {"steps": 5},
        {"only": lambda name: name.startswith("head")},
        {"objective": Objective(NET, (cross_entropy, prox(0.5)))},
    ],
    ids=["sgd", "momentum", "adamw", "clip", "steps", "only the head", "prox"],
)
def test_ragged_clients_side_by_side_as_one_after_another(settings: dict[str, Any]):
    train = training(**settings)
    asked = descents(train)
    with one_thread():
        apart, beside = [train.descend(d) for d in asked], descend(asked)
    for one, other in zip(apart, beside, strict=True):
        assert near(one.params, other.params)
        assert near(one.gradient, other.gradient)
        assert one.gradient.keys() == other.gradient.keys()
        assert (one.steps, one.lr) == (other.steps, other.lr)
        assert other.loss == close(one.loss)
        assert other.memory.steps == one.memory.steps
        assert not one.memory.slots or near(one.memory.slots, other.memory.slots)


def test_steps_are_counted_before_they_are_made():
    for lone in (True, False):
        for rows in range(0, 14):
            table = site_of(x=torch.zeros(rows, 1)).train
            for steps in (None, 3):
                made = list(table.batches(4, 2, Seed(0), steps, lone))
                assert table.steps(4, 2, steps, lone) == len(made)
    assert [steps_of(d) for d in descents(training())] == [4, 6, 4, 2]


def test_memory_goes_on():
    train = training(optimizer=SGD(0.1, momentum=0.9))
    first = [train.descend(d) for d in descents(train)]
    again = [
        replace(d, job=replace(d.job, params=t.params, memory=t.memory))
        for d, t in zip(descents(train), first, strict=True)
    ]
    assert len(alike(dict(enumerate(again)))) == 3  # 4 steps were made twice, 6 once and 2 once
    for group in alike(dict(enumerate(again))):
        for number, found in zip(group, descend([again[n] for n in group]), strict=True):
            assert near(found.params, train.descend(again[number]).params)


def test_only_what_is_alike_goes_together():
    train, other = training(), training()
    one, two = descents(train, (5, 5)), descents(other, (5, 5))
    assert alike({0: one[0], 1: two[0], 2: one[1], 3: two[1]}) == [[0, 2], [1, 3]]
    slower = replace(one[1], job=replace(one[1].job, rate=0.5))
    assert alike({0: one[0], 1: slower}) == [[0], [1]]


def forgetful(out: Any, params: Any, fixed: Any, batch: Any) -> Tensor:
    return out.logsumexp(1).mean()


def within(out: Any, params: Any, fixed: Any, batch: Any) -> Tensor:
    return out.sum() * 0 + float(out.sum())


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(nn.functional.dropout(x, 0.5, self.training))


def test_an_objective_that_forgets_weights_is_refused_only_where_rows_are_filled_up():
    train = training(objective=Objective(NET, (forgetful,)), epochs=1)
    with pytest.raises(InputError, match=r"batch\.weight"):
        descend(descents(train))
    even = descents(train, (8, 8))
    assert near(descend(even)[1].params, train.descend(even[1]).params)


@pytest.mark.parametrize(
    "objective", [Objective(NET, (within,)), Objective(Net(Dropped), (cross_entropy,))], ids=["numbers", "dropout"]
)
def test_what_vmap_cannot_do_is_refused(objective: Objective):
    with pytest.raises(InputError, match=r"several clients at once: .*'workers' or 'local'"):
        descend(descents(training(objective=objective)))


# The engine


@pytest.fixture(scope="module")
def federation() -> Federation:
    return Federation.from_source("digits", partition=Dirichlet(1.0), clients=7, seed=0)


def fedavg(**settings: Any) -> FedAvg:
    return FedAvg(objective=net("mlp", (1, 8, 8), 10, hidden=(16,)), optimizer=SGD(0.1), batch_size=16, **settings)


@pytest.mark.parametrize("width", [1, 3, 50])
def test_a_run_is_the_same_but_for_rounding(federation: Federation, width: int):
    alone, beside = last(fedavg(), federation), last(fedavg(), federation, engine=Lanes(width))
    assert near(alone.state.shared, beside.state.shared)
    assert beside.log.quarantined == []


def test_with_processes(federation: Federation):
    with Workers(2, width=2) as engine:
        beside = last(fedavg(), federation, engine=engine)
        assert engine.facts()["width"] == 2
        assert engine.facts()["engine"] == "lanes"
    assert near(last(fedavg(), federation).state.shared, beside.state.shared)


@pytest.mark.parametrize("processes", [1, 2])
def test_the_width_is_found_and_recorded(federation: Federation, processes: int):
    engine = Lanes() if processes == 1 else Workers(2, width=None)
    try:
        beside = last(fedavg(), federation, engine=engine)
        assert engine.facts()["width"] in (1, 2, 4)  # of seven clients
    finally:
        engine.close()
    assert near(last(fedavg(), federation).state.shared, beside.state.shared)


def test_batch_norm_is_refused_before_anything_is_trained(federation: Federation):
    method = FedAvg(objective=Net.of(Normed, 64, 10), optimizer=SGD(0.1))
    with pytest.raises(InputError, match=r"statistics of batches \(bn\).*GroupNorm"):
        last(method, federation, engine=Lanes(2))


@pytest.mark.parametrize("width", [2, None])
@pytest.mark.parametrize("processes", [1, 2])
def test_a_failure_names_the_stage_and_a_client(federation: Federation, processes: int, width: int | None):
    method = FedAvg(objective=Objective(net("mlp", (1, 8, 8), 10, hidden=(4,)), (squared_error,)), optimizer=SGD(0.1))
    engine: Any = Lanes(width) if processes == 1 else Workers(2, width=width)
    try:
        with pytest.raises(ExchangeError, match=r"stage 'objective', client \d, round 1"):
            last(method, federation, engine=engine)
    finally:
        engine.close()


def test_bad_widths():
    for engine in (Lanes, lambda width: Workers(1, width=width)):
        with pytest.raises(InputError, match=r"engine\.width must be at least 1, got 0"):
            engine(0)


def test_nothing_to_train_on():
    train = training()
    (found,) = descend(descents(train, (0,)))
    assert isinstance(found, Trained)
    assert (found.steps, found.loss, found.gradient) == (0, 0.0, {})
