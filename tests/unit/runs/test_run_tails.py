"""Realigning, scoring and using a run under a long tail, from its folder."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedquilt.analysis.heads import PlayedRun
from fedquilt.analysis.modes import load_mode, predict, realigned
from fedquilt.analysis.tails import evaluate, groups_of
from fedquilt.config.config import Config, parse
from fedquilt.config.data import federation_of
from fedquilt.core.table import Batch
from fedquilt.errors import InputError, StorageError
from fedquilt.pieces.realign import Realign, masked
from fedquilt.runs.build import engine_of, run_of
from helpers.command import fedquilt

RECIPE = Path(__file__).parents[3] / "recipes" / "long_tail" / "digits_lt.toml"


def settings(**changes: object) -> Config:
    """The smoke recipe on one core, changed."""
    raw = tomllib.loads(RECIPE.read_text())
    return parse({**raw, "engine": {"kind": "local"}, **changes})


def played(config: Config, folder: Path) -> Path:
    engine = engine_of(config)
    for _ in run_of(config, engine, folder):
        pass
    engine.close()
    return folder


@pytest.fixture(scope="module")
def digits_lt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smoke recipe, played."""
    return played(settings(), tmp_path_factory.mktemp("runs") / "digits_lt")


@pytest.fixture(scope="module")
def scores(digits_lt: Path) -> dict:
    return realigned(digits_lt)


def test_realignment_gains_in_the_tail(scores: dict):
    """Asserted: learning far above chance (10 %), and a tail at least 15 points better after realignment."""
    common = scores["global"]
    assert common["universal"]["accuracy"] > 0.55
    assert common["global"]["accuracy"] > 0.5
    assert common["realigned"]["accuracy"] > 0.5
    assert common["realigned"]["by_share"]["tail"] > common["global"]["by_share"]["tail"] + 0.15
    assert common["realigned"]["by_share"]["head"] < common["global"]["by_share"]["head"]  # what it costs
    learned = PlayedRun.of(Path(scores["folder"])).learned
    assert common["deployed"] == common[learned.method.served(learned.state)]


def test_adjusting_for_class_shares_gains_in_the_tail(scores: dict):
    """Asserted, of the frame and of the global head: a tail at least 10 points better, which the head pays for."""
    common = scores["global"]
    for before, after in (("universal", "universal_adjusted"), ("global", "adjusted")):
        assert common[after]["by_share"]["tail"] > common[before]["by_share"]["tail"] + 0.1
        assert common[after]["by_share"]["head"] <= common[before]["by_share"]["head"]


def test_scores_are_told_for_every_mode_with_and_without_mask(scores: dict):
    everybody = {"universal", "global", "realigned", "universal_adjusted", "adjusted"}
    modes = {"deployed", "own", "readme", "code", "sum"} | everybody
    assert scores["global"].keys() == {"deployed"} | everybody
    assert scores["clients"].keys() == modes
    assert scores["clients"]["deployed"] == scores["clients"]["readme"]
    for kinds in scores["clients"].values():
        assert kinds["masked"]["accuracy"] >= kinds["plain"]["accuracy"]  # tests hold only classes the client has
        assert kinds["plain"]["worst"] <= kinds["plain"]["accuracy"]
    norms = scores["collapse"]["row_norms"]
    assert norms["realigned"] == pytest.approx([1.7] * 10, abs=1e-5)
    assert norms["global"][0] > norms["global"][9]
    assert scores["groups"] == groups_of(torch.tensor(scores["rows"]))
    assert scores["evaluated"] == 10
    assert scores["fallback"] == []


