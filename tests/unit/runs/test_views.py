"""Runs as they lie in folders: scores by client and round, states in words, folders that are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedquilt.errors import InputError
from fedquilt.results.views import RunView, scored_in, views_in
from helpers.command import fedquilt, lines, small
from helpers.made_runs import made_comparison


def row(round: int, client: Any, accuracy: float, model: str = "deployed", split: str = "test") -> str:
    content = {"round": round, "client": client, "model": model, "split": split, "accuracy": accuracy, "loss": 1.0}
    return json.dumps(content) + "\n"


def test_scores_are_of_test_rows_and_of_the_model_that_clients_use() -> None:
    found = scored_in(
        [
            row(1, "a", 0.1),
            row(1, "a", 0.9, "global"),
            row(1, "a", 0.8, split="valid"),
            row(1, ["b", 2], 0.2),
            row(3, "a", 0.3),
            row(3, '"test"', 0.4, "global"),
            row(4, "a", 0.5)[:-1],
        ]
    )
    assert (found.clients, found.rounds) == (("a", ("b", 2)), (1, 3))  # an unfinished last line does not count
    assert found.at(1) == {"a": 0.1, ("b", 2): 0.2}
    assert found.last() == {"a": 0.3}
    assert found.at(2) == {}
    assert np.isnan(found.values["loss"][1, 1])
    assert scored_in([]).last() == {}


def test_states_in_words(tmp_path: Path) -> None:
    top = made_comparison(tmp_path / "c", clients=3, rounds=4, seeds=1, unfinished=["ditto"])
    views = {view.label: view for view in views_in(top)}
    assert views["fedavg"].state == "finished, 4 rounds"
    assert views["ditto"].state == "unfinished: 2 of 4 rounds"
    assert views["fedavg"].chosen == views["fedavg"].scored.at(views["fedavg"].result["best_round"])
    assert RunView(top / "nobody", "x", 0).state == "not begun"
    (top / "comparison.json").unlink()  # of an older version
    assert {v.label for v in views_in(top)} == set(views)


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="neither the folder of a run"):
        views_in(tmp_path)


def test_made_files_have_the_format_of_real_ones(tmp_path: Path) -> None:
    """What tests make up must be what runs write."""
    said = fedquilt("run", small(tmp_path), "--json")
    real = Path(said.json["folder"])
    top = made_comparison(tmp_path / "made", clients=3, rounds=2, seeds=1)
    made = top / "fedavg-seed0"
    for name in ("rounds", "clients", "client_updates", "traffic"):
        ours, theirs = (lines(folder / f"metrics/{name}.jsonl")[0] for folder in (made, real))
        assert set(ours) <= set(theirs), name
        assert {k: type(v) for k, v in ours.items()} == {k: type(theirs[k]) for k in ours}, name
    for name in ("result.json", "federation.json"):
        ours, theirs = (json.loads((p / name).read_text()) for p in (made if name[0] == "r" else top, real))
        assert set(ours) == set(theirs), name
    assert (real / "report.html").stat().st_size > 500_000
