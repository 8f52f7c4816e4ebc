"""The table of a comparison as LaTeX."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fedquilt.errors import InputError
from fedquilt.report.gather import Gathered
from fedquilt.results.latex import escaped, latex_table
from helpers.made_runs import made_comparison


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Six methods, two seeds; FedRep's row is called as nobody should call a method."""
    found = Gathered.of(made_comparison(tmp_path_factory.mktemp("made"), clients=20, rounds=3, seeds=2)).summary
    assert found is not None
    rows = [
        {**row, "display": r"50% {A_b} & $x^2$ \o~#"} if row["method"] == "fedrep" else row for row in found["rows"]
    ]
    return {**found, "rows": rows}


def lines(table: str) -> list[list[str]]:
    """The cells of its rows, the head first."""
    body = table.split(r"\toprule")[1].split(r"\bottomrule")[0]
    rows = [line.strip().removesuffix(r"\\").strip() for line in body.splitlines() if line.strip().endswith(r"\\")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)&", row)] for row in rows]


def test_every_sign_with_a_meaning_is_printed_as_it_is() -> None:
    assert escaped(r"& % $ # _ { } ~ ^ \ < > |") == (
        r"\& \% \$ \# \_ \{ \} \textasciitilde{} \textasciicircum{} \textbackslash{} "
        r"\textless{} \textgreater{} \textbar{}"
    )
    assert escaped("α λ Ω Α ± −1") == r"$\alpha$ $\lambda$ $\Omega$ A $\pm$ $-$1"  # noqa: RUF001
    assert escaped("a\n b") == "a b"


def test_methods_stand_by_score_and_the_frame_below_them(summary: dict[str, Any]) -> None:
    head, *rows = lines(latex_table(summary))
    assert head == ["Method", "Accuracy", r"Worst 10 \%", "Balanced", "Macro F1", "MB"]
    assert {len(row) for row in rows} == {len(head)}
    assert [row[0] for row in rows] == [
        r"\textbf{Ditto}",
        r"50\% \{A\_b\} \& \$x\textasciicircum{}2\$ \textbackslash{}o\textasciitilde{}\#",
        "FedAvg",
        "FedProx",
        "Centralised",
        "Local only",
        "Majority class",
    ]
    best = next(row for row in summary["rows"] if row["method"] == "ditto")
    told = rf"\textbf{{{100 * best['accuracy']:.1f} $\pm$ {100 * best['accuracy_half_95']:.1f}}}"
    assert rows[0][1] == told
    assert rows[0][2].count("textbf") == 0


def test_the_winner_and_all_that_tie_with_it_are_bold(summary: dict[str, Any]) -> None:
    tied = {**summary, "winner": {**summary["winner"], "tied": ["fedavg", "local_only"]}}
    bold = [row[0] for row in lines(latex_table(tied)) if row[0].startswith(r"\textbf")]
    assert bold == [r"\textbf{Ditto}", r"\textbf{FedAvg}", r"\textbf{Local only}"]
    alone = {**summary, "rows": summary["rows"][:1], "winner": None}
    assert r"\textbf" not in latex_table(alone)


def test_caption_label_and_columns_are_ones_own(summary: dict[str, Any]) -> None:
    table = latex_table(summary, ["accuracy", "seconds"], "Mine.", "tab:mine")
    assert lines(table)[0] == ["Method", "Accuracy", "Seconds"]
    assert r"\caption{Mine. Test scores in \%, mean over clients, " in table
    assert r"\caption{Mine.}" in latex_table(summary, caption="Mine.", explain=False)
    assert r"\label{tab:mine}" in table
    assert "over 2 seeds" in latex_table(summary)
    with pytest.raises(InputError, match=r"no column 'acuracy'.*did you mean 'accuracy'"):
        latex_table(summary, ["acuracy"])


def test_braces_and_rules_close(summary: dict[str, Any]) -> None:
    table = re.sub(r"\\[{}]", "", latex_table(summary))
    assert table.count("{") == table.count("}")
    for part in ("table", "tabular"):
        assert table.count(rf"\begin{{{part}}}") == table.count(rf"\end{{{part}}}") == 1
