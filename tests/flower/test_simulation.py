"""Flower's simulation runtime on Ray: the same numbers as the local engine, and failures that are told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")
pytest.importorskip("ray")

from conformance.cases import CASES, TOY
from fedquilt.config.config import load
from fedquilt.core.seed import Seed
from fedquilt.engines.flower.simulation import FlowerSimulation
from fedquilt.engines.local import Local
from fedquilt.errors import ExchangeError, InputError, WorkerError
from fedquilt.metrics.classify import classify
from fedquilt.metrics.scoring import score_of
from fedquilt.rounds.rounds import Rounds
from fedquilt.runs.build import engine_of, federation_of, method_of, run_of
from fedquilt.runs.runner import run
from fedquilt.watch.board import Board
from helpers.command import small
from helpers.sabotage import Deadly, Failing
from helpers.toy import digits, fedavg, last, points

pytestmark = [
    pytest.mark.flower,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning"),
]
PLANTED = points(10, 20, 30)  # client 1 is known by its 20 rows
FEDAVG = CASES[0].method
SOME = [case for case in CASES if str(case) in ("fedavg", "scaffold", "ditto", "fedbn", "ifca", "hgls", "centralised")]


@pytest.fixture(scope="module")
def simulation() -> Iterator[FlowerSimulation]:
    """Two actors and three nodes."""
    with FlowerSimulation(nodes=3, processes=2) as engine:
        yield engine


def played(engine: Any, method: Any, federation: Any, rounds: int = 2, score: Any = classify) -> Rounds:
    source = federation.pooled() if getattr(method, "pools_data", False) else federation
    made = Rounds(method, source, engine, Seed(3), score=score)
    for _ in range(rounds):
        made.play()
    return made


def test_methods_of_every_kind_are_among_the_cases() -> None:
    assert {"fedavg", "scaffold", "centralised"} <= {str(case) for case in SOME}


@pytest.mark.parametrize("case", SOME, ids=str)
def test_simulation_equals_local(case: Any, simulation: FlowerSimulation) -> None:
    here, there = (played(engine, case.method, case.federation) for engine in (Local(), simulation))
    assert here.digest() == there.digest()
    clients = list(here.source.evaluated)
    assert repr(here.evaluate(clients)) == repr(there.evaluate(clients))


def test_code_of_ones_own_reaches_the_actors(simulation: FlowerSimulation) -> None:
    config = load(Path(__file__).parents[2] / "examples" / "own.toml")
    data = federation_of(config)
    method = method_of(config, data)
    here, there = (played(engine, method, data, score=score_of(method)) for engine in (Local(), simulation))
    assert here.digest() == there.digest()
    found = there.evaluate(list(data.evaluated))
    assert all("auroc" in scores["deployed"]["test"].sums for scores in found.values())
    assert repr(found) == repr(here.evaluate(list(data.evaluated)))


def test_other_data_on_the_same_actors(simulation: FlowerSimulation) -> None:
    other = digits(clients=7)
    here, there = (played(engine, FEDAVG, other) for engine in (Local(), simulation))
    assert here.digest() == there.digest()
    assert simulation.facts()["nodes"] == 3


def test_a_failing_method_is_told_with_its_trace(simulation: FlowerSimulation) -> None:
    method = Failing(base=fedavg(), stage="finish", client=1, rows=20)
    with pytest.raises(ExchangeError, match="stage 'finish', client 1, round 1: KeyError: 'boom'"):
        played(simulation, method, PLANTED)


@pytest.mark.slow  # the runtime is started anew, as in the next two
def test_an_actor_that_dies_once_changes_nothing(simulation: FlowerSimulation, tmp_path: Path) -> None:
    method = Deadly(base=FEDAVG, client=TOY.ids[0], marker=str(tmp_path / "died"))
    there = played(simulation, method, TOY)
    assert (tmp_path / "died").exists()
    assert there.digest() == played(Local(), method, TOY).digest()


@pytest.mark.slow
def test_only_the_client_that_always_kills_its_actor_is_left_out(simulation: FlowerSimulation) -> None:
    rounds = Rounds(Deadly(base=FEDAVG, client=TOY.ids[0]), TOY, simulation, Seed(3), score=classify)
    (gone,) = rounds.play().quarantined
    assert gone.client == TOY.ids[0]
    assert "its actor died twice" in gone.reason


def test_a_recipe_is_simulated(simulation: FlowerSimulation, tmp_path: Path) -> None:
    config = load(small(tmp_path), ["engine.kind=flower-simulation", "engine.nodes=2", "method.kind=ditto"])
    named = engine_of(config)
    assert (named.name, named.wanted) == ("flower-simulation", 2)
    digests = []
    for engine in (simulation, Local()):
        *_, end = run_of(config, engine, tmp_path / engine.name)
        digests.append(end.digest())
    assert digests[0] == digests[1]
    assert json.loads((tmp_path / simulation.name / "result.json").read_text())["engine"]["nodes"] == 3
    seen = [Board(tmp_path / engine).lines()[0] for engine in (simulation.name, "local")]
    assert {(line["state"], line["accuracy"], line["up"]) for line in seen} == {
        ("done", seen[0]["accuracy"], seen[0]["up"])
    }
    assert json.loads((tmp_path / simulation.name / "now.json").read_text())["of"] == 4


@pytest.mark.slow
def test_a_runtime_that_ended_is_noticed_and_the_next_run_starts_another(simulation: FlowerSimulation) -> None:
    rounds = Rounds(FEDAVG, TOY, simulation, Seed(3), score=classify)
    simulation._runtime._over.set()
    simulation._runtime._thread.join(60)
    with pytest.raises(WorkerError, match="simulation ended"):
        rounds.play()
    assert played(simulation, FEDAVG, TOY, 1).digest() == played(Local(), FEDAVG, TOY, 1).digest()


def test_a_run_goes_on_where_it_stopped(simulation: FlowerSimulation, tmp_path: Path) -> None:
    """Clients' states are in the run's folder, so another simulation, or another engine, finds them."""
    method = next(case.method for case in CASES if str(case) == "ditto")
    for snapshot in run(method, TOY, rounds=3, engine=simulation, folder=tmp_path / "run", seed=3):
        if snapshot.round == 2:
            break
    (rest,) = run(method, TOY, rounds=3, engine=simulation, folder=tmp_path / "run", seed=3)
    assert rest.digest() == last(method, TOY, rounds=3, seed=3).digest()


def test_one_simulation_at_a_time(simulation: FlowerSimulation) -> None:
    with pytest.raises(InputError, match="one simulation at a time"), FlowerSimulation(processes=1) as second:
        played(second, FEDAVG, TOY)
    assert played(simulation, FEDAVG, TOY, 1).done == 1


def test_what_a_simulation_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="at least 1 of nodes, got 0"):
        FlowerSimulation(nodes=0)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
    with pytest.raises(InputError, match=r"Leave engine\.processes out"):
        FlowerSimulation(processes=2)
    assert json.dumps(FlowerSimulation().facts())
