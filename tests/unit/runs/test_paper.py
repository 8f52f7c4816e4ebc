"""The table and the pictures of a report as LaTeX and PDF, from the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

from helpers.command import fedquilt
from helpers.made_runs import made_comparison


def test_a_comparison_as_latex_and_pdf(tmp_path: Path) -> None:
    top = made_comparison(tmp_path / "made", clients=8, rounds=3, seeds=2, unfinished=["fedavg"])
    plan = json.loads((top / "comparison.json").read_text())
    for cell in plan["cells"]:
        cell |= {"display": "_cost in $ & %"} if cell["label"] == "ditto" else {}
    (top / "comparison.json").write_text(json.dumps(plan))
    table, pages = tmp_path / "table.tex", tmp_path / "report.pdf"
    said = fedquilt("report", str(top), "--latex", str(table), "--pdf", str(pages), "--json")
    assert said.code == 0, said.err
    assert (said.json["latex"], said.json["pdf"]) == (str(table), str(pages))
    text = table.read_text()
    assert r"\textbf{\_cost in \$ \& \%}" in text
    assert r"\label{tab:made}" in text
    assert "FedAvg" not in text  # one of its runs is not finished
    first = pages.read_bytes()
    assert first[:5] == b"%PDF-"
    assert len(re.findall(rb"/Type /Page\b", first)) == 2
    assert fedquilt("report", str(top), "--pdf", str(pages)).code == 0
    assert pages.read_bytes() == first


def test_without_a_finished_run_there_is_no_table(tmp_path: Path) -> None:
    top = made_comparison(tmp_path / "made", clients=4, rounds=2, seeds=1, unfinished=["fedavg"])
    for path in top.glob("*/result.json"):
        path.unlink()
    said = fedquilt("report", str(top), "--latex", str(tmp_path / "t.tex"))
    assert said.code == 2
    assert "no table yet" in said.err
    assert not (tmp_path / "t.tex").exists()
