"""Clusters of runs: saved, resumed, read again, drawn, used to place newcomers; and a run as CSV files."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedquilt import registry
from fedquilt.analysis.assign import assign
from fedquilt.analysis.csv_export import export_csv
from fedquilt.core.seed import Seed
from fedquilt.data import Federation
from fedquilt.engines.local import Local
from fedquilt.errors import InputError, StorageError
from fedquilt.methods.clustered.flhc import FLHC
from fedquilt.metrics.table import metric
from fedquilt.pieces.clustering.agglomerative import agglomerate
from fedquilt.pieces.clustering.result import ClusterResult, from_labels
from fedquilt.results.clusters import history, load_clusters, save_clusters
from fedquilt.rounds.rounds import Rounds
from fedquilt.runs.outputs import _used_model
from fedquilt.runs.runner import Run, run
from fedquilt.show.cluster_view import cut_between, likeness_picture, river_picture, staircase, tree_picture
from fedquilt.storage.folder import RunFolder
from helpers.clustered import Halves
from helpers.command import SMALL, fedquilt, lines, small, untimed
from helpers.toy import fedavg, linear, points

DELTAS = [[1, 0.1, 0], [2, 0, 0.2], [0, 1, 0.1], [0.1, 3, 0], [0, 0.1, 1], [0.2, 0, 4]]
LOG = "metrics/clusters.jsonl"


def planted() -> Federation:
    """Four clients, of which 0 and 1 are a group."""
    from dataclasses import replace

    return replace(points(6, 6, 6, 6), groups={0: "a", 1: "a", 2: "b", 3: "b"})


def play(folder: Path, rounds: int = 3, **options: Any) -> None:
    for _ in run(Halves(base=fedavg()), planted(), rounds=rounds, engine=Local(), folder=folder, **options):
        pass


def six() -> ClusterResult:
    vectors = {i: torch.tensor(d) for i, d in enumerate(DELTAS)}

    return agglomerate(vectors, threshold=0.5, seed=Seed(0))


# In the folder


def test_a_run_saves_its_clusters_round_by_round(tmp_path: Path) -> None:
    play(tmp_path, evaluate_every=2)
    rows = lines(tmp_path / LOG)
    assert [(r["round"], r["k"], r["churn"]) for r in rows] == [(1, 2, 0.0), (2, 2, 0.25), (3, 2, 0.0)]
    assert rows[0]["labels"] == [[0, 0], [1, 0], [2, 1], [3, 1]]
    assert rows[1]["labels"][1] == [1, 1]
    assert "labels" not in rows[2]
    assert (rows[0]["ari"], rows[0]["nmi"], rows[0]["purity"]) == (1.0, 1.0, 1.0)
    assert rows[1]["purity"] == 0.75
    assert ["clusters" in r for r in rows] == [False, True, True]  # round 2, and the last
    clients = {
        r["client"]: r["accuracy"]
        for r in lines(tmp_path / "metrics" / "clients.jsonl")
        if (r["round"], r["model"], r["split"]) == (3, "deployed", "test")
    }
    first, second = rows[2]["clusters"]
    assert (first["clients"], first["accuracy"]) == (1, clients[0])
    assert second["accuracy"] == pytest.approx(np.mean([clients[c] for c in (1, 2, 3)]))
    assert first["embedding_distance"] == pytest.approx(0.0, abs=1e-6)  # all use the global model
    found = load_clusters(tmp_path)
    assert (found.labels, found.k, found.criterion) == ({0: 0, 1: 1, 2: 1, 3: 1}, 2, "threshold 0.5")
    assert history(rows)[2] == (3, found.labels)


def test_resuming_leaves_the_same_log(tmp_path: Path) -> None:
    play(tmp_path / "whole")
    made = Run(Halves(base=fedavg()), planted(), rounds=3, engine=Local(), folder=RunFolder(tmp_path / "cut"))
    steps = iter(made)
    next(steps)
    next(steps)
    steps.close()  # type: ignore[attr-defined]
    with (tmp_path / "cut" / LOG).open("a") as file:
        file.write('{"round": 99, "k": 1, "churn": 0}\n')  # after the last snapshot
    for _ in Run(Halves(base=fedavg()), planted(), rounds=3, engine=Local(), folder=RunFolder(tmp_path / "cut")):
        pass
    assert lines(tmp_path / "cut" / LOG) == lines(tmp_path / "whole" / LOG)
    assert untimed(lines(tmp_path / "cut" / "metrics" / "rounds.jsonl")) == untimed(
        lines(tmp_path / "whole" / "metrics" / "rounds.jsonl")
    )


def test_a_method_without_clusters_leaves_none(tmp_path: Path) -> None:
    for _ in run(fedavg(), points(6, 6), rounds=1, engine=Local(), folder=tmp_path):
        pass
    assert not (tmp_path / "clusters.json").exists()
    assert not (tmp_path / LOG).exists()
    with pytest.raises(InputError, match="has no clusters"):
        load_clusters(tmp_path)


def test_what_is_saved_is_read_again(tmp_path: Path) -> None:
    saved = six()
    save_clusters(tmp_path, saved, 4)
    found = load_clusters(tmp_path)
    assert (found.labels, found.k, found.order, found.warnings) == (saved.labels, 3, saved.order, saved.warnings)
    assert saved.tree is not None
    assert saved.directions is not None
    assert torch.equal(found.tree, saved.tree)  # type: ignore[arg-type]
    assert torch.equal(found.directions, saved.directions)  # type: ignore[arg-type]
    assert found.measures == {k: v for k, v in saved.measures.items() if math.isfinite(v)}


def test_names_of_clients_keep_their_type(tmp_path: Path) -> None:
    save_clusters(tmp_path, from_labels({"a": 0, 3: 1, "3": 0}, None, "k = 2"), 1)
    assert load_clusters(tmp_path).labels == from_labels({"a": 0, 3: 1, "3": 0}, None, "k = 2").labels
    assert load_clusters(tmp_path).tree is None


def test_damaged_files_are_told(tmp_path: Path) -> None:
    save_clusters(tmp_path, six(), 4)
    arrays = (tmp_path / "clusters.safetensors").read_bytes()
    (tmp_path / "clusters.safetensors").write_bytes(arrays[:-1] + b"\x01")
    with pytest.raises(StorageError, match="fedquilt resume"):
        load_clusters(tmp_path)
    (tmp_path / "clusters.safetensors").write_bytes(arrays)
    whole = json.loads((tmp_path / "clusters.json").read_text())
    for wrong in ("{", "null", "[1]", "{}", "[" * 100_000, json.dumps({**whole, "labels": 5})):
        (tmp_path / "clusters.json").write_text(wrong)
        with pytest.raises(StorageError, match="damaged"):
            load_clusters(tmp_path)


@pytest.mark.parametrize("wrong", ["null", "{}", "[" * 100_000])
def test_damaged_clusters_end_neither_a_resume_nor_a_look(tmp_path: Path, wrong: str) -> None:
    recipe = small(tmp_path, SMALL + '[method]\nkind = "ifca"\nn_clusters = 2\n')
    folder = Path(fedquilt("run", recipe, "--json").json["folder"])
    (folder / "clusters.json").write_text(wrong)
    for command in ("resume", "report"):
        said = fedquilt(command, folder)
        assert said.code == 0, said.err
    looked = fedquilt("clusters", folder)
    assert (looked.code, "is damaged" in looked.err) == (4, True), looked


# Pictures


def test_staircase_and_cut_of_the_planted_tree() -> None:
    tree = six().tree
    assert tree is not None
    steps = staircase(tree)
    assert [k for _, k in steps] == [6, 5, 4, 3, 2, 1]
    assert [t for t, _ in steps] == pytest.approx([0, 0.005515, 0.006204, 0.009901, 0.900372, 0.927209], abs=1e-6)
    assert cut_between(tree, 3) == pytest.approx((0.009901, 0.900372), abs=1e-6)
    assert cut_between(tree, 6)[0] == 0
    assert cut_between(tree, 1)[1] > 0.927209


def numbers(path: Path) -> list[list[str]]:
    with path.open() as file:
        return list(csv.reader(file))


def test_pictures_come_with_their_numbers(tmp_path: Path) -> None:
    found = six()
    tree, likeness = tree_picture(found, tmp_path / "tree"), likeness_picture(found, tmp_path / "likeness")
    river = river_picture([(1, {0: 0, 1: 0, 2: 1}), (2, {0: 0, 1: 1, 2: 1})], tmp_path / "river")
    for path in (tree, likeness, river):
        assert path is not None
        assert path.read_bytes()[:4] == b"\x89PNG"
        assert "<svg" in path.with_suffix(".svg").read_text()
    assert len(numbers(tmp_path / "tree.csv")) == 7
    matrix = numbers(tmp_path / "likeness.csv")
    assert [row[:2] for row in matrix[1:]] == [[str(i), str(i // 2)] for i in range(6)]
    assert float(matrix[1][3]) == pytest.approx(0.009901, abs=1e-6)
    assert numbers(tmp_path / "river.csv")[1:] == [
        ["1", "0", "0"],
        ["1", "1", "0"],
        ["1", "2", "1"],
        ["2", "0", "0"],
        ["2", "1", "1"],
        ["2", "2", "1"],
    ]


def test_what_cannot_be_drawn_is_not(tmp_path: Path) -> None:
    flat = from_labels({0: 0, 1: 1}, None, "k = 2")
    assert tree_picture(flat, tmp_path / "t") is None
    assert likeness_picture(flat, tmp_path / "l") is None
    assert river_picture([], tmp_path / "r") is None
    assert not list(tmp_path.iterdir())


def test_a_single_client_and_many_rounds_can_be_drawn(tmp_path: Path) -> None:
    one = ClusterResult({0: 0}, 1, "auto", tree=torch.zeros(0, 4, dtype=torch.float64), order=(0,))
    assert tree_picture(one, tmp_path / "t") is None
    assert likeness_picture(one, tmp_path / "l") is None
    rounds = [(r, {0: r // 60, 1: 1}) for r in range(1, 121)]
    assert river_picture(rounds, tmp_path / "r") is not None
    assert len(numbers(tmp_path / "r.csv")) == 241  # every round is in the numbers


# Commands


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe whose method is that of the tests."""
    entry = registry.RegistryEntry("halves", "helpers.clustered:halves", "for tests")
    monkeypatch.setitem(registry.METHODS, "halves", entry)
    return small(tmp_path)


