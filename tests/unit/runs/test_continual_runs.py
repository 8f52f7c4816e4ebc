"""A run on a stream, probed after every task: stages, matrices, pictures, the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from fedquilt.analysis import continual_plots
from fedquilt.analysis.continual import Recalled, TaskEvaluator, evaluate, summary
from fedquilt.analysis.continual_plots import pictures
from fedquilt.config.config import parse
from fedquilt.core.seed import Seed
from fedquilt.engines.local import Local
from fedquilt.errors import InputError
from fedquilt.report.blocks import numbers
from fedquilt.report.gather import Gathered
from fedquilt.report.panels import PANELS
from fedquilt.runs.build import run_of
from fedquilt.runs.stages import stages_in
from helpers.command import fedquilt
from helpers.guessing import RECIPE, method, tasks
from helpers.toy import fedavg


def played(folder: Path, **changes) -> Path:
    config = parse({**RECIPE, "engine": {"kind": "local"}, **changes})
    list(run_of(config, Local(), folder))
    return folder


@pytest.fixture(autouse=True)
def fewer_images(monkeypatch):
    """Most of the time would go into drawing them."""
    monkeypatch.setattr(continual_plots, "SHOWN", 3)
    monkeypatch.setattr(continual_plots, "NEAR", 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return played(tmp_path_factory.mktemp("streamed") / "run")


def test_the_end_of_each_task_is_kept(folder):
    stages = stages_in(folder)
    assert [stage.round for stage in stages] == [2, 4]
    assert all(stage.models == () for stage in stages)
    assert len(stages[0].state.bank) <= len(stages[1].state.bank)


def test_numbers(folder):
    found = evaluate(folder)
    assert found == evaluate(folder)
    assert found["tasks"] == [0, 1]
    assert set(found["measures"]) == {"probe", "neighbours", "probe_all", "neighbours_all", "loss"}
    for name, row in found["measures"].items():
        matrix = torch.tensor(row["matrix"])
        assert matrix.shape == (2, 2)
        assert row["average"] == pytest.approx(float(matrix[-1].mean()))
        sign = -1 if name == "loss" else 1
        assert row["backward"] == pytest.approx(sign * float(matrix[1, 0] - matrix[0, 0]))
    assert found["measures"]["loss"]["average"] < torch.tensor(found["measures"]["loss"]["before"]).mean()
    assert found["measures"]["probe"]["average"] > 0.4  # five classes
    assert [row["bank"] for row in found["by_round"]][-1] == len(stages_in(folder)[-1].state.bank)
    kept = json.loads((folder / "metrics/continual.json").read_text())
    assert kept["measures"] == found["measures"]


def test_pictures_and_their_numbers(folder, tmp_path):
    run = Recalled.of(folder, rows=60)
    made = pictures(run, run.told(), tmp_path)
    assert {path.stem for path in made} == {"matrix", "reconstructions", "bank", "map", "prototypes"}
    for path in made:
        assert path.stat().st_size > 5000
        assert len(path.with_suffix(".csv").read_text().splitlines()) > 3


def test_the_command(folder):
    told = json.loads(fedquilt("continual", str(folder), "--rows", "20", "--json").out)
    assert told["rows"] == {"0": [20, 20], "1": [20, 20]}
    assert len(told["pictures"]) == 5
    said = fedquilt("continual", str(folder), "--rows", "20").out
    assert "linear probe, own task" in said
    assert "rows of the bank by round" in said


def test_the_report_shows_what_was_forgotten_and_how_the_bank_grew(tmp_path):
    folder = played(tmp_path / "run")
    assert "forgetting" not in _panels(folder)  # it was not probed yet
    told = json.loads(fedquilt("continual", str(folder), "--rows", "20", "--json").out)
    panels = _panels(folder)
    matrix, table, *images = panels["forgetting"]["blocks"]
    probe = next(v for v in matrix["variants"] if v["keys"]["measure"] == "linear probe, own task")
    assert probe["values"] == numbers([told["measures"]["probe"]["before"], *told["measures"]["probe"]["matrix"]])
    assert {row["measure"]: row["forgetting"] for row in table["rows"]}["linear probe, own task"] == pytest.approx(
        told["measures"]["probe"]["forgetting"]
    )
    assert [image["source"][:22] for image in images] == ["data:image/png;base64,"] * 2
    (seed,) = panels["banks"]["blocks"][0]["series"][0]["seeds"]
    assert seed["values"]["bank"] == [row["bank"] for row in told["by_round"]]


def _panels(folder):
    return {panel.key: panel.plain() for make in PANELS if (panel := make(Gathered.of(folder))) is not None}


def test_clients_that_learn_alone_are_probed_one_by_one(tmp_path):
    alone = played(tmp_path / "alone", method={"kind": "mae_alone"})
    run = Recalled.of(alone, rows=60)
    assert [len(stage.models) for stage in run.stages] == [3, 3]
    each = [run.evaluator.scores(model)["neighbours"] for model in run.stages[-1].models]
    assert run.told()["measures"]["neighbours"]["matrix"][-1] == pytest.approx(torch.tensor(each).mean(0).tolist())


def test_a_task_that_comes_again_is_a_column_of_its_own(tmp_path):
    back = played(tmp_path / "back", rounds=3, stream={**RECIPE["stream"], "rounds_per_task": 1, "order": [0, 1, 0]})
    found = evaluate(back, rows=60)
    assert found["tasks"] == [0, 1, 0]
    assert all(row[0] == row[2] for row in found["measures"]["probe"]["matrix"])


def test_of_a_loss_growth_is_forgetting():
    found = summary({"loss": [3.0, 3.0]}, [{"loss": [1.0, 2.0]}, {"loss": [1.5, 1.0]}])["loss"]
    assert found["average"] == 1.25
    assert found["forgetting"] == 0.5
    assert found["backward"] == -0.5
    assert found["forward"] == 1.0


def test_what_cannot_be_probed_is_refused(tmp_path):
    plain = played(tmp_path / "plain", stream=None, rounds=1)
    with pytest.raises(InputError, match="do not change over time"):
        evaluate(plain)
    other = played(tmp_path / "other", rounds=1)
    for file in (other / "stages").iterdir():
        file.unlink()
    with pytest.raises(InputError, match="has no saved stages"):
        evaluate(other)
    with pytest.raises(InputError, match="Only masked-autoencoder methods"):
        TaskEvaluator(fedavg(), tasks(), (0,))


def test_what_does_not_classify_is_not_compared_with_what_does(tmp_path):
    from fedquilt.studies.compare import compare

    wanted = {**RECIPE, "output": {"folder": str(tmp_path)}, "compare": {"methods": ["fedmae", "fedavg"], "seeds": [0]}}
    with pytest.raises(InputError, match="does not classify"):
        compare(parse(wanted))


def test_other_methods_keep_stages_if_asked(tmp_path):
    kept = played(
        tmp_path / "kept", model={"kind": "mlp", "hidden": [8]}, method={"kind": "fedavg"}, output={"stages": True}
    )
    assert [stage.round for stage in stages_in(kept)] == [2, 4]


def test_tables_hold_rows_of_all_clients():
    made = TaskEvaluator(method(), tasks(), (0, 1), seed=Seed(0))
    train, test = made.tables[1]
    assert len(train) == sum(tasks().tasks[1].size(c) for c in tasks().ids)
    assert set(test.columns["y"][test.all_rows()].tolist()) == {5, 6, 7, 8, 9}
    assert made.apart
