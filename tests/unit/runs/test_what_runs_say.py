"""Sentences at the end of a run: true of the numbers beside them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedquilt import terminal
from fedquilt.errors import InputError
from fedquilt.results.clusters import load_clusters
from fedquilt.results.majority import at_majority
from fedquilt.show import show
from fedquilt.storage.finished import chosen, modes_line, validated
from helpers.command import SMALL, fedquilt, small
from helpers.pages import panel

FACTS = {"majority_class": 0.73, "majority_half_95": 0.16, "common_class": 0.4, "common_half_95": 0.1, "test_rows": 100}


@pytest.mark.parametrize(
    ("accuracy", "said"),
    [
        (0.82, "82.0 % is not clearly above the majority class: predicting each client's majority class"),
        (0.72, "72.0 % is not above the majority class: predicting each client's majority class"),
        (0.45, "45.0 % is not clearly above the majority class: predicting the majority class of all"),
        (0.40, "40.0 % is not above the majority class: predicting the majority class of all"),
    ],
)
def test_a_higher_number_is_never_said_to_be_not_above_a_lower_one(accuracy: float, said: str):
    doubt = at_majority([{**FACTS, "best": {"test_accuracy": accuracy}}])
    assert doubt is not None
    assert said in doubt
    if accuracy < 0.5:
        assert ("may have learned nothing" in doubt) == (accuracy > 0.4)


def test_the_interval_of_the_common_test_set_is_no_mode():
    line = modes_line(
        {
            "served": "universal",
            "common_test_accuracy": 0.5,
            "common_test_accuracy_rows_half_95": 0.04,
            "common_test_accuracy_universal": 0.5,
            "common_test_accuracy_plain": 0.2,
            "global_test_accuracy_std": 0.1,
            "global_test_accuracy_worst10_rows_half_95": 0.1,
        }
    )
    assert line is not None
    assert "on the common test set universal 50.0, plain 20.0; there are no validation samples" in line


def _said(monkeypatch: pytest.MonkeyPatch, folder: Path, best: dict[str, Any]) -> str:
    out = io.StringIO()
    for module in (show, terminal):
        monkeypatch.setattr(module, "console", Console(file=out, width=200))
    result = {
        "best_round": 2,
        "rounds": 3,
        "best": best,
        "last": best,
        "bytes_up": 0,
        "bytes_down": 0,
        "seconds": 1.0,
        "stopped_early": False,
        "quarantined": 0,
        "digest": "0",
    }
    show.result_table(folder, result)
    return out.getvalue()


def test_without_validation_rows_no_round_is_chosen_on_validation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    scored = {"test_accuracy": 0.5}
    assert "round 2 (no validation samples)" in _said(monkeypatch, tmp_path, scored)
    for name in ("valid_accuracy", "common_valid_accuracy"):  # clients' samples, or the server's
        assert "round 2 (best on validation)" in _said(monkeypatch, tmp_path, {**scored, name: 0.5})
        assert validated({"best": {name: 0.5}})
    assert not validated({"best": {"valid_loss": 0.5}})
    assert validated({"best": {"valid_loss": 0.5}, "chosen_by": "loss"})
    assert not validated({})
    assert chosen(False) == "last evaluated round (no validation samples)"


def test_a_folder_that_is_not_there_is_not_a_run_without_clusters(tmp_path: Path):
    with pytest.raises(InputError, match="There is no folder"):
        load_clusters(tmp_path / "nowhere")
    with pytest.raises(InputError, match="has no clusters"):
        load_clusters(tmp_path)


def test_a_comparison_tells_the_modes_of_methods_that_have_them(tmp_path: Path):
    """Under the table and in the report, as the end of a run does; over seeds, means."""
    text = SMALL + '[compare]\nmethods = ["fedavg", "fedloge"]\nseeds = [0, 1]\n'
    recipe = small(tmp_path, text.replace('kind = "logistic"', 'kind = "mlp"'))
    said = fedquilt("compare", recipe, "data.common_test=0.3")
    assert said.code == 0, said.err
    (top,) = (tmp_path / "runs").glob("compare-*")
    lines = [line.split() for line in said.out.split("\n")]
    best = [json.loads((top / f"fedloge-seed{seed}/result.json").read_text())["best"] for seed in (0, 1)]
    names = [n for n in best[0] if n.startswith("common_test_accuracy_") and not n.endswith("half_95")]
    assert len(names) >= 2
    for name in names:
        mode, mean = name.removeprefix("common_test_accuracy_"), (best[0][name] + best[1][name]) / 2
        assert [f"{100 * mean:.1f}" in line for line in lines if line[:2] == ["FedLoGe,", mode]] == [True]
    assert "FedLoGe, global model: " in said.out
    assert "FedAvg, global model" not in said.out
    (told,) = [
        b["paragraphs"]
        for b in panel(top / "report.html", "headline")["blocks"]
        if b["kind"] == "text" and b["paragraphs"][0].startswith("FedLoGe: global model")
    ]
    assert names[0].removeprefix("common_test_accuracy_") in told[0]
