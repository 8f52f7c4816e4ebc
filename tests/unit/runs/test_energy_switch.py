"""Energy in a run: a switch, a line on the terminal, and the columns of the published tables; never a guess."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from fedquilt.config.config import load
from fedquilt.metrics.energy import Meter, in_words, per_run
from helpers.command import fedquilt, small
from helpers.ticking import Ticking

MAE = Path(__file__).parents[3] / "recipes" / "pretrain_mae.toml"
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
    assert consumed <= {"0", "1.000000"}  # one joule for each client update, none for who was not asked
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
    updates = (Path(said["folder"]) / "metrics" / "client_updates.jsonl").read_text()
    assert "joules" not in updates
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


COMPARE = ['compare.methods=["fedavg","local_only"]', "compare.seeds=[0]", "rounds=1"]


@pytest.mark.usefixtures("no_counters")
@pytest.mark.filterwarnings(
    "ignore:engine.at_once = 2. runs execute one after another"
)  # beside threads of other tests
@pytest.mark.parametrize("at_once", [1, 2])
def test_a_comparison_says_once_that_nothing_is_measurable(tmp_path: Path, at_once: int) -> None:
    said = fedquilt("compare", small(tmp_path), *COMPARE, "engine.kind=auto", f"engine.at_once={at_once}").out
    assert [line for line in said.splitlines() if "energy" in line] == ["energy: not measurable here"]


@pytest.mark.usefixtures("counters")
def test_a_comparison_tells_joules_of_each_method(tmp_path: Path) -> None:
    said = fedquilt("compare", small(tmp_path), *COMPARE, "engine.at_once=1").out
    told = [line for line in said.splitlines() if "energy: " in line]
    assert [line.split(": ")[0] for line in told] == ["fedavg", "local_only"] or len(told) == 1  # equal: told once
    assert "J by rapl: train " in told[0]
    off = fedquilt("compare", small(tmp_path), *COMPARE, "rounds=2", "--no-energy").out
    assert "energy: switched off (meters.energy = false)" in off.splitlines()


def test_the_mean_over_runs() -> None:
    one = {"source": "rapl", "joules": {"train": 2.0, "evaluate": 1.0}}
    two = {"source": "rapl", "joules": {"train": 4.0}, "note": "counted in 2 of 3 rounds"}
    found = per_run([one, two])
    assert found["joules"] == {"train": 3.0, "evaluate": 0.5}
    assert in_words(found).endswith("evaluate 0.5 J (mean of a run; counted in 2 of 3 rounds)")
    silent = {"source": "none", "note": "not measurable here"}
    assert per_run([one, silent]) == silent


@pytest.mark.usefixtures("counters")
def test_the_switch_of_other_commands(tmp_path: Path) -> None:
    recipe = small(tmp_path)
    swept = fedquilt("sweep", recipe, "rounds=1", "--set", "train.optimizer.lr=0.1", "--no-energy", "--json")
    assert swept.code == 0, swept.err
    (result,) = (tmp_path / "runs").rglob("result.json")
    assert energy_of(str(result.parent))["note"] == "switched off (meters.energy = false)"
    made = ["data.limit=200", "model.width=8", "model.depth=1", "model.heads=2"]
    settings = [MAE, *made, "--epochs", "1", "-o", tmp_path / "mae"]
    assert "energy: 1 J by rapl: train 1 J (of this command)" in fedquilt("pretrain-mae", *settings).out.splitlines()
    assert "energy: trained before" in fedquilt("pretrain-mae", *settings).out.splitlines()
    off = fedquilt("pretrain-mae", *settings, "--fresh", "--no-energy").out
    assert "energy: switched off (meters.energy = false)" in off.splitlines()


def test_a_server_has_the_switch_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(
        "fedquilt.deploy.serve.FederationServer.follow", lambda self, config, *_: seen.append(config) or {}
    )
    fedquilt("serve", small(tmp_path), "--insecure", "--no-energy", "--json")
    assert not seen[0].meters.energy