@pytest.mark.parametrize(("directions", "rule"), [("true", "direction"), ("false", "loss")])
def test_clusters_assign_and_csv(recipe: Path, tmp_path: Path, directions: str, rule: str) -> None:
    asked = ["method.kind=halves", f"method.directions={directions}", "evaluate.local=true"]
    folder = fedquilt("run", recipe, *asked, "--json").json["folder"]
    said = fedquilt("clusters", folder, "--json")
    assert said.code == 0, said
    assert [c["members"] for c in said.json["clusters"]] == [[0], [1, 2, 3]]
    assert said.json["moved"] == {"2": 0.25}
    pictures = {"tree.png", "likeness.png", "river.png"} if rule == "direction" else {"river.png"}
    assert {Path(p).name for p in said.json["pictures"]} == pictures
    if rule == "loss":
        told = fedquilt("clusters", folder, "--to", tmp_path / "seen")
        assert (told.code, "2 clusters" in told.out, "round 2 25 %" in told.out) == (0, True, True)

    new = tmp_path / "new.npz"
    np.savez(new, x=np.zeros((6, 1, 8, 8), np.float32), y=np.array([0, 0, 0, 0, 1, 2]))
    placed = fedquilt("assign", folder, "--data", new, "--json")
    assert placed.code == 0, placed
    assert (placed.json["cluster"], placed.json["rule"]) == (0, rule)
    if rule == "direction":  # 1 - cos of the newcomer and cluster 0's only member is 0; cluster 1 is far
        assert placed.json["distance"] == pytest.approx(0, abs=1e-6)
        assert placed.json["margin"] > 0.9
    else:  # both clusters use one model here
        assert (placed.json["margin"], placed.json["ambiguous"]) == (0.0, True)
    assert fedquilt("assign", folder, "--data", new).code == 0
    wrong = fedquilt("assign", folder, "--data", tmp_path / "none.npz")
    assert wrong.code == 2
    np.savez(tmp_path / "bare.npz", x=np.zeros((6, 1, 8, 8), np.float32))
    bare = fedquilt("assign", folder, "--data", tmp_path / "bare.npz")
    assert (bare.code, "have no labels" in bare.err, "x and y" in bare.err) == (2, True, True), bare

    out = fedquilt("csv", folder, "--to", tmp_path / "tables", "--json").json
    assert (out["rounds"], out["clients"], out["clusters"]) == (3, 4, True)
    twice = fedquilt("csv", folder, "--to", tmp_path / "tables")
    assert (twice.code, "is not empty" in twice.err) == (2, True)
    server = numbers(tmp_path / "tables" / "server_metrics.csv")
    assert server[0] == ["round", "mean_acc", "std_acc", "mean_loss"]
    client = numbers(tmp_path / "tables" / "client_0" / "metrics.csv")
    assert client[0] == ["round", "loss", "accuracy_before", "accuracy_after", "energy_consumed", "energy_ratio"]
    assert [row[0] for row in client[1:]] == ["1", "2", "3"]
    deployed = [numbers(tmp_path / "tables" / f"client_{c}" / "deployed.csv") for c in range(4)]
    assert deployed[0][0] == ["round", "model", "selected", "deployed_accuracy", "deployed_loss"]
    assert {row[1] for row in deployed[0][1:]} == {"local"}
    accuracies = [float(rows[-1][3]) for rows in deployed]
    assert float(server[-1][1]) == pytest.approx(np.mean(accuracies), abs=1e-6)
    assert float(server[-1][2]) == pytest.approx(np.std(accuracies), abs=1e-6)
    header = numbers(tmp_path / "tables" / "cluster_metrics.csv")[0]
    assert header == ["round", "cluster", "n_clients", "mean_acc", "omega_phi_dist", "lambda"]


