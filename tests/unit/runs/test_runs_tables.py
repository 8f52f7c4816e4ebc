"""Runs on tables: they learn with defaults, say what was done to columns, keep it for new rows, doubt themselves."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedquilt.analysis.assign import assign, rows_of
from fedquilt.analysis.modes import predict, realigned
from fedquilt.config.config import Config
from fedquilt.config.data import federations_of
from fedquilt.engines.local import Local
from fedquilt.errors import InputError, RoundError
from fedquilt.results.majority import at_majority, majority_facts
from fedquilt.runs.build import federation_of, run_of
from fedquilt.runs.preparation import kept_in
from fedquilt.runs.runner import make_engine
from fedquilt.storage.finished import result_of
from helpers import clinics


def recipe(path: Path, **settings: Any) -> Config:
    data = {"path": str(path), "user": "site", **settings.pop("data", {})}
    return Config.model_validate({"rounds": 8, "data": data, "train": {"batch_size": 16}, **settings})


def played(config: Config, folder: Path, engine: Any = None, rounds: int = 99) -> dict[str, Any]:
    used = engine or Local()
    for snapshot in run_of(config, used, folder):
        if snapshot.round == rounds:
            break
    return result_of(folder) or {}


def test_a_table_is_learned_with_defaults(tmp_path: Path):
    """Income, a thousand times larger than anything that tells the label, drowns the rest unless columns are alike."""
    path = clinics.write(tmp_path / "a.csv")
    result = played(recipe(path), tmp_path / "run")
    assert result["best"]["test_accuracy"] > result["majority_class"] + 0.2
    assert "doubt" not in result
    assert "town (3 levels)" in result["preparation"]["told"]
    bare = {"standardise": False, "features": ["glucose", "income"]}
    with pytest.raises(RoundError, match="be out of scale"):
        played(recipe(path, data=bare), tmp_path / "stopped")
    raw = played(recipe(path, data=bare, cohort={"max_growth": 1e30}), tmp_path / "raw")
    assert raw["best"]["test_accuracy"] < result["best"]["test_accuracy"] - 0.2
    assert "above the majority class: predicting the majority class of all" in raw["doubt"]
    assert "learned nothing" in raw["doubt"]


def cancer(path: Path) -> Path:
    """30 columns whose scales differ by five orders of magnitude."""
    datasets = pytest.importorskip("sklearn.datasets")
    x, y = datasets.load_breast_cancer(return_X_y=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"c{i}" for i in range(30)), "label"])
        writer.writerows([*map(float, row), int(label)] for row, label in zip(x, y, strict=True))
    return path


def test_breast_cancer_is_learned_with_defaults(tmp_path: Path):
    """The table that was fed raw."""
    path = cancer(tmp_path / "cancer.csv")
    data = {"path": str(path), "clients": 5, "partition": {"kind": "iid"}}
    result = played(Config.model_validate({"rounds": 8, "data": data}), tmp_path / "run")
    assert result["best"]["test_accuracy"] > 0.9 > result["majority_class"] + 0.1
    assert result["preparation"]["told"].startswith("30 number columns")
    bare = Config.model_validate({"rounds": 2, "data": {**data, "standardise": False}})
    assert "above the majority class: predicting" in played(bare, tmp_path / "raw")["doubt"]


def test_all_engines_and_a_resumed_run_agree(tmp_path: Path):
    config = recipe(clinics.write(tmp_path / "a.csv"), rounds=3, model={"kind": "logistic"})
    whole = played(config, tmp_path / "whole")
    workers = make_engine("workers", 2)
    try:
        assert played(config, tmp_path / "workers", workers)["digest"] == whole["digest"]
    finally:
        workers.close()
    played(config, tmp_path / "cut", rounds=1)
    assert not (tmp_path / "cut/result.json").exists()
    assert played(config, tmp_path / "cut")["digest"] == whole["digest"]
    assert whole["preparation"] == json.loads((tmp_path / "cut/result.json").read_text())["preparation"]


def test_new_rows_are_prepared_as_the_runs_were(tmp_path: Path):
    """From the folder alone: other orders of columns, names that training never saw, cells that are missing."""
    path = clinics.write(tmp_path / "a.csv")
    config = recipe(path)
    played(config, tmp_path / "run")
    prepare = federation_of(config).prepare
    kept = kept_in(tmp_path / "run")
    assert kept is not None
    assert kept.prepare == prepare
    realigned(tmp_path / "run")
    names = ("town", "sex", "income", "glucose", "age", "label")
    order = [clinics.HEADER.index(n) for n in names]
    new = tmp_path / "new.csv"
    with new.open("w", newline="") as file:
        csv.writer(file).writerows([names, *([row[i] for i in order] for row in clinics.rows(90, seed=5))])
    path.unlink()  # the run's own table is not needed
    answers = predict(tmp_path / "run", new, "plain")
    assert answers.accuracy is not None
    assert answers.accuracy > 0.8
    odd = tmp_path / "odd.csv"
    odd.write_text("age,glucose,income,sex,town\n,4.0,,x,Atlantis\n50,9.0,400000,f,Oslo\n")
    assert predict(tmp_path / "run", odd, "plain").classes.tolist() == [0, 1]
    odd.write_text("age,glucose,income,sex\n50,9.0,400000,f\n")
    with pytest.raises(InputError, match="has no column 'town', which the run's table had"):
        predict(tmp_path / "run", odd, "plain")
    site = rows_of(config, new, 2, kept)
    expected = prepare({"x": site.train.columns["x"]})["x"]
    assert np.array_equal(site.train.whole().x, expected[site.train.all_rows()])


def test_a_new_client_is_assigned_by_the_runs_numbers(tmp_path: Path):
    config = recipe(clinics.write(tmp_path / "a.csv"), rounds=2, method={"kind": "ifca", "n_clusters": 2})
    played(config, tmp_path / "run")
    placed = assign(tmp_path / "run", clinics.write(tmp_path / "new.csv", "east"))
    assert placed.cluster in (0, 1)
    assert 0 < placed.distance < 5


def test_each_client_may_standardise_by_itself(tmp_path: Path):
    config = recipe(clinics.write(tmp_path / "a.csv"), data={"standardise": "clients"})
    result = played(config, tmp_path / "run")
    assert "each client's own training samples" in result["preparation"]["told"]
    assert result["best"]["test_accuracy"] > result["majority_class"] + 0.15
    stream = {"stream": {"kind": "by_class", "groups": [[0], [1]]}}
    with pytest.raises(InputError, match="in a stream, rows are standardised by 'federation' only"):
        federation_of(recipe(tmp_path / "a.csv", data={"standardise": "clients", "drop_empty": True}, **stream))


def test_newcomers_and_held_back_rows_have_no_say(tmp_path: Path):
    config = recipe(clinics.write(tmp_path / "a.csv"), data={"newcomers": 1, "common_valid": 0.1})
    part, new = federations_of(config)
    assert part.prepare == new.prepare
    income = part.columns["x"][part.train.index][:, 2].mean()
    assert part.prepare.columns[2].mean == pytest.approx(float(income))
    assert part.server_valid.whole().x.shape[1] == part.prepare.width


def test_transforms_are_for_numbers(tmp_path: Path):
    path = clinics.write(tmp_path / "a.csv")
    steps = {"transforms": [{"kind": "normalise"}]}
    with pytest.raises(InputError, match=r"data.transforms takes numbers, and .* has categories"):
        federation_of(recipe(path, data=steps))
    numbers = federation_of(recipe(path, data={**steps, "features": ["glucose", "income"]}))
    rows = np.concatenate([numbers.site(c, 0).train.whole().x for c in numbers.ids])
    np.testing.assert_allclose(rows.mean(0), 0, atol=1e-4)  # each column by itself
    np.testing.assert_allclose(rows.std(0), 1, atol=1e-4)


def test_identities_of_runs_without_tables_stay_what_they_were():
    plain = Config.model_validate({"data": {"source": "digits"}})
    asked = Config.model_validate({"data": {"source": "digits", "standardise": True}})
    other = Config.model_validate({"data": {"source": "digits", "standardise": "clients"}})
    assert plain.identity() == asked.identity() != other.identity()


def result(accuracy: float, common: float = 0.6, own: float = 0.8) -> dict[str, Any]:
    return {
        "best": {"test_accuracy": accuracy},
        "majority_class": own,
        "majority_half_95": 0.02,
        "common_class": common,
        "common_half_95": 0.03,
        "test_rows": 900,
    }


def test_when_a_run_doubts_itself():
    assert at_majority([result(0.83)]) is None
    assert "predicting each client's majority class gives 80.0 % (95 % interval: 78.0 to 82.0) on 900 test samples" in (
        at_majority([result(0.81)]) or ""
    )
    assert "may have learned nothing" in (at_majority([result(0.62), result(0.63)]) or "")
    assert at_majority([{**result(0.5), "common_class": None}]) is None
    assert at_majority([result(1.0, 1.0, 1.0)]) is None  # one class only


def test_without_clients_test_rows_a_run_doubts_itself_on_the_common_test_set(tmp_path: Path):
    """Fed raw, the breast-cancer table is not learned; standardised, it is."""
    path = cancer(tmp_path / "cancer.csv")
    data = {"path": str(path), "clients": 5, "partition": {"kind": "iid"}, "test": 0, "common_test": 0.2}
    settings = {"rounds": 2, "cohort": {"max_growth": 1e30}}
    raw = played(Config.model_validate({**settings, "data": {**data, "standardise": False}}), tmp_path / "raw")
    assert raw["majority_class"] is None
    assert 0.5 < raw["majority_common"] < 0.75
    share, rows = raw["majority_common"], raw["majority_common_rows"]
    assert raw["majority_common_half_95"] == pytest.approx(1.959964 * (share * (1 - share) / rows) ** 0.5)
    assert re.match(
        r"accuracy on the common test set \d+\.\d % is not (clearly )?above the majority class", raw["doubt"]
    )
    assert f"{100 * share:.1f} %" in raw["doubt"]
    assert f"on {rows} test samples" in raw["doubt"]
    learned = played(Config.model_validate({**settings, "data": data}), tmp_path / "run")
    assert learned["best"]["common_test_accuracy"] > share + 0.2
    assert "doubt" not in learned


def test_a_server_without_data_says_nothing_of_the_majority_class():
    """On a real federation, clients' samples and counts of labels are elsewhere."""
    facts = majority_facts(SimpleNamespace(classes=2))
    assert set(facts.values()) == {None}
    assert at_majority([{**facts, "best": {"test_accuracy": 0.1}}]) is None
    assert at_majority([{**facts, "best": {"common_test_accuracy": 0.1}}]) is None
    assert at_majority([{"best": {}}]) is None