def test_saved_modes_are_plain_networks(digits_lt: Path, scores: dict):
    run = PlayedRun.of(digits_lt)
    rows = run.federation.global_test.whole()
    heads = run.heads()
    for name, head in (
        ("universal", heads.fixed),
        ("plain", heads.general),
        ("global", Realign().whole(heads.general)),
        ("adjusted", Realign().adjusted(heads.general, run.counts.sum(0))),
        ("universal_adjusted", Realign().adjusted(heads.fixed, run.counts.sum(0))),
    ):
        mode = load_mode(digits_lt / "modes" / f"{name}.safetensors")
        assert mode.model.keys() == set(run.plain.names)
        assert torch.equal(mode.model["head.weight"], head.weight)
        assert torch.equal(mode.model["head.bias"], head.bias)
        assert mode.mask is None
    mode = load_mode(digits_lt / "modes" / "client-3.safetensors")
    assert mode.about["client"] == 3
    assert not mode.about["fallback"]
    assert torch.equal(mode.mask, run.counts[3] > 0)
    logits = masked(run.plain(mode.model, rows), mode.mask)
    ours = run.learned.method.predict({**run.personal(3), "mask": run.counts[3] > 0}, rows)
    assert torch.allclose(logits, ours, atol=1e-5)
    assert json.loads((digits_lt / "modes" / "scores.json").read_text())["rounds"] == 30


def test_realigning_leaves_the_run_as_it_is(digits_lt: Path, scores: dict):
    before = {p: p.read_bytes() for p in digits_lt.rglob("*") if p.is_file() and "modes" not in p.parts}
    found = realigned(digits_lt, Realign(kappa=0.5, personal="sum"), digits_lt / "modes" / "other")
    assert {p: p.read_bytes() for p in before} == before
    assert found["realign"]["kappa"] == 0.5
    assert found["clients"]["sum"] == scores["clients"]["sum"]


def test_predictions(digits_lt: Path, scores: dict, tmp_path: Path):
    run = PlayedRun.of(digits_lt)
    wide = run.federation.global_columns
    np.savez(tmp_path / "new.npz", x=wide["x"].numpy(), y=wide["y"].numpy())
    found = predict(digits_lt, tmp_path / "new.npz")
    assert found.accuracy == pytest.approx(scores["global"]["realigned"]["accuracy"])
    assert predict(digits_lt, tmp_path / "new.npz", "universal").accuracy == pytest.approx(
        scores["global"]["universal"]["accuracy"]
    )
    assert predict(digits_lt, tmp_path / "new.npz", "adjusted").accuracy == pytest.approx(
        scores["global"]["adjusted"]["accuracy"]
    )
    own = predict(digits_lt, tmp_path / "new.npz", "personal", client=3)
    absent = torch.nonzero(run.counts[3] == 0).flatten().tolist()
    assert absent
    assert not set(own.classes.tolist()) & set(absent)
    found.save(tmp_path / "answers.csv")
    lines = (tmp_path / "answers.csv").read_text().splitlines()
    assert lines[0].startswith("row,class,confidence,p(0),p(1)")
    assert len(lines) == 1 + len(wide["y"])


def test_predictions_that_cannot_be(digits_lt: Path, scores: dict, tmp_path: Path):
    np.savez(tmp_path / "other.npz", x=np.zeros((2, 1, 9, 9), np.float32))
    np.savez(tmp_path / "bytes.npz", x=np.zeros((2, 8, 8), np.uint8))
    np.savez(tmp_path / "nothing.npz", z=np.zeros(2))
    (tmp_path / "pictures").mkdir()
    np.savez(tmp_path / "fewer.npz", x=np.zeros((3, 1, 8, 8), np.float32), y=np.array([0, 1]))
    np.savez(tmp_path / "beyond.npz", x=np.zeros((3, 1, 8, 8), np.float32), y=np.array([0, 1, 10]))
    np.savez(tmp_path / "words.npz", x=np.zeros((2, 1, 8, 8), np.float32), y=np.array(["a", "b"]))
    for data, mode, client, message in (
        ("fewer.npz", "global", None, "for each of 3 rows"),
        ("words.npz", "global", None, "as whole numbers only"),
        ("beyond.npz", "global", None, "the run knows the classes 0 to 9"),
        ("other.npz", "global", None, "shape"),
        ("bytes.npz", "global", None, "uint8"),
        ("nothing.npz", "global", None, "needs x"),
        ("pictures", "global", None, "not square byte images"),
        ("other.npz", "personal", None, "requires --mode personal"),
        ("other.npz", "personal", 99, "has no client-99"),
        ("other.npz", "global", 3, "requires --mode personal"),
    ):
        with pytest.raises(InputError, match=message):
            predict(digits_lt, tmp_path / data, mode, client)
    with pytest.raises(InputError, match="realign RUN"):
        load_mode(tmp_path / "none.safetensors")
    (tmp_path / "bad.safetensors").write_bytes(b"nonsense")
    with pytest.raises(StorageError, match="no saved mode"):
        load_mode(tmp_path / "bad.safetensors")