def test_how_strongly_clusters_share_is_in_the_tables(recipe: Path, tmp_path: Path) -> None:
    """HCFL: lambda(t) = 1 / (1 + t/10) from the discovery on, here before round 2; and every score beside accuracy."""
    asked = ["model.kind=mlp", "method.kind=hcfl", "method.initial_rounds=1", "method.n_clusters=2"]
    asked += ["method.lambda_0=1.0", "method.lambda_alpha=0.1", "method.lambda_p=1.0", "method.sharing_by=same"]
    said = fedquilt("run", recipe, *asked, "--json")
    assert said.code == 0, said
    fedquilt("csv", said.json["folder"], "--to", tmp_path / "tables")
    rows = numbers(tmp_path / "tables" / "cluster_metrics.csv")[1:]
    assert [(r[0], r[1], r[5]) for r in rows] == [
        ("2", "0", "1.000000"),
        ("2", "1", "1.000000"),
        ("3", "0", "0.909091"),
        ("3", "1", "0.909091"),
    ]
    clusters = fedquilt("clusters", said.json["folder"], "--json").json["clusters"]
    assert [c["lambda"] for c in clusters] == pytest.approx([1 / 1.1] * 2)
    assert all(0 <= c[n] <= 1 for c in clusters for n in ("balanced_accuracy", "macro_f1", "majority_class"))
    told = fedquilt("clusters", said.json["folder"]).out
    assert "attack" not in told  # nobody attacked, and so no column is of it
    assert "lambda" in told
    for cluster in clusters:
        for name in ("accuracy", "macro_f1"):
            assert f"{100 * cluster[name]:.1f} ± {100 * cluster[f'{name}_rows_half_95']:.1f}" in told
    assert "0.909" in told


