"""One digest: on every engine, from Python and from the command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedquilt.config.config import load
from fedquilt.core.net import Net
from fedquilt.core.params import Parts, everything_but, under
from fedquilt.engines.auto import Auto
from fedquilt.engines.local import Local
from fedquilt.engines.workers import Workers
from fedquilt.methods.fedavg import FedAvg
from fedquilt.models.registry import make
from fedquilt.runs.runner import run
from helpers.command import fedquilt, lines, small, untimed
from helpers.toy import digits


def personalised() -> FedAvg:
    """FedAvg with private heads, and two of three clients in each round."""
    from fedquilt.core.exchange import fraction

    net = Net(make("mlp", (1, 8, 8), 10, hidden=(16,)))
    parts = Parts(shared=everything_but(under("head")), private=under("head"))
    return FedAvg(objective=net, parts=parts, batch_size=32, cohort=fraction(0.7))


class Hasty(Auto):
    """Auto that moves to workers after the first round."""

    def expect(self, seconds: float, left: int) -> None:
        """As if the round had taken an hour."""
        super().expect(3600.0, left)


def played(engine: Any, folder: Path | None = None) -> tuple[list[str], list[dict[str, Any]]]:
    """The digest and the numbers of every round."""
    snapshots = run(personalised(), digits(3), rounds=4, engine=engine, seed=3, folder=folder)
    found = [(s.digest(), s.metrics) for s in snapshots]
    return [d for d, _ in found], untimed([m for _, m in found])


def test_from_python(tmp_path: Path, one_worker: Workers, two_workers: Workers) -> None:
    expected = played(Local())
    assert len(set(expected[0])) == 4
    assert played(one_worker) == expected
    assert played(two_workers) == expected
    assert played(Auto()) == expected
    hasty = Hasty(2)
    assert played(hasty, tmp_path / "run") == expected
    assert hasty.facts()["engine"] == "workers"  # so it did move
    hasty.close()


def test_a_run_may_go_on_with_another_engine(tmp_path: Path, two_workers: Workers) -> None:
    expected = played(Local())[0]
    for number, (first, second) in enumerate([(Local(), two_workers), (two_workers, Local())]):
        steps = run(personalised(), digits(3), rounds=4, engine=first, seed=3, folder=tmp_path / str(number))
        assert [next(steps).digest() for _ in range(2)] == expected[:2]
        steps.close()  # type: ignore[attr-defined]
        assert played(second, tmp_path / str(number))[0] == expected[2:]


@pytest.mark.parametrize("method", ["method=fedavg", "method=local_only"])
def test_from_the_command(tmp_path: Path, method: str) -> None:
    recipe = small(tmp_path)
    asked = {
        "local": ["engine.kind=local"],
        "one": ["engine.kind=workers", "engine.processes=1"],
        "two": ["engine.kind=workers", "engine.processes=2"],
        "auto": ["engine.kind=auto"],
    }
    if method == "method=local_only":
        del asked["one"]  # starting processes takes time
    found: dict[str, Any] = {}
    for name, engine in asked.items():
        said = fedquilt("run", recipe, method, *engine, f"output.folder={tmp_path}/{name}", "--json")
        assert said.code == 0, said
        found[name] = said.json
    assert {f["engine"]["engine"] for f in found.values()} == {"local", "workers"}
    assert len({f["digest"] for f in found.values()}) == 1
    assert len({Path(f["folder"]).name for f in found.values()}) == 1
    rows = [untimed(lines(Path(f["folder"]) / "metrics" / "rounds.jsonl")) for f in found.values()]
    assert all(r == rows[0] for r in rows)


def test_python_and_the_command_agree(tmp_path: Path) -> None:
    from fedquilt.runs.build import federation_of, method_of

    recipe = small(tmp_path)
    config = load(recipe)
    data = federation_of(config)
    last = list(run(method_of(config, data), data, rounds=config.rounds, engine="local", seed=config.seed))[-1]
    assert fedquilt("run", recipe, "--json").json["digest"] == last.digest()
