"""Validation rows at the server: taken out of everybody's data, scored by the server, and heard by methods."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from fedquilt.analysis.merging import greedy
from fedquilt.config.config import Config, parse
from fedquilt.config.data import federation_of
from fedquilt.core.seed import Seed
from fedquilt.engines.local import Local
from fedquilt.errors import InputError
from fedquilt.metrics.classify import classify
from fedquilt.runs.build import method_of
from fedquilt.runs.play import Run

DATA = {"clients": 3, "limit": 300, "valid": 0.0, "common_valid": 0.2}
STITCH = {"kind": "localize_stitch", "k_init": 0.9, "mu": 1.0}


def recipe(**changes: Any) -> Config:
    return parse({"rounds": 3, "engine": {"kind": "local"}, "method": STITCH, "data": DATA, **changes})


def rows_of(table: Any) -> list[tuple[float, ...]]:
    return [tuple(row.flatten().tolist()) for row in table.whole().x]


@dataclass(frozen=True)
class Round:
    metrics: dict[str, Any]
    accuracy: float
    model: Any


def played(config: Config) -> tuple[Run, list[Round]]:
    data = federation_of(config)
    run = Run(method_of(config, data), data, rounds=config.rounds, engine=Local(), seed=config.seed)
    return run, [Round(s.metrics, s.state.accuracy, s.global_model()) for s in run]


def test_the_servers_rows_are_a_part_of_each_class_and_nobody_elses() -> None:
    data, whole = federation_of(recipe()), federation_of(recipe(data={**DATA, "common_valid": 0.0}))
    held = data.server_valid
    assert held is not None
    everything = torch.bincount(whole.columns["y"])
    assert torch.bincount(held.whole().y).tolist() == [int(0.2 * n) for n in everything]
    others = [row for c in data.ids for t in (data.site(c, 0).train, data.evaluation(c, "test")) for row in rows_of(t)]
    assert len(others) + len(rows_of(held)) == 300
    assert sorted(others + rows_of(held)) == sorted(
        row for c in whole.ids for t in (whole.site(c, 0).train, whole.evaluation(c, "test")) for row in rows_of(t)
    )
    assert data.summary()["server_valid"] == len(rows_of(held))
    assert data.fingerprint() != whole.fingerprint()


def test_the_density_follows_the_merged_models_accuracy_on_them() -> None:
    run, rounds = played(recipe())
    for one in rounds:
        score = classify(run.method.predict, one.model, run.federation.server_valid)
        assert one.metrics["common_valid_accuracy"] == pytest.approx(score.accuracy)
        assert "valid_accuracy" not in one.metrics
        assert one.accuracy == pytest.approx(score.accuracy)
    found = [one.metrics["common_valid_accuracy"] for one in rounds]
    assert len(set(found)) > 1
    assert run.progress["best_round"] == 1 + found.index(max(found))
    state = run.method.observe(run.method.init_server(Seed(0)), {"common_valid_accuracy": 0.75})
    assert run.method.exchanges()[0].down(state, 0).keep == pytest.approx(0.25)  # mu is 1


def test_they_come_before_the_clients_rows() -> None:
    _, rounds = played(recipe(data={**DATA, "valid": 0.2}, rounds=2))
    metrics = rounds[-1].metrics
    assert rounds[-1].accuracy == metrics["common_valid_accuracy"] != metrics["global_valid_accuracy_pooled"]
    without = played(recipe(data={**DATA, "valid": 0.2, "common_valid": 0.0}, rounds=2))[1][-1]
    assert without.accuracy == without.metrics["global_valid_accuracy_pooled"]


def test_a_greedy_soup_is_scored_on_them(tmp_path: Path) -> None:
    path = tmp_path / "soup.toml"
    path.write_text("[data]\nclients = 3\nlimit = 300\nvalid = 0.0\ncommon_valid = 0.2\n")
    _, rounds = played(recipe())
    bad, good = (one.model for one in (rounds[0], rounds[-1]))
    chosen_ones, score = greedy(path, [bad, good])  # type: ignore[list-item]
    assert 1 in chosen_ones
    assert score >= rounds[-1].metrics["common_valid_accuracy"]


def test_what_cannot_be() -> None:
    stream = {"kind": "by_class", "groups": [[0, 1], [2, 3]]}
    with pytest.raises(InputError, match="a stream has no validation samples at the server"):
        federation_of(recipe(stream=stream))
    with pytest.raises(InputError, match=r"common_valid = 0\.001 is less than one row"):
        federation_of(recipe(data={**DATA, "common_valid": 0.001}))