def test_the_interval_of_a_constant_answer():
    """Two clients, with 3 of 4 and 1 of 2 test samples of the commonest class: (3/4 + 1/2) / 2, and its variance
    (3/16/4 + 1/4/2) / 4."""
    from fedquilt.data import Federation

    x = np.zeros((1, 2))
    rows = {
        "a": {"train": (x.repeat(3, 0), [0, 0, 1]), "test": (x.repeat(4, 0), [0, 0, 0, 1])},
        "b": {"train": (x.repeat(2, 0), [0, 1]), "test": (x.repeat(2, 0), [0, 1])},
    }
    facts = majority_facts(Federation.from_clients(rows))
    assert facts["common_class"] == facts["majority_class"] == 0.625
    assert facts["common_half_95"] == pytest.approx(1.959964 * ((3 / 16 / 4 + 1 / 4 / 2) / 4) ** 0.5, rel=1e-6)
    assert facts["test_rows"] == 6


def test_a_comparison_says_which_methods_learned_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from fedquilt.show.studies import comparison_table
    from fedquilt.studies.compare import compare

    path = clinics.write(tmp_path / "a.csv")
    still = {"kind": "sgd", "lr": 1e-9}
    config = recipe(
        path,
        rounds=1,
        train={"optimizer": still},
        output={"folder": str(tmp_path / "runs")},
        compare={"methods": ["fedavg"], "seeds": [0]},
        engine={"kind": "local"},
    )
    summary = compare(config)
    assert "above the majority class: predicting" in summary["doubts"]["fedavg"]
    comparison_table(summary)
    said = capsys.readouterr().out
    assert "note: FedAvg: test accuracy" in said
    (heads,) = (line.split() for line in said.splitlines() if "updates" in line)
    assert heads == ["method", "majority", "updates"]  # one method, and no clusters: the other columns would be empty
    assert "above the majority class: predicting" in Path(summary["report"]).read_text()
