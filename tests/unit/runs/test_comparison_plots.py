"""Pictures and table of a comparison: the numbers beside them, by hand."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from fedquilt.results.comparison_plots import draw_all, over_seeds, rounds_to
from fedquilt.results.looks import Look


def rounds(*accuracies: float, std: float = 0.1) -> list[dict[str, Any]]:
    """A run that was scored in rounds 2, 4, ..."""
    rows: list[dict[str, Any]] = [{"round": 1}]
    for i, accuracy in enumerate(accuracies):
        rows.append(
            {
                "round": 2 * (i + 1),
                "test_accuracy": accuracy,
                "test_accuracy_std": std,
                "test_loss": 1 - accuracy,
                "test_balanced_accuracy": accuracy / 2,
                "test_macro_f1": accuracy / 4,
                "test_macro_f1_rows_half_95": 0.03,
            }
        )
    return rows


HISTORIES = {"good": [rounds(0.7, 0.9, 0.88), rounds(0.8, 0.8, 0.9)], "poor": [rounds(0.2, 0.3)]}
CLIENTS = {"good": {i: i / 10 for i in range(11)}, "poor": {0: 0.2, 1: 0.4}}


def test_means_over_seeds_and_rounds_to_a_target() -> None:
    at, mean = over_seeds(HISTORIES["good"], "test_accuracy")
    assert at.tolist() == [2, 4, 6]
    assert mean.tolist() == pytest.approx([0.75, 0.85, 0.89])
    assert rounds_to(HISTORIES["good"], 0.85) == 4
    assert rounds_to(HISTORIES["good"], 0.95) is None
    assert over_seeds([rounds(0.1), rounds(0.1, 0.2)], "test_accuracy")[0].tolist() == [2]  # scored in every seed


def test_all_pictures_and_the_table(tmp_path: Path) -> None:
    draw_all(HISTORIES, CLIENTS, 0.25, 0.85, tmp_path)
    names = ("accuracy_curves", "loss_curves", "accuracy_boxplot", "convergence_speed")
    for name in names:
        assert (tmp_path / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
        assert (tmp_path / f"{name}.svg").stat().st_size > 0
        assert (tmp_path / f"{name}.eps").read_bytes()[:11] == b"%!PS-Adobe-"
        assert (tmp_path / f"{name}.csv").stat().st_size > 0
    with (tmp_path / "comparison_table.csv").open() as file:
        good, poor = csv.DictReader(file)
    assert list(good)[:6] == [
        "Algorithm",
        "Final mean acc",
        "Final std acc",
        "Best mean acc",
        "Final mean loss",
        "Rounds to 85%",
    ]
    assert (good["Final mean acc"], good["Best mean acc"], good["Rounds to 85%"]) == ("0.890000", "0.890000", "4")
    assert (good["P10 client acc"], good["P90 client acc"]) == ("0.100000", "0.900000")
    assert (poor["Rounds to 85%"], poor["Min client acc"], poor["Max client acc"]) == (">4", "0.200000", "0.400000")
    assert {good["Majority class acc"], poor["Majority class acc"]} == {"0.250000"}
    assert (poor["Final macro F1"], poor["Final macro F1 half 95 %"]) == ("0.075000", "0.030000")
    over_seeds = 12.706205 * (0.0000125 / 2) ** 0.5  # t of one degree; 0.22 and 0.225
    assert float(good["Final macro F1 half 95 %"]) == pytest.approx((over_seeds**2 + 0.03**2) ** 0.5, abs=1e-6)


def test_many_methods_can_be_told_apart() -> None:
    looks = [tuple(Look("", i).line.values()) for i in range(20)]
    assert len(set(looks)) == 20


def test_equal_pictures_are_equal_files_and_colours_stay_as_they_are(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        draw_all(HISTORIES, CLIENTS, 0.25, 0.85, tmp_path / name)
    for suffix in ("png", "svg", "eps", "csv"):
        files = [(tmp_path / name / f"accuracy_curves.{suffix}").read_bytes() for name in ("one", "two")]
        assert files[0] == files[1], suffix
