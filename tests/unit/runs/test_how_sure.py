"""Each score beside how sure it is: in the log, the report, the watch page and the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedquilt.config.config import load
from fedquilt.metrics.support import wilson
from fedquilt.studies.compare import compare
from fedquilt.terminal import console
from fedquilt.watch.board import Board
from helpers.command import SMALL, fedquilt, lines, small
from helpers.pages import panel

ENDS = ("accuracy_low", "accuracy_high")


@pytest.fixture(scope="module")
def top(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of one method and one seed."""
    recipe = small(tmp_path_factory.mktemp("sure"), SMALL + '[compare]\nmethods = ["fedavg"]\nseeds = [0]\n')
    return Path(compare(load(recipe))["folder"])


def chosen(top: Path) -> list[dict[str, Any]]:
    """Clients' samples at the chosen round."""
    rows = lines(top / "fedavg-seed0/metrics/clients.jsonl")
    at = lines(top / "fedavg-seed0/metrics/rounds.jsonl")
    best = max(at, key=lambda row: row["valid_accuracy"])["round"]
    return [r for r in rows if (r["round"], r["model"], r["split"]) == (best, "deployed", "test")]


def test_clients_rows_know_how_sure_they_are(top: Path) -> None:
    rows = chosen(top)
    assert len(rows) == 4
    for row in rows:
        low, high = wilson(round(row["accuracy"] * row["rows"]), row["rows"])
        assert [row[end] for end in ENDS] == pytest.approx([float(low), float(high)])
        assert row["accuracy_low"] < row["accuracy"] < row["accuracy_high"] or row["accuracy"] in (0, 1)
        assert 1 <= row["rarest"] <= row["rows"] / 2
        assert row["macro_f1_half_95"] > 0


def test_the_report_tells_how_sure_clients_scores_are(top: Path) -> None:
    found = panel(top / "report.html", "sureness")
    assert found["title"] == "Confidence intervals by client"
    (block,) = found["blocks"]
    columns = {c["key"]: c for c in block["columns"]}
    assert list(columns) == [
        "method",
        "client",
        "rows",
        "rarest",
        "accuracy",
        "accuracy_interval",
        "balanced_accuracy",
        "macro_f1",
    ]
    assert [columns["accuracy_interval"][end] for end in ("kind", "low", "high")] == ["range", *ENDS]
    assert columns["macro_f1"]["half"] == "macro_f1_half_95"
    shown = [{key: row[key] for key in ("client", "accuracy", *ENDS, "rarest")} for row in block["rows"]]
    expected = [
        {key: row[key] for key in ("accuracy", *ENDS, "rarest")} | {"client": str(row["client"])}
        for row in sorted(chosen(top), key=lambda row: row["accuracy"])
    ]
    assert shown == expected


def test_the_watch_page_tells_how_sure_scores_are(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    board = Board(top)
    board.look()
    told = board.told(0, next(iter(board.runs)))
    columns = {c["key"]: c for c in told["columns"]}
    assert [columns["accuracy_interval"][end] for end in ("low", "high")] == list(ENDS)
    assert columns["macro_f1"]["half"] == "macro_f1_half_95"
    for row in told["run"]["clients"]["rows"]:
        assert row["accuracy_low"] <= row["accuracy"] <= row["accuracy_high"]
        assert row["macro_f1_half_95"] > 0
    (line,) = told["runs"]
    last = lines(top / "fedavg-seed0/metrics/rounds.jsonl")[-1]
    assert line["accuracy_half"] == last["test_accuracy_rows_half_95"]
    names = {
        "test accuracy, worst 10 %": "accuracy_worst10",
        "test balanced accuracy": "balanced_accuracy",
        "test macro F1": "macro_f1",
    }
    expected = [
        (name, f"{100 * last[f'test_{key}']:.1f} ± {100 * last[f'test_{key}_rows_half_95']:.1f} %")
        for name, key in names.items()
    ]
    assert line["told"] == expected
    monkeypatch.setattr(console, "width", 120)
    said = fedquilt("watch", top, "--once").out
    assert f"{100 * last['test_accuracy']:.1f} ± {100 * last['test_accuracy_rows_half_95']:.1f}" in said