@pytest.mark.parametrize("kind", ["flhc", "ifca"])
def test_rows_of_another_shape_have_no_cluster(recipe: Path, tmp_path: Path, kind: str) -> None:
    """By direction, where the client trains, and by loss."""
    folder = fedquilt("run", recipe, f"method={{kind='{kind}', n_clusters=2}}", "rounds=5", "--json").json["folder"]
    np.savez(tmp_path / "new.npz", x=np.zeros((6, 1, 9, 9), np.float32), y=np.array([0, 0, 0, 0, 1, 2]))
    wrong = fedquilt("assign", folder, "--data", tmp_path / "new.npz")
    assert (wrong.code, "of shape (1, 9, 9), do not fit the run's model" in wrong.err) == (2, True)


def test_clients_that_were_not_asked_are_in_the_tables_once_a_round(tmp_path: Path) -> None:
    from fedquilt.core.exchange import at_random

    for _ in run(fedavg(cohort=at_random(1)), points(6, 6), rounds=3, engine=Local(), folder=tmp_path / "run"):
        pass
    export_csv(tmp_path / "run", tmp_path / "out")
    tables = [numbers(tmp_path / "out" / f"client_{c}" / "metrics.csv") for c in (0, 1)]
    deployed = [numbers(tmp_path / "out" / f"client_{c}" / "deployed.csv") for c in (0, 1)]
    assert [[row[0] for row in t[1:]] for t in [*tables, *deployed]] == [["1", "2", "3"]] * 4
    chosen = np.array([[int(row[2]) for row in t[1:]] for t in deployed])
    assert chosen.sum(0).tolist() == [1, 1, 1]
    for table, beside in zip(tables, deployed, strict=True):
        for row, own in zip(table[1:], beside[1:], strict=True):
            assert row[2] == row[3] == own[3]  # without evaluate.local: the model it would use
            assert own[1] == "deployed"
    assert not (tmp_path / "out" / "cluster_metrics.csv").exists()


