"""Models of a run as others load them, and their answers to new rows: from the folder alone."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

import fedquilt
from fedquilt.analysis import export
from fedquilt.analysis.assign import assign
from fedquilt.analysis.run_models import RunModels
from fedquilt.config.config import Config, parse
from fedquilt.config.data import federation_of
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch
from fedquilt.data.imports import of_csv
from fedquilt.engines.local import Local
from fedquilt.errors import FrameError, InputError, SnapshotError
from fedquilt.methods.fedavg import FedAvg
from fedquilt.models import MLP, make
from fedquilt.runs.build import run_of
from fedquilt.runs.inputs import FILE
from fedquilt.storage.logs import CLIENTS, read
from fedquilt.testing import digits, network
from helpers import clinics
from helpers.command import fedquilt as command

BATCH_NORM = {"kind": "resnet10", "norm": "batch", "width": 4}


def played(folder: Path, rounds: int = 2, stop: int = 99, **settings: Any) -> Path:
    """A small run in this folder, perhaps left after some rounds."""
    data = {"clients": 3, "limit": 300, "partition": {"kind": "iid"}, **settings.pop("data", {})}
    given = {"rounds": rounds, "data": data, "snapshot": {"seconds": 0}, "engine": {"capture": False}, **settings}
    for snapshot in run_of(Config.model_validate(given), Local(), folder):
        if snapshot.round == stop:
            break
    return folder


def of_recipe(folder: Path) -> Any:
    """The data of a run, made anew by its recipe."""
    return federation_of(RunModels.of(folder).config)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of an MLP, a network with BatchNorm, clusters, and heads that stay at home."""
    base = tmp_path_factory.mktemp("runs")
    played(base / "mlp", model={"kind": "mlp", "hidden": [8]})
    played(base / "norm", model=BATCH_NORM, method={"kind": "fedbn"}, rounds=1)
    apart = {"partition": {"kind": "shards", "per_client": 2}}
    played(base / "ifca", model={"kind": "logistic"}, method={"kind": "ifca", "n_clusters": 2}, data=apart)
    played(base / "fedper", model={"kind": "mlp", "hidden": [8]}, method={"kind": "fedper"})
    played(base / "fedproto", model={"kind": "mlp", "hidden": [8]}, method={"kind": "fedproto"}, rounds=1)
    return base


def rows(count: int = 7, shape: tuple[int, ...] = (1, 8, 8)) -> torch.Tensor:
    return torch.rand(count, *shape, generator=Seed(0).torch())


# As modules and state dicts


@pytest.mark.parametrize(
    ("run", "model"), [("mlp", "global"), ("mlp", "best"), ("norm", "client:1"), ("ifca", "cluster:0")]
)
def test_a_state_dict_is_the_modules_own(runs: Path, tmp_path: Path, run: str, model: str) -> None:
    """A module made by hand takes it strictly, buffers included, and computes the same bits."""
    made = fedquilt.export_model(runs / run, tmp_path / "model.safetensors", model)
    config = RunModels.of(runs / run).config
    module = make(config.model.kind, (1, 8, 8), 10, **config.model.options)()
    module.load_state_dict(load_file(made.path), strict=True)
    loaded = fedquilt.load_model(runs / run, model)
    assert not loaded.training
    assert module.state_dict().keys() == loaded.state_dict().keys()
    with torch.inference_mode():
        assert torch.equal(module.eval()(rows()), loaded(rows()))
    with safe_open(made.path, framework="pt") as file:
        told = json.loads(file.metadata()["fedquilt"])
    assert told == made.facts
    assert (told["of"], told["round"], told["input"]) == (
        model,
        made.facts["round"],
        {"shape": [1, 8, 8], "dtype": "float32"},
    )


def test_buffers_are_those_of_the_client(runs: Path) -> None:
    """FedBN: every client's statistics are its own, and the count of its batches is among them."""
    one, other = (fedquilt.load_model(runs / "norm", f"client:{i}").state_dict() for i in (0, 1))
    means = [n for n in one if n.endswith("running_mean")]
    assert means
    assert all(not torch.equal(one[n], other[n]) and one[n].abs().sum() > 0 for n in means)
    assert all(int(one[n]) > 0 for n in one if n.endswith("num_batches_tracked"))
    assert torch.equal(one["head.weight"], other["head.weight"])


