"""Energy in a run: a switch, a line on the terminal, and the columns of the published tables; never a guess."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from fedquilt.metrics.energy import Meter
from fedquilt.runs.config import load
from fedquilt.runs.energy import in_words
from helpers.command import fedquilt, small
from helpers.ticking import Ticking

COLUMNS = ["round", "loss", "accuracy_before", "accuracy_after", "energy_consumed", "energy_ratio"]


@pytest.fixture
def counters(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that counts joules."""

    def here() -> Meter:
        meter = Meter([Ticking()])  # type: ignore[list-item]
        meter.source = "rapl"
        return meter

    monkeypatch.setattr(Meter, "here", staticmethod(here))


@pytest.fixture
def no_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that does not."""
    monkeypatch.setattr(Meter, "here", staticmethod(Meter))


def energy_of(folder: str) -> Any:
    """What result.json says."""
    return json.loads((Path(folder) / "result.json").read_text())["energy"]


def tables(folder: str, to: Path) -> tuple[list[list[str]], dict[str, Any]]:
    """metrics.csv of client 0, and what the command said."""
    said = fedquilt("csv", folder, "--to", to, "--json")
    with (to / "client_0" / "metrics.csv").open() as file:
        return list(csv.reader(file)), said.json


@pytest.mark.usefixtures("counters")
def test_joules_are_on_the_terminal_and_in_the_published_columns(tmp_path: Path) -> None:
    recipe = small(tmp_path)
    said = fedquilt("run", recipe, "cohort.count=2")
    (line,) = [row for row in said.out.splitlines() if row.startswith("energy:")]
    assert "J by rapl: train " in line
    assert "J per unit of model change" in line
    (folder,) = (tmp_path / "runs").iterdir()
    rows, told = tables(str(folder), tmp_path / "tables")
    assert rows[0] == COLUMNS
    assert told["energy"] == "in joules"
    consumed = {row[4] for row in rows[1:]}
    assert consumed <= {"0", "1.000000"}  # one joule for each visit, none for who was not asked
    assert len(consumed) == 2


@pytest.mark.usefixtures("no_counters")
def test_without_counters_nothing_is_guessed(tmp_path: Path) -> None:
    said = fedquilt("run", small(tmp_path), "cohort.count=2")
    assert "energy: not measurable here" in said.out.splitlines()
    (folder,) = (tmp_path / "runs").iterdir()
    assert energy_of(str(folder)) == {"source": "none", "note": "not measurable here"}
    rows, told = tables(str(folder), tmp_path / "tables")
    assert rows[0] == COLUMNS
    assert {tuple(row[4:]) for row in rows[1:]} == {("", "")}  # also for who was not asked: there is no measurement
    assert told["energy"] == "not measurable here"
    assert "energy: not measurable here" in fedquilt("csv", folder, "--to", tmp_path / "again").out


@pytest.mark.usefixtures("counters")
@pytest.mark.parametrize("switch", [["meters.energy=false"], ["--no-energy"]], ids=["setting", "option"])
def test_the_switch(tmp_path: Path, switch: list[str]) -> None:
    recipe = small(tmp_path)
    said = fedquilt("run", recipe, *switch, "--json").json
    assert said["energy"] == {"source": "none", "note": "switched off (meters.energy = false)"}
    visits = (Path(said["folder"]) / "metrics" / "visits.jsonl").read_text()
    assert "joules" not in visits
    counted = fedquilt("run", recipe, "--energy", "--fresh", "--json").json
    assert counted["folder"] == said["folder"]  # it is the same run, and the same numbers
    assert counted["digest"] == said["digest"]
    assert counted["energy"]["joules"]["train"] > 0


def test_the_switch_is_no_part_of_a_run_s_identity(tmp_path: Path) -> None:
    recipe = small(tmp_path)
    assert load(recipe).meters.energy
    assert load(recipe).identity() == load(recipe, ["meters.energy=false"]).identity()


@pytest.mark.usefixtures("counters")
def test_a_run_that_was_counted_in_part_says_so(tmp_path: Path) -> None:
    recipe = small(tmp_path)
    folder = Path(fedquilt("run", recipe, "--json").json["folder"])
    (folder / "result.json").unlink()
    newest = sorted((folder / "snapshots").iterdir())[-1]
    newest.unlink()  # the last round is played again, without counters
    said = fedquilt("resume", folder, "--no-energy", "--json").json
    assert said["energy"]["note"] == "counted in 2 of 3 rounds"
    assert "(counted in 2 of 3 rounds)" in in_words(said["energy"])


def test_the_line_in_words() -> None:
    assert in_words({"source": "none", "note": "not measurable here"}) == "energy: not measurable here"
    found = {"source": "nvml", "joules": {"train": 1234.4, "evaluate": 2.0}, "joules_per_model_change": 0.5}
    assert in_words(found) == "energy: 1,236 J by nvml: train 1,234 J, evaluate 2 J; 0.5 J per unit of model change"
