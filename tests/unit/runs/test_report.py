"""The report as a file: what is in it, what cannot be in it, and what the command says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from fedquilt.config.config import flat
from fedquilt.report import write_report
from fedquilt.report.blocks import numbers
from fedquilt.report.gather import Gathered
from fedquilt.report.page import embedded
from fedquilt.report.panels.clients import thinned
from helpers.command import fedquilt
from helpers.made_runs import METHODS, made_comparison
from helpers.pages import content, panel


@pytest.fixture(scope="module")
def top(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = made_comparison(tmp_path_factory.mktemp("report") / "made", clients=12, rounds=6, seeds=2)
    write_report(folder)
    return folder


def test_the_file_names_nothing_outside_itself(top: Path) -> None:
    text = (top / "report.html").read_text()
    assert "default-src 'none'" in text
    assert not re.search(r"<(script|img|link|iframe)[^>]+(src|href)=[\"'](?!data:)", text)
    assert not re.search(r"@import|url\(\s*[\"']?https?:", text)
    assert write_report(top, top / "again.html").read_bytes() == (top / "report.html").read_bytes()


def test_the_table_has_its_frame_and_its_winner(top: Path) -> None:
    rows = {r["method"]: r for r in panel(top / "report.html", "comparison")["blocks"][0]["rows"]}
    assert list(rows)[:3] == ["majority class", "Local only", "Centralised"]
    assert {n for n, r in rows.items() if r.get("best")} == {"Ditto"}
    assert {n for n, r in rows.items() if r.get("frame")} == {"majority class", "Local only", "Centralised"}
    found = [json.loads((top / f"ditto-seed{s}/result.json").read_text())["best"]["test_accuracy"] for s in (0, 1)]
    assert rows["Ditto"]["accuracy"] == pytest.approx(np.mean(found))
    assert rows["Ditto"]["best_test_round_accuracy"] >= rows["Ditto"]["accuracy"]


def test_the_headline_the_cards_and_the_tests_say_the_same(tmp_path: Path) -> None:
    """fedrep is made as good as ditto: both are best, nothing else is, and no column says otherwise."""
    folder = made_comparison(tmp_path / "made", clients=30, rounds=3, seeds=3)
    for seed in range(3):
        for name in ("metrics/rounds.jsonl", "metrics/clients.jsonl", "result.json"):
            text = (folder / f"ditto-seed{(seed + 1) % 3}" / name).read_text()
            (folder / f"fedrep-seed{seed}" / name).write_text(text)
    write_report(folder)
    lead = panel(folder / "report.html", "headline")["blocks"]
    tied = {"Ditto", "FedRep"}
    assert " not significantly different from " in lead[0]["paragraphs"][1]
    label, value, _ = lead[1]["items"][0]
    assert (label, set(value.split(", "))) == ("best 2 methods", tied)
    rows = panel(folder / "report.html", "comparison")["blocks"][0]["rows"]
    assert {r["method"] for r in rows if r.get("best")} == tied
    shown, folded = panel(folder / "report.html", "tests")["blocks"]
    verdicts = {r["method"]: r["verdict"] for r in shown["rows"]}
    assert {n for n, v in verdicts.items() if v == "not significant"} == tied - {value.split(", ")[0]}
    assert set(verdicts.values()) == {"not significant", "significantly lower"}
    assert [c["key"] for c in shown["columns"] if c["kind"] == "p"] == ["p"]  # one test beside the verdict
    assert "not used for the verdict" in next(c["help"] for c in folded["columns"] if c["key"] == "seeds_t")


def test_a_frame_that_was_not_run_is_named(tmp_path: Path) -> None:
    folder = made_comparison(tmp_path / "made", clients=4, rounds=3, seeds=1)
    plan = json.loads((folder / "comparison.json").read_text())
    plan["cells"] = [c for c in plan["cells"] if c["label"] in ("fedavg", "ditto")]
    (folder / "comparison.json").write_text(json.dumps(plan))
    rows = panel(write_report(folder), "comparison")["blocks"][0]["rows"]
    assert [r["method"] for r in rows][1:3] == ["Local only (not run)", "Centralised (not run)"]
    lead = panel(folder / "report.html", "headline")["blocks"][0]["paragraphs"]
    assert "One seed is not enough to rank methods" in lead[1]


def test_text_from_data_cannot_leave_its_element(tmp_path: Path) -> None:
    bad = "</script><script>alert(1)</script>"
    folder = made_comparison(tmp_path / "made", clients=3, rounds=2, seeds=1, names=[bad, "b", "c"], name=bad)
    text = write_report(folder).read_text()
    assert bad not in text
    assert "<title>&lt;/script&gt;" in text
    assert content(folder / "report.html")["title"] == bad
    assert "<" not in embedded({"x": "<&>\u2028"})
    assert json.loads(embedded({"x": "<&>\u2028"})) == {"x": "<&>\u2028"}


def test_damaged_and_missing_files_do_not_hide_the_rest(tmp_path: Path) -> None:
    folder = made_comparison(tmp_path / "made", clients=4, rounds=4, seeds=2, unfinished=["fedavg"])
    (folder / "ditto-seed0" / "result.json").write_text("{")
    (folder / "fedrep-seed0" / "metrics" / "traffic.jsonl").unlink()
    (folder / "federation.json").unlink()
    found = Gathered.of(folder)
    assert {v.label for v in found.complete} == set(METHODS) - {"fedavg", "ditto"}
    write_report(folder)
    keys = {p["key"] for p in content(folder / "report.html")["panels"]}
    assert {"headline", "comparison", "curves", "heat", "messages", "runs"} <= keys
    assert "federation" not in keys


def test_nothing_finished_is_said(tmp_path: Path) -> None:
    folder = made_comparison(tmp_path / "made", clients=3, rounds=4, seeds=1, unfinished=METHODS)
    lead = panel(write_report(folder), "headline")["blocks"][0]["paragraphs"]
    assert lead == ["No run is finished and scored yet, so there is nothing to compare."]


def test_large_heat_maps_are_thinned_and_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedquilt.report.panels.clients.MOST_CELLS", 600)
    folder = made_comparison(tmp_path / "made", clients=20, rounds=20, seeds=1)
    heat = panel(write_report(folder), "heat")
    assert "subsampled" in heat["note"]
    cells = sum(len(v["values"]) * len(v["values"][0]) for v in heat["blocks"][0]["variants"])
    assert 300 < cells <= 700
    assert (heat["blocks"][0]["variants"][0]["x"][0], heat["blocks"][0]["variants"][0]["x"][-1]) == ("1", "20")


def test_the_command_writes_where_it_is_told_and_refuses_other_folders(top: Path, tmp_path: Path) -> None:
    said = fedquilt("report", top, "--to", tmp_path / "x.html", "--json")
    assert said.json == {
        "report": str(tmp_path / "x.html"),
        "missing": [],
        "bytes": (tmp_path / "x.html").stat().st_size,
    }
    said = fedquilt("report", tmp_path)
    assert said.code == 2
    assert "neither the folder of a run" in said.err


@pytest.mark.parametrize("scores", ["tails/tails.json", "modes/scores.json"])
def test_panels_of_files_that_other_commands_leave(tmp_path: Path, scores: str) -> None:
    folder = made_comparison(tmp_path / "made", clients=3, rounds=2, seeds=1)
    (folder / "audit").mkdir()
    (folder / "audit" / "audit.json").write_text(json.dumps({"rows": [{"method": "fedavg", "psnr": 12.5}]}))
    (folder / "fedavg-seed0" / scores).parent.mkdir()
    tier = {"accuracy": 0.5, "balanced_accuracy": 0.4, "by_share": {"head": 0.9, "middle": 0.5, "tail": None}}
    (folder / "fedavg-seed0" / scores).write_text(
        json.dumps({"rows": [9, 1], "global": {"global": {**tier, "per_class": [0.9, None]}}, "clients": {}})
    )
    path = write_report(folder)
    assert panel(path, "leakage")["blocks"][0]["rows"] == [{"method": "FedAvg", "psnr": 12.5}]
    table, chart = panel(path, "tails")["blocks"]
    assert (table["rows"][0]["head"], table["rows"][0]["tail"]) == (0.9, None)
    assert [b["name"] for b in chart["variants"][0]["bars"]] == ["0 (9)", "1 (1)"]
    assert panel(path, "compression")["blocks"][0]["rows"][0]["up_ratio"] == pytest.approx(2.0)


def test_small_helpers_by_hand() -> None:
    assert numbers([0.123456789, np.nan, np.inf, 2.0]) == [0.12346, None, None, 2]
    assert numbers([[1.5], [np.nan]]) == [[1.5], [None]]
    assert thinned(range(10), 4) == [0, 3, 6, 9]
    assert thinned(range(3), 4) == [0, 1, 2]
    assert flat({"a": {"b": [1, 2], "c": "x"}, "d": True}) == {"a.b": "[1, 2]", "a.c": "x", "d": "true"}