def test_pictures_in_a_folder(tmp_path: Path):
    """A run on grey byte images answers colour pictures of any size: bright ones and dark ones, here."""
    draw = np.random.default_rng(0)
    y = np.arange(200) % 2
    x = (draw.integers(0, 60, (200, 8, 8)) + 180 * y[:, None, None]).astype(np.uint8)
    np.savez(tmp_path / "grey.npz", x=x, y=y)
    config = settings(
        data={"path": str(tmp_path / "grey.npz"), "clients": 2, "partition": "iid"},
        rounds=3,
        train={"epochs": 5, "batch_size": 8, "optimizer": {"kind": "sgd", "lr": 0.1}},
        cohort={},
        model={"kind": "mlp", "hidden": [16]},
    )
    folder = played(config, tmp_path / "grey")
    assert "global" not in realigned(folder)["global"]  # there is no common test set
    (tmp_path / "pictures" / "deep").mkdir(parents=True)
    for name, level in (("a.png", 30), ("deep/b.jpg", 220)):
        Image.fromarray(np.full((20, 30, 3), level, np.uint8)).save(tmp_path / "pictures" / name)
    found = predict(folder, tmp_path / "pictures")
    assert found.names == ("a.png", "deep/b.jpg")
    assert found.classes.tolist() == [0, 1]
    assert found.accuracy is None


@pytest.mark.parametrize("kind", ["fedavg", "fedrod", "ditto", "fedper", "fedetf", "centralised"])
def test_any_method_is_scored_by_the_same_rule(kind: str, tmp_path: Path):
    """Realigned as far as there are heads: FedAvg has no own ones, FedPer no global one, FedETF no linear one."""
    folder = played(settings(method={"kind": kind}, rounds=2), tmp_path / kind)
    found = evaluate(folder)
    local = found["clients"]
    assert local["deployed"].keys() == {"plain", "masked"}
    assert ("realigned" in local) == ("adjusted" in local) == (kind not in ("fedper", "fedetf"))
    assert ("readme" in local) == (kind in ("fedrod", "ditto"))
    if kind in ("fedrod", "ditto"):
        for name in ("accuracy", "macro_f1", "worst", "by_share"):
            assert local["own"]["plain"][name] == pytest.approx(local["deployed"]["plain"][name], nan_ok=True)
        assert len(found["fallback"]) == sum(not PlayedRun.of(folder).state(c)[1] for c in range(10))
    if kind in ("fedper", "fedetf"):
        with pytest.raises(InputError, match="linear layer called head"):
            realigned(folder)


def test_a_place_that_cannot_be_written_is_named(digits_lt: Path, tmp_path: Path):
    (tmp_path / "file").write_text("precious")
    with pytest.raises(StorageError, match=r"Cannot write below '.*file/modes': Not a directory") as error:
        realigned(digits_lt, to=tmp_path / "file" / "modes")
    assert "resume" not in str(error.value)


