"""Comparisons and sweeps from Python: the command's numbers, folders that both go on with, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

import fedquilt
from fedquilt import Callback, FedAvg, Federation, FedProx, LocalOnly, Net, Results
from fedquilt.config.config import load
from fedquilt.config.data import federation_of
from fedquilt.core.net import logits_of
from fedquilt.data import Dirichlet
from fedquilt.errors import InputError
from fedquilt.models import MLP
from fedquilt.pieces.optimizers import SGD
from fedquilt.runs.build import method_of
from fedquilt.studies.compare import compare as by_recipe
from fedquilt.studies.sweep import sweep as sweep_by_recipe
from fedquilt.testing import digits, network
from helpers.command import fedquilt as command
from helpers.command import small, untimed

PAIR = {"FedAvg": FedAvg(network()), "FedProx": FedProx(network(), mu=1.0)}
DATA = digits(clients=4)


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparisons end without pictures, which take longer than their runs."""
    monkeypatch.setattr("fedquilt.studies.compare._draw", lambda *_: None)


@pytest.fixture
def no_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor are their pages written."""
    monkeypatch.setattr("fedquilt.report.write_report", lambda *_: None)
    monkeypatch.setattr("fedquilt.results.comparison_plots.draw", lambda *_: None)


def compared(folder: Path | None = None, methods: Any = PAIR, data: Any = DATA, **options: Any) -> Results:
    return fedquilt.compare(
        methods, data, **{"rounds": 2, "seeds": [0, 1], "folder": folder, "engine": "local", **options}
    )


def same(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    """The numbers of two tables are the same numbers; times, and what people call a method, are not numbers."""
    for one, other in zip(untimed(ours), untimed(theirs), strict=True):
        for name in one.keys() - {"method", "display"}:
            np.testing.assert_equal(one[name], other[name], name)


# The same numbers


@pytest.mark.usefixtures("no_reports")
def test_python_and_the_command_find_the_same_digests_and_numbers(tmp_path: Path) -> None:
    settings = ['compare.methods=["fedavg", {kind="fedprox", mu=0.5}, "local_only"]', "compare.seeds=[0,1]", "rounds=2"]
    config = load(small(tmp_path), settings)
    theirs = by_recipe(config)
    data = federation_of(config)
    made = {c.kind: method_of(config.with_method(c), data) for c in config.compare.methods}
    ours = compared(tmp_path / "ours", made, data)
    assert list(ours.digests.values()) == [d for i in (0, 1) for d in (row["digests"][i] for row in theirs["rows"])]
    same(ours.rows, theirs["rows"])
    assert ours.summary["winner"]["method"] == theirs["winner"]["method"]
    assert ours.summary["majority_class"] == theirs["majority_class"]
    same(Results.load(theirs["folder"]).rows, theirs["rows"])  # the command's own folder, read from Python


@pytest.mark.usefixtures("no_reports")
def test_a_sweep_finds_what_the_command_finds(tmp_path: Path) -> None:
    config = load(small(tmp_path), ["rounds=2", "sweep.space.train.optimizer.lr=[0.01, 0.1]", "sweep.seeds=[0, 1]"])
    theirs = sweep_by_recipe(config)
    data = federation_of(config)
    method = method_of(config, data)
    ours = fedquilt.sweep(
        lambda lr: replace(method, optimizer=SGD(lr)), {"lr": [0.01, 0.1]}, data, rounds=2, seeds=[0, 1], engine="local"
    )
    for name in ("valid", "valid_half_95", "rounds", "megabytes"):
        assert [row[name] for row in ours.rows] == [row[name] for row in theirs["points"]]
    assert (ours.best()["values"], ours.best()["test"]) == ({"lr": 0.1}, theirs["best"]["test"])
    assert "Best on validation: lr=0.1" in str(ours.table())
    assert list(ours.to_pandas().columns)[:2] == ["lr", "point"]
    assert len(ours.plot().axes) == 1


def test_methods_that_differ_by_their_names_alone_are_rows_of_their_own() -> None:
    results = compared(methods={"one": PAIR["FedAvg"], "the other/again": PAIR["FedAvg"]}, seeds=[0])
    assert [row["method"] for row in results.rows] == ["one", "the other/again"]
    assert results.digests[("one", 0)] == results.digests[("the other/again", 0)]


def top_share(scores: Tensor, labels: Tensor) -> Tensor:
    return scores.softmax(1).amax(1).mean()


def test_metrics_of_a_script_are_scored_kept_and_forgotten(tmp_path: Path) -> None:
    found = compared(tmp_path / "c", metrics=[top_share], seeds=[0])
    assert all(0.1 < row["test_top_share"] <= 1 for row in found.runs[0].rounds)
    assert "top share" in str(found.table())
    again = compared(tmp_path / "c", metrics=[top_share], seeds=[0, 1])  # reads the settings of the runs there
    assert all("test_top_share" in run.rounds[-1] for run in again.runs)
    assert found.digests.items() <= again.digests.items()
    (with_it,) = fedquilt.run(PAIR["FedAvg"], DATA, rounds=1, engine="local", metrics=[top_share])
    assert with_it.metrics["test_top_share"] == found.runs[0].rounds[0]["test_top_share"]
    (without,) = fedquilt.run(PAIR["FedAvg"], DATA, rounds=1, engine="local")
    assert "test_top_share" not in without.metrics


def test_what_is_no_metric_is_refused_with_other_wrong_arguments() -> None:
    said = refused(lambda: compared(rounds=0, metrics=["auroc", lambda scores, labels: 1.0]))
    assert "rounds:" in said
    assert said.count("metrics: a metric should be a function with a name, such as def auroc(scores, labels)") == 2
    assert "metrics: should be a list" in refused(lambda: compared(metrics=top_share))


def test_a_federation_may_depend_on_the_seed(tmp_path: Path) -> None:
    def data(seed: int) -> Federation:
        return Federation.from_source("digits", partition=Dirichlet(1.0), clients=4, test=0.3, seed=seed)

    results = compared(tmp_path / "c", data=data)
    means = [float(np.mean(data(seed).majority().clients)) for seed in (0, 1)]
    assert means[0] != means[1]
    assert results.summary["majority_class"] == pytest.approx(np.mean(means))
    assert Results.load(tmp_path / "c").summary["majority_class"] == pytest.approx(np.mean(means))
    assert fedquilt.report(results, tmp_path / "r.html").stat().st_size > 100_000


# Folders


@pytest.mark.usefixtures("no_reports")
def test_a_folder_goes_on_and_takes_more_methods_seeds_and_rounds(tmp_path: Path) -> None:
    compared(tmp_path / "c", {"FedAvg": PAIR["FedAvg"]}, seeds=[0])
    kept = tmp_path / "c/FedAvg-seed0/result.json"
    before = kept.stat().st_mtime_ns
    more = compared(tmp_path / "c").digests
    assert kept.stat().st_mtime_ns == before  # finished before, so kept
    longer = compared(tmp_path / "c", rounds=3)
    assert [len(view.rounds) for view in longer.runs] == [3] * 4
    assert longer.digests == compared(rounds=3).digests
    assert more == compared().digests


@pytest.mark.parametrize("what", ["report", "traffic", "watch", "csv", "resume"])
def test_the_command_reads_and_goes_on_with_a_run_of_python(what: str, tmp_path: Path) -> None:
    data = Federation.from_source("digits", partition=Dirichlet(1.0), clients=4, test=0.3)
    method = FedAvg(Net.of(MLP, features=64, classes=10), clip=None, batch_size=64)
    rounds = fedquilt.run(method, data, rounds=3, folder=tmp_path / "mine", engine="local")
    first = next(rounds)
    rounds.close()
    more = {"csv": ["--to", tmp_path / "out"], "watch": ["--once"]}.get(what, [])
    said = command(what, tmp_path / "mine", *more)
    assert said.code == 0, said.err
    assert first.round == 1
    if what == "resume":
        whole = list(fedquilt.run(method, data, rounds=3, engine="local"))
        assert Results.load(tmp_path / "mine").digests == {("fedavg", 0): whole[-1].digest()}


def test_the_command_says_who_can_go_on_with_objects_of_ones_own(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(200, 64)), np.arange(200) % 10
    method, data = FedAvg(Net(Own), batch_size=64), Federation.from_arrays(x, y, clients=3)
    for _ in fedquilt.run(method, data, rounds=1, folder=tmp_path / "mine", engine="local", callbacks=[Callback()]):
        pass
    assert command("report", tmp_path / "mine").code == 0
    said = command("resume", tmp_path / "mine")
    assert said.code == 2
    assert "its federation: it was not made from a file or a named data set alone" in said.err
    assert "the same call with the same folder=" in said.err
    said = command("export-model", tmp_path / "mine", "--to", tmp_path / "model.safetensors")
    assert said.code == 2
    assert "test_python_studies:Own' is not of this library" in said.err


def test_models_of_a_run_on_arrays_of_ones_own_leave_it(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(200, 64)), np.arange(200) % 10
    data, place = Federation.from_arrays(x, y, clients=3), tmp_path / "mine"
    for _ in fedquilt.run(PAIR["FedAvg"], data, rounds=1, folder=place, engine="local", callbacks=[Callback()]):
        pass
    assert command("export-model", place, "--to", tmp_path / "model.safetensors").code == 0
    assert (tmp_path / "model.safetensors").stat().st_size > 1000
    (place / "result.json").unlink()
    assert "only that script has its federation" in command("resume", place).err


class Own(MLP):
    def __init__(self) -> None:
        super().__init__(features=64, classes=10)


def test_a_recipe_cannot_say_otherwise_what_objects_say(tmp_path: Path) -> None:
    data = Federation.from_source("digits", clients=4)
    for _ in fedquilt.run(PAIR["FedAvg"], data, rounds=1, folder=tmp_path / "mine", engine="local"):
        pass
    said = command("run", tmp_path / "mine/config.toml", "method.mu=1", "data.clients=3")
    assert said.code == 2
    assert "method.mu: a script gave" in said.err
    assert "data: a script gave" in said.err


def test_a_description_from_elsewhere_runs_nothing_but_methods_and_data(tmp_path: Path) -> None:
    data = Federation.from_source("digits", clients=4)
    for _ in fedquilt.run(PAIR["FedAvg"], data, rounds=1, folder=tmp_path / "mine", engine="local"):
        pass
    (tmp_path / "mine/result.json").unlink()
    settings = tmp_path / "mine/config.toml"
    settings.write_text(settings.read_text().replace("fedquilt.pieces.optimizers:SGD", "shutil:rmtree"))
    said = command("resume", tmp_path / "mine")
    assert (said.code, "'shutil:rmtree' is not among the trusted" in said.err) == (2, True)


def test_data_that_were_changed_after_reading_are_the_scripts_own(tmp_path: Path) -> None:
    data = Federation.from_source("digits", clients=4)
    assert data.origin is not None
    assert replace(data, classes=11).origin is None
    assert Federation.from_arrays(np.zeros((40, 3), "float32"), np.arange(40) % 2, clients=2).origin is None


# What is refused


def refused(play: Callable[[], Any]) -> str:
    with pytest.raises(InputError) as found:
        play()
    return str(found.value)


def test_wrong_methods_are_told_all_at_once() -> None:
    assert "should be a dict from names to methods" in refused(lambda: compared(methods=[PAIR["FedAvg"]]))
    assert "no method to compare" in refused(lambda: compared(methods={}))
    odd = {"class": FedAvg, "net": network(), "": PAIR["FedAvg"], "three": 3}
    said = refused(lambda: compared(methods=odd))
    for part in ("the class FedAvg", "is a Net", "'': a name", "'three' is a int"):
        assert part in said


def test_wrong_arguments_are_told_all_at_once() -> None:
    said = refused(lambda: compared(rounds=0, seeds=[1, 1], paience=3))
    for part in ("rounds:", "seeds: the numbers must differ", "paience: unknown argument; did you mean 'patience'?"):
        assert part in said
    assert "seeds:" in refused(lambda: compared(seeds=[]))
    assert "federation should be" in refused(lambda: compared(data=[1, 2]))
    assert "should return a Federation" in refused(lambda: compared(data=lambda seed: seed))


def test_methods_that_do_not_fit_the_data_are_told_before_anything_is_played(tmp_path: Path) -> None:
    few, wide = Net.of(MLP, features=64, classes=7), Net.of(MLP, features=30, classes=10)
    said = refused(lambda: compared(tmp_path / "c", {"few": FedAvg(few), "wide": FedAvg(wide), **PAIR}))
    assert "'few' does not fit the data: The data have 10 classes, and of one row the model makes" in said
    assert "'wide' does not fit the data" in said
    assert not (tmp_path / "c").exists()
    bare = Federation.from_source("digits", clients=4, test=0.0)
    assert "nobody has test samples" in refused(lambda: compared(data=bare))


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (Net.of(MLP, features=64, classes=7), r"The data have 10 classes.* shape \(1, 7\) instead of \(1, 10\)"),
        (Net.of(MLP, features=30, classes=10), r"MLP takes rows of shape \(30,\).*got rows of shape \(1, 8, 8\)"),
        (
            Net(nn.Sequential(nn.Flatten(), nn.Linear(30, 10))),
            r"The model cannot take a row of these data.* It failed: RuntimeError",
        ),
    ],
)
def test_a_run_makes_the_checks_of_the_command(net: Net, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        next(iter(fedquilt.run(FedAvg(net), DATA, rounds=1, engine="local", folder=tmp_path / "run")))
    assert not (tmp_path / "run").exists()


def test_a_run_with_a_score_of_its_own_needs_no_class_scores() -> None:
    def loss(out: Any, params: Any, fixed: Any, batch: Any) -> Any:
        return (logits_of(out)[:, 0] - batch.y).square().mean()

    net = Net.of(MLP, features=64, classes=1)
    method = FedAvg(fedquilt.Objective(net, (loss,)))
    assert next(iter(fedquilt.run(method, DATA, rounds=1, engine="local", score=None))).round == 1


@pytest.mark.usefixtures("no_reports")
def test_folders_of_others_are_refused(tmp_path: Path) -> None:
    compared(tmp_path / "c", seeds=[0])
    other = {"FedAvg": FedAvg(network(), epochs=2)}
    assert "another method or schedule" in refused(lambda: compared(tmp_path / "c", other, seeds=[0]))
    assert "other data" in refused(lambda: compared(tmp_path / "c", data=digits(clients=5), seeds=[0]))
    assert "holds 2 rounds, and 1 are" in refused(lambda: compared(tmp_path / "c", seeds=[0], rounds=1))
    assert "another comparison" in refused(lambda: compared(tmp_path / "c", {"Local": LocalOnly(network())}))
    assert "folder of a run" in refused(lambda: compared(tmp_path / "c/FedAvg-seed0"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").touch()
    assert "is not empty" in refused(lambda: compared(tmp_path / "mine"))
    make = {"mu": [0.1]}
    said = refused(lambda: fedquilt.sweep(lambda mu: PAIR["FedProx"], make, DATA, rounds=1, folder=tmp_path / "c"))
    assert "holds no sweep" in said


def test_what_a_sweep_tries_is_checked() -> None:
    def tried(space: Any, make: Any = lambda mu: FedProx(network(), mu=mu)) -> Any:
        return fedquilt.sweep(make, space, DATA, rounds=1)

    assert "m: your function takes no such argument; did you mean 'mu'?" in refused(lambda: tried({"m": [1]}))
    assert "mu: your function needs it" in refused(lambda: tried({"m": [1]}))
    assert "the values must differ" in refused(lambda: tried({"mu": [1, 1]}))
    assert "space should be a dict" in refused(lambda: tried([0.1]))
    assert "numbers, texts or lists" in refused(lambda: tried({"mu": [SGD(0.1)]}))
    assert "is no method" in refused(lambda: tried({"mu": [1]}, lambda mu: mu))


# What is shown


def test_results_are_frames_and_pictures_and_text(tmp_path: Path) -> None:
    results = compared(tmp_path / "c")
    frame = results.to_pandas()
    assert frame["method"].tolist() == ["FedAvg", "FedProx"]
    assert frame["accuracy"].tolist() == [row["accuracy"] for row in results.rows]
    assert len(results.to_pandas("rounds")) == 8
    assert len(results.to_pandas("runs")) == 4
    assert len(results.to_pandas("clients")) == 2 * 2 * 2 * 4
    assert "'roundz'; did you mean 'rounds'?" in refused(lambda: results.to_pandas("roundz"))
    results.plot().savefig(tmp_path / "curves.pdf")
    text = str(results)
    assert [line.split()[0] for line in text.splitlines()[4:6]] == ["FedAvg", "FedProx"]
    assert "4 of 4 runs finished" in text
    latex = results.to_latex(columns=["accuracy", "megabytes"], caption="Digits", label="tab:digits")
    assert "\\caption{Digits. Test scores in \\%, mean over clients, " in latex
    assert "\\caption{Digits}" in results.to_latex(caption="Digits", explain=False)
    assert latex.count("\\textbf{FedProx}") == 1
    best = results.best()
    assert best["accuracy"] == max(row["accuracy"] for row in results.rows)


def test_pandas_is_asked_for_in_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    results = compared(methods={"FedAvg": PAIR["FedAvg"]}, seeds=[0])
    assert "pip install pandas" in refused(results.to_pandas)


def test_a_notebook_shows_names_as_text() -> None:
    bad = "<img src=x onerror=alert(1)>"
    results = compared(methods={bad: PAIR["FedAvg"]}, seeds=[0])
    html = results._repr_html_()
    assert "<img" not in html
    assert "&lt;img src=x" in html


def test_results_of_nothing_finished_say_so(tmp_path: Path) -> None:
    rounds = fedquilt.run(PAIR["FedAvg"], DATA, rounds=3, folder=tmp_path / "mine", engine="local")
    next(rounds)
    rounds.close()
    found = Results.load(tmp_path / "mine")
    assert "0 of 1 runs finished" in repr(found)
    assert "unfinished: 1 of 3 rounds" in refused(found.table)
    assert "no folder" in refused(lambda: Results.load(tmp_path / "nowhere"))


def test_names_never_share_a_folder(no_reports: None, tmp_path: Path) -> None:
    methods = {"a/b": PAIR["FedAvg"], "a%2Fb": PAIR["FedProx"], "..": LocalOnly(network())}
    found = compared(tmp_path / "runs", methods, rounds=1, seeds=[0])
    assert len({run.folder for run in found.runs}) == 3
    assert {path.parent for path in tmp_path.glob("*/*/result.json")} == {run.folder for run in found.runs}
    with pytest.raises(InputError, match="too long for a folder's"):
        compared(tmp_path / "long", {"\N{GRINNING FACE}" * 40: PAIR["FedAvg"]})
    assert not (tmp_path / "long").exists()


def test_checks_and_attackers_are_objects() -> None:
    with pytest.raises(InputError, match=r"(?s)checks: should be CohortChecks.*got 3.*attackers: should be Attackers"):
        compared(checks=3, attackers="sign_flip")
