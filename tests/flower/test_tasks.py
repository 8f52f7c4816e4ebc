"""Tasks on Flower's own messages, in this process: the same numbers as on the local engine, also for one's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from fedquilt import FedAvg, Federation, Net, models
from fedquilt.core.seed import Seed
from fedquilt.engines.local import Local
from fedquilt.errors import InputError
from fedquilt.metrics.evaluation import summarise
from fedquilt.metrics.scoring import score_of
from fedquilt.metrics.table import use_task
from fedquilt.rounds.rounds import Rounds
from fedquilt.tasks import MultiLabel, Regression, Task
from helpers.nodes import flower, grid
from helpers.own_tasks import Upper


def federation(task: Task) -> Federation:
    """Four clients with unlike numbers of rows."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 5)).astype(np.float32)
    y = (x[:, :2] > 0).astype(int) if isinstance(task, MultiLabel) else 50 + 20 * x[:, 0]
    cuts = np.split(np.arange(90), [15, 40, 62])
    clients: dict[Any, Any] = {f"c{i}": (x[rows], y[rows]) for i, rows in enumerate(cuts)}
    return Federation.from_clients(clients, test=0.3, task=task, standardise=None)


@pytest.mark.parametrize("task", [Regression(loss="huber"), MultiLabel(), Upper(share=0.8)], ids=lambda t: t.name)
def test_flower_equals_local(task: Task) -> None:
    data = federation(task)
    net = Net.of(models.MLP, features=5, classes=data.classes, hidden=(8,)).for_task(data.task)
    method = FedAvg(net, batch_size=8)
    engine = flower(grid(data, 2))
    there = Rounds(method, engine.gather(2), engine, Seed(3), score=score_of(method))
    here = Rounds(method, data, Local(), Seed(3), score=score_of(method))
    for _ in range(2):
        logs = [rounds.play() for rounds in (here, there)]
        assert not logs[1].quarantined
    assert here.digest() == there.digest()
    scores = [rounds.evaluate(list(data.evaluated)) for rounds in (here, there)]
    use_task(net.task)  # type: ignore[arg-type]
    assert summarise(scores[0]) == summarise(scores[1])
    assert f"test_{task.main}_pooled" in summarise(scores[0])


def test_scores_that_nobody_can_have_are_refused() -> None:
    data = federation(Regression())
    net = Net.of(models.MLP, features=5, classes=1).for_task(data.task)
    table = data.evaluation("c0", "test")
    assert table is not None
    made = score_of(FedAvg(net))(FedAvg(net).predict, net.init(Seed(0)), table)
    made.check()
    for change in ({"rows": 0}, {"loss_sum": 1}, {"sums": {"regression": made.sums["regression"] * float("nan")}}):
        odd = type(made)(**{**vars(made), **change})
        with pytest.raises(InputError, match="malformed scores"):
            odd.check()