def test_the_global_model_is_the_one_that_the_run_saved(runs: Path) -> None:
    saved = load_file(runs / "mlp/models/global.safetensors")
    found = fedquilt.load_model(runs / "mlp").state_dict()
    assert saved.keys() == found.keys()
    assert all(torch.equal(saved[n], found[n]) for n in saved)


def test_clusters_and_their_members_have_one_model(runs: Path) -> None:
    labels = json.loads((runs / "ifca/clusters.json").read_text())["labels"]
    assert {cluster for _, cluster in labels} == {0, 1}
    run = RunModels.of(runs / "ifca")
    for client, cluster in labels:
        shared, mine = (run.model(name).params for name in (f"cluster:{cluster}", f"client:{client}"))
        assert all(torch.equal(shared[n], mine[n]) for n in shared)


def test_heads_that_stay_at_home(runs: Path) -> None:
    one, other = (fedquilt.load_model(runs / "fedper", f"client:{i}").state_dict() for i in (0, 1))
    assert all(torch.equal(one[n], other[n]) for n in one if n.startswith("features."))
    assert not torch.equal(one["head.weight"], other["head.weight"])


@pytest.mark.parametrize(
    ("run", "model", "message"),
    [
        ("fedper", "global", "fedper has no global model. Available: client:0, client:1, client:2."),
        ("fedper", "best", "has no best model. Available: client:0"),
        ("mlp", "cluster:0", "has no clusters. Available: global, best, client:0"),
        ("ifca", "cluster:7", r"There is no cluster 7. There are: cluster:0"),
        ("mlp", "client:7", "There is no client '7'. There are: global, best, client:0, client:1, client:2."),
        ("mlp", "globl", r"no model 'globl'; did you mean 'global'\?"),
        ("mlp", "client", "There is no model 'client'"),
    ],
)
def test_models_that_are_not_there(runs: Path, run: str, model: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        fedquilt.load_model(runs / run, model)


def test_an_unfinished_run_says_which_round_it_is(tmp_path: Path) -> None:
    folder = played(tmp_path / "run", rounds=3, stop=1, model={"kind": "logistic"})
    with pytest.warns(UserWarning, match="snapshot after round 1 of 3"):
        fedquilt.load_model(folder)
    assert "round 1 of 3" in fedquilt.export_model(folder, tmp_path / "a.safetensors").notes[0]
    assert fedquilt.predict(folder, np.zeros((1, 1, 8, 8), np.float32)).note
    for path in (folder / "snapshots").iterdir():
        path.unlink()
    with pytest.raises(SnapshotError, match=r"no snapshot yet\. Run it"):
        fedquilt.load_model(folder)
    with pytest.raises(InputError, match=r"has no config\.toml"):
        fedquilt.load_model(tmp_path)


def test_what_answers_otherwise_than_its_network_says_so(runs: Path, tmp_path: Path) -> None:
    """FedProto's answer is the nearest prototype, so the network alone is not the whole of it."""
    with pytest.warns(UserWarning, match="more than the network's scores"):
        fedquilt.load_model(runs / "fedproto", "client:0")
    pytest.importorskip("onnxruntime")
    with pytest.raises(InputError, match="would give other predictions"):
        fedquilt.export_model(runs / "fedproto", tmp_path / "a.onnx", "client:0")


def test_files_are_not_replaced_unasked(runs: Path, tmp_path: Path) -> None:
    fedquilt.export_model(runs / "mlp", tmp_path / "a.safetensors")
    with pytest.raises(InputError, match=r"exists\. Give another name, or --force"):
        fedquilt.export_model(runs / "mlp", tmp_path / "a.safetensors")
    assert fedquilt.export_model(runs / "mlp", tmp_path / "a.safetensors", "best", force=True).facts["of"] == "best"
    with pytest.raises(InputError, match=r"ends in no known way\. The formats are safetensors, onnx, hf"):
        fedquilt.export_model(runs / "mlp", tmp_path / "a.bin")
    with pytest.raises(InputError, match="did you mean 'onnx'"):
        fedquilt.export_model(runs / "mlp", tmp_path / "a.bin", format="onx")
    with pytest.raises(InputError, match="mlp is not a transformers model"):
        fedquilt.export_model(runs / "mlp", tmp_path / "a", format="hf")


# Answers


@pytest.mark.parametrize("run", ["mlp", "norm", "ifca", "fedper", "fedproto"])
def test_answers_are_those_that_the_run_was_scored_by(runs: Path, tmp_path: Path, run: str) -> None:
    """Each client's model on its own test samples has the accuracy that the last round wrote down."""
    last = [r for r in read(runs / run, CLIENTS) if r["model"] == "deployed" and r["split"] == "test"]
    scored, federation = {r["client"]: r["accuracy"] for r in last}, of_recipe(runs / run)
    for client in (0, 2):
        held = federation.evaluation(client, "test")
        x, y = (held.columns[n][held.all_rows()].numpy() for n in ("x", "y"))
        np.savez(tmp_path / "test.npz", x=x, y=y)
        found = fedquilt.predict(runs / run, tmp_path / "test.npz", f"client:{client}")
        assert found.accuracy == scored[client]
        assert fedquilt.predict(runs / run, x, f"client:{client}").classes.equal(found.classes)


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def named(path: Path, count: int, seed: int, labelled: bool = True) -> Path:
    """The hospitals' table with names for labels."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(clinics.HEADER if labelled else clinics.HEADER[:-1])
        for row in clinics.rows(count, seed):
            writer.writerow((*row[:-1], ("healthy", "ill")[int(row[-1])]) if labelled else row[:-1])
    return path


def test_raw_tables_are_prepared_as_in_training(tmp_path: Path) -> None:
    """Standardised by the numbers and encoded by the categories of training, which new rows alone cannot tell; the
    run's own table is gone."""
    own = named(tmp_path / "own.csv", 240, seed=0)
    folder = played(tmp_path / "run", rounds=6, data={"path": str(own), "user": "site", "clients": None, "limit": None})
    run, prepare = RunModels.of(folder), of_recipe(folder).prepare
    own.unlink()
    new = named(tmp_path / "new.csv", 60, seed=5)
    found = fedquilt.predict(folder, new)
    stored = of_csv(new, user="site")
    scores = run.learned.method.predict(run.model().params, Batch(prepare({"x": torch.from_numpy(stored.x)})))
    assert torch.equal(found.probabilities, scores.softmax(1).detach())
    assert found.accuracy == float((scores.argmax(1).numpy() == stored.y).mean()) > 0.8
    row = table(found.csv())[0]
    assert row["name"] == found.labels[0] == ("healthy", "ill")[int(row["class"])]
    assert float(row["confidence"]) == max(float(row["p(healthy)"]), float(row["p(ill)"]))
    frame = pyarrow.table({n: [row[n] for row in table(new.read_text())] for n in clinics.HEADER})
    assert torch.equal(fedquilt.predict(folder, frame).probabilities, found.probabilities)
    bare = fedquilt.predict(folder, named(tmp_path / "bare.csv", 60, seed=5, labelled=False))
    assert bare.accuracy is None
    assert torch.equal(bare.probabilities, found.probabilities)


def test_tables_that_are_others(tmp_path: Path) -> None:
    own = named(tmp_path / "own.csv", 90, seed=0)
    data = {"path": str(own), "user": "site", "clients": None, "limit": None}
    folder = played(tmp_path / "run", rounds=1, data=data)
    text = own.read_text()
    for changed, message in (
        (text.replace("glucose", "sugar", 1), "has no column 'glucose', which the run's table had. It has age, sugar"),
        (
            text.replace("healthy", "heathy"),
            r"'heathy'; did you mean 'healthy'\? The run knows the classes healthy, ill",
        ),
        (text.splitlines()[0] + "\n", "has no rows below a header"),
    ):
        (tmp_path / "other.csv").write_text(changed)
        with pytest.raises(InputError, match=message):
            fedquilt.predict(folder, tmp_path / "other.csv")
    with pytest.raises(InputError, match="those of the run had 5 columns of floats"):
        fedquilt.predict(folder, np.zeros((2, 4), np.float32))
    with pytest.raises(InputError, match="kept no vocabulary"):
        fedquilt.predict(folder, ["one text"])
    as_they_are = played(
        tmp_path / "raw",
        1,
        data={**data, "standardise": False, "features": ["glucose", "income"]},
        train={"optimizer": {"kind": "sgd", "lr": 1e-9}},
    )
    assert not (as_they_are / "preparation.json").exists()
    assert len(fedquilt.predict(as_they_are, own).names) == 90


def test_texts_are_numbered_by_the_runs_vocabulary(tmp_path: Path) -> None:
    """Alone, a new text would number its words otherwise. Words that the run never saw are unknown."""
    draw = Seed(0).numpy()
    path = tmp_path / "own.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("title", "body", "label"))
        for label in draw.integers(2, size=200):
            filler = " ".join(draw.choice(["the", "film", "was", "seen"], size=4))
            writer.writerow(("about", f"{filler} {('dull', 'great')[label]}", ("bad", "good")[label]))
    data = {"path": str(path), "text": ["title", "body"], "length": 8, "words": 12, "limit": None}
    model = {"kind": "text_cnn", "vocab": 12, "width": 8, "maps": 8}
    folder = played(tmp_path / "run", rounds=6, data=data, model=model, train={"optimizer": {"kind": "sgd", "lr": 0.5}})
    clusters = played(tmp_path / "ifca", 1, data=data, model=model, method={"kind": "ifca", "n_clusters": 2})
    path.unlink()
    texts = ["about the film was great", "about the film was dull", "great quokka", "dull"]
    found = fedquilt.predict(folder, texts)
    assert found.labels == ["good", "bad", "good", "bad"]
    (tmp_path / "new.csv").write_text(
        "label,body,title\n" + "".join(f"{c},{t[6:]},about\n" for c, t in zip(("good", "bad"), texts, strict=False))
    )
    (tmp_path / "new.txt").write_text("\n".join(texts) + "\n")
    tabled = fedquilt.predict(folder, tmp_path / "new.csv")
    assert torch.equal(tabled.probabilities, found.probabilities[:2])
    assert tabled.accuracy == 1
    assert assign(clusters, tmp_path / "new.csv").cluster in (0, 1)
    assert torch.equal(fedquilt.predict(folder, tmp_path / "new.txt").probabilities, found.probabilities)
    (tmp_path / "new.csv").write_text("body\nfine\n")
    with pytest.raises(InputError, match=r"has no column 'title', the run's text\. It has body"):
        fedquilt.predict(folder, tmp_path / "new.csv")


def pictures(folder: Path, count: int, side: int, seed: int) -> Path:
    """Dark cats and light dogs, as grey images."""
    draw = Seed(seed).numpy()
    for name, low in (("cat", 0), ("dog", 150)):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            Image.fromarray(draw.integers(low, low + 100, (side, side), np.uint8)).save(folder / name / f"{i}.png")
    return folder


def test_images_are_resized_and_normalised_as_in_training(tmp_path: Path) -> None:
    """By numbers that training samples gave; folders named as classes are labels."""
    own = pictures(tmp_path / "own", 40, 12, seed=0)
    transforms = [{"kind": "resize", "size": 8}, {"kind": "normalise"}, {"kind": "random_flip"}]
    data = {"path": str(own), "size": 10, "limit": None, "transforms": transforms}
    folder = played(tmp_path / "run", rounds=4, data=data)
    prepare = of_recipe(folder).prepare
    assert RunModels.of(folder).inputs.preparer == prepare
    for file in own.rglob("*.png"):
        file.unlink()
    found = fedquilt.predict(folder, pictures(tmp_path / "new", 5, 20, seed=1))
    assert found.names[0] == "cat/0.png"
    assert found.accuracy == 1.0
    assert found.labels == ["cat"] * 5 + ["dog"] * 5
    (tmp_path / "new" / "dog").rename(tmp_path / "new" / "wolf")
    assert fedquilt.predict(folder, tmp_path / "new").accuracy is None
    with pytest.raises(InputError, match=r"The rows are uint8 of shape \(1, 9, 9\), those of the run were uint8"):
        fedquilt.predict(folder, np.zeros((1, 9, 9), np.uint8))


def test_folders_of_earlier_versions_tell_it_by_their_recipe(runs: Path, tmp_path: Path) -> None:
    folder = played(tmp_path / "run", rounds=1, model={"kind": "logistic"})
    before = fedquilt.predict(folder, rows()).probabilities
    kept = (folder / FILE).read_text()
    (folder / FILE).unlink()
    assert torch.equal(fedquilt.predict(folder, rows()).probabilities, before)
    (folder / FILE).write_text(kept[:30])
    with pytest.raises(SnapshotError, match=r"inputs.json' is damaged"):
        fedquilt.predict(folder, rows())
    told = json.loads(kept)
    told["prepare"] = {"make": "os:system", "args": ["true"], "kwargs": {}}
    (folder / FILE).write_text(json.dumps(told))
    with pytest.raises(InputError, match="'os:system' is not among the trusted"):
        fedquilt.predict(folder, rows())


OWN = """
import torch
from torch import nn


class Mine(nn.Module):
    def __init__(self, features, classes, width=4, counts=False):
        super().__init__()
        self.counts, self.inner, self.norm = counts, nn.Linear(features, width), nn.BatchNorm1d(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        rows = len(x) if self.counts else x.shape[0]
        return self.head(self.norm(self.inner(x.reshape(rows, -1))))
"""


def test_a_network_of_ones_own_leaves_by_the_runs_copy_of_its_file(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(OWN)
    model = {"kind": f"{own}:Mine", "width": 3}
    folder = played(tmp_path / "run", rounds=1, model=parse({"model": model}).model.model_dump())
    own.unlink()
    made = fedquilt.export_model(folder, tmp_path / "a.safetensors")
    space: dict[str, Any] = {}
    exec(OWN, space)
    mine = space["Mine"](features=64, classes=10, width=3)
    mine.load_state_dict(load_file(made.path), strict=True)
    with torch.inference_mode():
        scores = mine.eval()(rows())
        assert torch.equal(scores, fedquilt.load_model(folder)(rows()))
    assert torch.allclose(fedquilt.predict(folder, rows()).probabilities, scores.softmax(1))
    assert made.facts["model"] == "Mine"


def test_a_network_that_counts_its_rows_is_told_how_to_leave_as_onnx(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "own.py").write_text(OWN)
    model = parse({"model": {"kind": f"{tmp_path}/own.py:Mine", "counts": True}}).model.model_dump()
    folder = played(tmp_path / "run", rounds=1, model=model)
    with pytest.raises(InputError, match=r"fixes the number of rows: write x\.shape\[0\] there, not len\(x\)"):
        fedquilt.export_model(folder, tmp_path / "a.onnx")


class Tiny(nn.Sequential):
    """A network that only this file has."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 10))


def test_models_of_a_run_that_a_script_began(tmp_path: Path) -> None:
    """Its data are arrays and nowhere else; a network of the library needs no more than the folder, one of the
    script's own needs its method."""
    draw = Seed(0).numpy()
    x, y = draw.normal(size=(60, 1, 8, 8)).astype(np.float32), draw.integers(10, size=60)
    data = fedquilt.Federation.from_arrays(x, y, clients=3)
    for name, net in (("library", fedquilt.Net.of(MLP, features=64, classes=10)), ("own", fedquilt.Net(Tiny))):
        method, folder = fedquilt.FedAvg(net), tmp_path / name
        for snapshot in fedquilt.run(method, data, rounds=1, engine="local", folder=folder):
            wanted = snapshot.global_model()
        given = {} if name == "library" else {"method": method}
        loaded = fedquilt.load_model(folder, **given)
        assert all(torch.equal(t, wanted[n]) for n, t in loaded.state_dict().items())
        assert torch.equal(
            fedquilt.predict(folder, x, "client:1", **given).classes, loaded(torch.from_numpy(x)).argmax(1)
        )
        made = fedquilt.export_model(folder, tmp_path / f"{name}.safetensors", **given)
        assert made.facts["model"] == type(loaded).__name__
    with pytest.raises(
        InputError, match=r"only that script has its method: .*give the method: load_model\(folder, method="
    ):
        fedquilt.load_model(tmp_path / "own")


# The command


def test_the_commands(runs: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "new.npz", x=rows().numpy())
    place = tmp_path / "client.safetensors"
    made = command("export-model", runs / "fedper", "--model", "client:1", "--to", place)
    assert "takes float32 rows of shape [1, 8, 8] (as they are); classes: 10" in made.out
    assert "head.weight" in load_file(place)
    told = command("predict", runs / "fedper", tmp_path / "new.npz", "--model", "client:1", "--to", tmp_path / "a.csv")
    assert re.fullmatch(rf"Wrote {tmp_path}/a.csv: predictions for 7 rows: (\d of class \d(, )?)+\n", told.out)
    assert len(table((tmp_path / "a.csv").read_text())) == 7
    wrong = command("predict", runs / "fedper", tmp_path / "new.npz", "--client", "1")
    assert wrong.code == 2
    assert "--model client:1" in wrong.err


# ONNX


@pytest.mark.parametrize(("run", "model"), [("norm", "client:1"), ("ifca", "cluster:0"), ("mlp", "global")])
def test_onnx_computes_the_same_for_any_number_of_rows(runs: Path, tmp_path: Path, run: str, model: str) -> None:
    runtime = pytest.importorskip("onnxruntime")
    made = fedquilt.export_model(runs / run, tmp_path / "model.onnx", model)
    assert made.difference is not None
    assert made.difference < 1e-5
    session = runtime.InferenceSession(made.path, providers=["CPUExecutionProvider"])
    loaded = fedquilt.load_model(runs / run, model)
    for count in (1, 3, 64):
        (scores,) = session.run(None, {"x": rows(count).numpy()})
        with torch.inference_mode():
            assert np.allclose(scores, loaded(rows(count)), atol=1e-5)
    told = json.loads(session.get_modelmeta().custom_metadata_map["fedquilt"])
    assert told["of"] == model


def test_onnx_says_what_is_missing(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("onnx", "onnxruntime", "onnxscript"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=r"pip install 'fedquilt\[onnx\]'"):
        fedquilt.export_model(runs / "mlp", tmp_path / "a.onnx")
    assert not (tmp_path / "a.onnx").exists()


def test_a_wrong_translation_is_not_written(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    true = export._apart
    monkeypatch.setattr(export, "_apart", lambda session, scores, x: true(session, lambda v: scores(v) + 0.1, x))
    with pytest.raises(InputError, match="is not written: as ONNX the model's scores differ"):
        fedquilt.export_model(runs / "mlp", tmp_path / "a.onnx")
    assert not (tmp_path / "a.onnx").exists()


class Own(FedAvg):
    """A method that only the script has which began the run."""


def test_a_run_whose_state_only_its_script_can_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method = Own(network())
    for _ in fedquilt.run(method, digits(clients=3), rounds=1, folder=tmp_path / "run", engine="local"):
        pass

    def unknown(*_: Any) -> Any:
        raise FrameError("another process knows no such class")

    monkeypatch.setattr("fedquilt.storage.folder.unpack", unknown)
    said = command("export-model", tmp_path / "run", "--to", tmp_path / "x.safetensors")
    assert said.code == 2
    assert "A script began this run, and only that script has its method" in said.err
    with pytest.raises(SnapshotError, match="can be used: they are damaged"):
        fedquilt.load_model(tmp_path / "run", method=method)


def test_of_a_folder_of_several_runs_those_inside_are_listed(tmp_path: Path) -> None:
    for name in ("b-seed0", "a-seed0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.toml").touch()
    said = command("export-model", tmp_path, "--to", tmp_path / "x.safetensors")
    assert said.code == 2
    assert f"The runs inside are a-seed0, b-seed0; take one, '{tmp_path}/a-seed0'." in said.err
