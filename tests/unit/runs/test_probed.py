"""Methods that learn without labels are compared by probes of their features."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from helpers.command import fedquilt

ROOT = Path(__file__).parents[3]
SHORT = ("rounds=3", "stream.rounds_per_task=1", "data.limit=600", "train.epochs=1", "engine.kind=local")


def test_a_comparison_of_methods_without_labels(tmp_path: Path) -> None:
    """The table has what 'fedquilt continual' says of each run, and half-intervals over the two seeds."""
    methods = 'compare.methods=["fedmae", {kind = "podfcssv", lambda_proto = 0.1, center = true}]'
    recipe = ROOT / "recipes/podfcssv/smoke.toml"
    given = (recipe, *SHORT, methods, "compare.seeds=[0,1]", f"output.folder={tmp_path}")
    said = fedquilt("compare", *given)
    assert said.code == 0, said.err
    assert "linear probe, all tasks" in said.out
    assert "untrained" in said.out
    [top] = tmp_path.glob("compare-*")
    summary = json.loads((top / "summary.json").read_text())
    rows = {row["method"]: row for row in summary["rows"]}
    for method, row in rows.items():
        found = [json.loads((top / f"{method}-seed{s}/metrics/continual.json").read_text()) for s in (0, 1)]
        low, high = sorted(one["measures"]["probe_all"]["average"] for one in found)
        assert row["probe_all_average"] == pytest.approx((low + high) / 2)
        # t(0.975, 1) = 12.706, s / sqrt 2 = (high - low) / 2
        assert row["probe_all_average_half_95"] == pytest.approx(12.706 * (high - low) / 2, rel=1e-3)
    assert summary["winner"]["method"] in rows
    assert 0 < summary["untrained"] < 1
    assert "Forgetting" in (top / "report.html").read_text()
    table = list(csv.DictReader((top / "table.csv").read_text().splitlines()))
    assert [row["method"] for row in table] == list(rows)
    assert float(table[1]["probe_all_average"]) == pytest.approx(rows["podfcssv"]["probe_all_average"])
    again = fedquilt("compare", *given, "--json")
    assert again.json["rows"] == summary["rows"]


def test_methods_with_and_without_labels_are_not_compared(tmp_path: Path) -> None:
    recipe = ROOT / "recipes/podfcssv/smoke.toml"
    said = fedquilt("compare", recipe, 'compare.methods=["fedavg", "podfcssv"]', f"output.folder={tmp_path}")
    assert said.code == 2
    assert not list(tmp_path.glob("*/*"))


def test_without_a_stream_there_are_no_tasks_to_compare_by(tmp_path: Path) -> None:
    settings = 'rounds = 1\n[data]\nclients = 2\n[model]\nkind = "mae"\npatch = 2\nwidth = 16\ndepth = 1\nheads = 2\n'
    (tmp_path / "still.toml").write_text(settings + '[compare]\nmethods = ["fedmae", "podfcssv"]\n')
    said = fedquilt("compare", tmp_path / "still.toml", f"output.folder={tmp_path / 'runs'}")
    assert said.code == 2
    assert "Give the recipe a [stream]" in said.err
    assert not (tmp_path / "runs").exists()


def test_a_sweep_has_no_score_to_choose_by(tmp_path: Path) -> None:
    recipe = ROOT / "recipes/podfcssv/smoke.toml"
    said = fedquilt("sweep", recipe, "--set", "method.lambda_proto=0.1,1", f"output.folder={tmp_path}")
    assert said.code == 2
    assert "no accuracy to select by" in said.err