def test_clients_never_visited_fall_back(tmp_path: Path):
    folder = played(settings(rounds=1, cohort={"count": 3}), tmp_path / "few")
    found = realigned(folder)
    assert len(found["fallback"]) == 7
    mode = load_mode(folder / "modes" / f"client-{found['fallback'][0]}.safetensors")
    assert mode.about["fallback"]
    assert torch.equal(
        mode.model["head.weight"], load_mode(folder / "modes" / "global.safetensors").model["head.weight"]
    )
    assert mode.mask is not None


def test_commands(digits_lt: Path, scores: dict, tmp_path: Path):
    told = fedquilt(
        "realign", str(digits_lt), "--kappa", "2", "--prior-tau", "0", "--to", str(tmp_path / "modes"), "--json"
    )
    found = told.json
    rule = {"kappa": 2.0, "tau": 1.0, "scale_bias": False, "personal": "readme", "prior_tau": 0.0}
    assert found["realign"] == rule
    assert found["global"]["adjusted"] == found["global"]["global"]  # --prior-tau 0
    assert {Path(p).name for p in found["pictures"]} == {"classes.png", "collapse.png"}
    assert all(Path(p).is_file() for p in (*found["pictures"], *found["files"]))
    assert not (tmp_path / "modes" / "tails.json").exists()  # its scores are in scores.json
    said = fedquilt("tails", str(digits_lt), "--to", str(tmp_path / "tails")).out
    assert "common test set" in said
    scores = json.loads((tmp_path / "tails" / "tails.json").read_text())
    for row in (scores["global"]["realigned"], scores["clients"]["readme"]["masked"]):
        for name in ("accuracy", "balanced_accuracy", "macro_f1"):
            assert f"± {100 * row[f'{name}_rows_half_95']:.1f}" in said
    assert (tmp_path / "tails" / "tails.json").is_file()
    np.savez(tmp_path / "new.npz", x=np.zeros((2, 1, 8, 8), np.float32))
    out = tmp_path / "answers.csv"
    done = fedquilt(
        "predict", str(digits_lt), str(tmp_path / "new.npz"), "--mode", "personal", "--client", "3", "--to", str(out)
    )
    assert done.code == 0
    assert len(out.read_text().splitlines()) == 3


# The data of such runs


def test_common_tests_hold_a_part_of_every_class():
    config = settings()
    data, whole = federation_of(config), federation_of(settings(data={"clients": 2, "test": 0.0, "valid": 0.0}))
    held = torch.bincount(data.global_columns["y"])
    assert held.tolist() == [int(0.3 * n) for n in whole.label_counts().sum(0)]
    assert data.label_counts().sum(0)[0] > 15 * data.label_counts().sum(0)[9]
    rows = {tuple(r.flatten().tolist()) for r in data.global_columns["x"]}
    trained = data.columns["x"][data.train.index]
    assert not rows & {tuple(r.flatten().tolist()) for r in trained}


def test_streams_are_refused(tmp_path: Path):
    stream = {"kind": "by_class", "groups": [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]}
    folder = played(settings(data={"clients": 2}, stream=stream, rounds=1, method={"kind": "fedavg"}), tmp_path / "run")
    with pytest.raises(InputError, match="are a stream"):
        evaluate(folder)


def test_impossible_tests():
    with pytest.raises(InputError, match="set test = 0"):
        settings(data={"local_tests": True, "test": 0.2})
    with pytest.raises(InputError, match="global test set"):
        federation_of(settings(data={"local_tests": True}))


def test_scores_of_any_features(digits_lt: Path):
    """Modes agree with the method's own words, row by row."""
    run = PlayedRun.of(digits_lt)
    batch = Batch({"x": torch.randn(50, 1, 8, 8)})
    method, heads = run.learned.method, run.heads(2)
    by_head = Realign().own(heads.general, heads.own)(run.plain.split({**run.personal(2)}, batch).features)
    assert torch.allclose(method.predict(run.personal(2), batch), by_head, atol=1e-5)
    assert torch.equal(
        replace(method, serve="plain").global_model(run.learned.state)["head.weight"], heads.general.weight
    )