def test_questions_that_cannot_be_answered(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no evaluated round"):
        export_csv(tmp_path, tmp_path / "out")
    with pytest.raises(InputError, match="has no clusters"):
        assign(tmp_path, tmp_path / "x.npz")
    assert fedquilt("clusters", tmp_path).code == 2


def test_the_majority_baseline_stands_beside_accuracies(recipe: Path) -> None:
    said = fedquilt("run", recipe, "rounds=1")
    folder = Path(said.out.splitlines()[-1].removeprefix("folder "))
    result = json.loads((folder / "result.json").read_text())
    assert 0.1 < result["majority_class"] < 1
    assert "majority class, mean over clients" in said.out
    least = metric("accuracy").written(result["majority_class"], result["majority_half_95"])
    assert least in said.out
    numbers = result["last"]
    for key in ("test_accuracy", "test_accuracy_worst10", "test_balanced_accuracy", "test_macro_f1"):
        assert f"{100 * numbers[key]:.1f} ± {100 * numbers[f'{key}_rows_half_95']:.1f}" in said.out
    assert result["energy"]["source"] in ("none", "rapl", "nvml", "rapl+nvml")


def test_where_states_stay_at_their_sites_clusters_still_have_models() -> None:
    """A real federation: the server has no client's state, but every cluster's model."""
    rounds = Rounds(FLHC(linear(), initial_rounds=0, n_clusters=2), points(6, 6, 6), Local(), Seed(0))
    rounds.play()
    rounds.engine = SimpleNamespace(keeps_states=True)  # type: ignore[assignment]
    for client, label in rounds.state.clusters.labels.items():
        found = _used_model(rounds, client)
        assert all(torch.equal(t, found[n]) for n, t in rounds.state.models[label].items())
