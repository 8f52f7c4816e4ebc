"""Pretraining: what it saves, whose rows it sees, that it can be interrupted, and what it says when it cannot go on."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedquilt.analysis import pretrain as module
from fedquilt.analysis.pretrain import STATE, Pretraining, pretrain
from fedquilt.analysis.pretrain_card import CARD, PICTURE, TEXT
from fedquilt.config.config import Config, parse
from fedquilt.config.data import federation_of, for_pretraining, rows_aside
from fedquilt.core.seed import Seed
from fedquilt.data import read
from fedquilt.errors import InputError
from fedquilt.models import net
from helpers.command import fedquilt

RECIPE = Path(__file__).parents[3] / "recipes" / "pretrain_mae.toml"
MODEL = {"kind": "mae", "patch": 4, "width": 8, "depth": 1, "heads": 2, "decoder_width": 8, "decoder_heads": 2}
DATA = {"source": "digits", "pretraining": 0.1, "clients": 2, "partition": "iid"}
SHORT = Pretraining(epochs=2, batch_size=50, lr=3e-3)


def config(**data):
    return parse({"data": {**DATA, **data}, "model": MODEL})


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    out = tmp_path_factory.mktemp("mae")
    return out, pretrain(config(), out, SHORT)


def test_what_is_saved(done):
    out, facts = done
    assert sorted(p.name for p in out.iterdir()) == sorted(
        ["config.json", "model.safetensors", CARD, PICTURE, TEXT]
    )  # nothing unfinished is left
    assert facts.sha256 == hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()
    card = json.loads((out / CARD).read_text())
    assert card["sha256"] == facts.sha256
    assert (card["rows"] + card["valid"], len(card["curve"])) == (179, 2)
    assert card["data"]["pretraining"] == 0.1
    assert facts.curve[1][0] < facts.curve[0][0]
    text = (out / TEXT).read_text()
    assert facts.sha256 in text
    assert f"| 2 | {facts.curve[1][0]:.4f} | {facts.curve[1][1]:.4f} |" in text


def test_a_recipe_takes_it(done):
    out, _ = done
    found = net("mae", (1, 8, 8), 10, pretrained=str(out), bottleneck=2)
    weights = load_file(out / "model.safetensors")
    whole = found.full(found.init(Seed(5)))
    assert {n for n in whole if not n.startswith("adapters.")} == weights.keys()
    assert all(torch.equal(whole[n], t) for n, t in weights.items())
    one = parse({"model": {"kind": "mae", "pretrained": str(out)}})
    assert one.weight_files() == {"pretrained": str(out)}


def test_clients_get_the_other_rows():
    whole = read("digits")
    rows = rows_aside(len(whole.y), 0.1, seed=0)
    assert len(set(rows.tolist())) == 179
    apart = for_pretraining(config().data, 0.05)
    theirs = federation_of(config())
    assert len(apart.columns["y"]) == 179
    assert sorted(apart.columns["y"].tolist()) == sorted(whole.y[rows].tolist())
    assert len(theirs.columns["y"]) == len(whole.y) - 179
    counted = np.bincount(theirs.columns["y"].numpy(), minlength=10) + np.bincount(whole.y[rows], minlength=10)
    assert counted.tolist() == np.bincount(whole.y, minlength=10).tolist()
    assert set(rows.tolist()).isdisjoint(np.setdiff1d(np.arange(len(whole.y)), rows).tolist())
    other = rows_aside(len(whole.y), 0.1, seed=1)
    assert rows.tolist() != other.tolist()


def test_nothing_set_aside_changes_no_run():
    assert parse({"data": {"pretraining": 0.0}}).identity() == Config().identity()
    assert parse({"data": {"pretraining": 0.5}}).identity() != Config().identity()


def test_an_interrupted_one_ends_as_if_it_had_not_been(done, tmp_path, monkeypatch):
    _, whole = done
    monkeypatch.setattr(module, "SECONDS", -1.0)  # saved after every step

    def stop(at):
        def step(number, total, loss):
            if number == at:
                raise KeyboardInterrupt

        return step

    for at in (2, 6):  # in the first and in the second epoch; told before the step is saved
        with pytest.raises(KeyboardInterrupt):
            pretrain(config(), tmp_path, SHORT, step=stop(at))
        assert (tmp_path / STATE).exists()
    found = pretrain(config(), tmp_path, SHORT)
    assert found.sha256 == whole.sha256
    assert found.curve == whole.curve
    heard = []
    again = pretrain(config(), tmp_path, SHORT, step=lambda *news: heard.append(news))
    assert not heard  # it was there already
    assert again.sha256 == found.sha256


def test_other_settings_do_not_go_on(done, tmp_path, monkeypatch):
    out, facts = done
    with pytest.raises(InputError, match="holds an autoencoder of other settings, data or seed"):
        pretrain(config(), out, Pretraining(epochs=3, batch_size=50, lr=3e-3))
    with pytest.raises(InputError, match="of other settings, data or seed"):
        pretrain(config(seed=1), out, SHORT)
    (tmp_path / "model.safetensors").write_bytes(b"mine")
    with pytest.raises(InputError, match="holds other weights already"):
        pretrain(config(), tmp_path, SHORT)
    (tmp_path / STATE).write_bytes(b"damaged")
    with pytest.raises(InputError, match=r"is damaged .* Start from scratch with --fresh"):
        pretrain(config(), tmp_path, SHORT)
    assert pretrain(config(), tmp_path, SHORT, fresh=True).sha256 == facts.sha256


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["model.kind=mlp"], "Pretraining is for model.kind = 'mae'"),
        (["data.pretraining=0.0"], "Set the share of them, for example data.pretraining=0.5"),
        (["data.pretraining=0.0001"], "sets 0 of 1797 rows aside"),
        (["model.patch=3"], "multiple of patch; got size 8 and patch 3"),
        (["data.pretraining=2"], "data.pretraining"),
    ],
)
def test_wrong_input_is_told(changes, message, tmp_path):
    raw = ["--epochs", "1", "-o", str(tmp_path / "out")]
    if changes == ["model.kind=mlp"]:
        with pytest.raises(InputError, match=message):
            pretrain(parse({"data": DATA}), tmp_path / "out", SHORT)
        return
    said = fedquilt("pretrain-mae", str(RECIPE), *changes, *raw)
    assert said.code == 2
    assert message in " ".join(said.err.split())
    assert not (tmp_path / "out").exists()


def test_the_rate_grows_and_falls():
    rates = [Pretraining(lr=1.0, warm_up=0.2).rate(step, 10) for step in range(10)]
    assert rates[:3] == [0.5, 1.0, 1.0]
    assert rates == [*rates[:2], *sorted(rates[2:], reverse=True)]
    assert rates[-1] == pytest.approx((1 + np.cos(np.pi * 7 / 8)) / 2)
    for wrong in ({"epochs": 0}, {"batch_size": 0}, {"warm_up": 1.0}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            Pretraining(**wrong)


def test_devices_that_pretraining_does_not_use_are_said(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    small = ["data.limit=200", "model.width=8", "model.depth=1", "model.heads=2", "--epochs", "2"]
    said = fedquilt("pretrain-mae", RECIPE, *small, "-o", tmp_path / "mae").out
    assert said.count("This machine has 1 CUDA device, and pretraining runs on the CPU.") == 1


def test_the_command(tmp_path):
    out = tmp_path / "mae"
    small = ["model.width=8", "model.depth=1", "model.decoder_width=8", "data.pretraining=0.1"]
    said = fedquilt("pretrain-mae", str(RECIPE), *small, "--epochs", "1", "-o", str(out))
    assert said.code == 0, said.err
    assert f"model   {out}: set model.pretrained to it" in said.out
    found = fedquilt("pretrain-mae", str(RECIPE), *small, "--epochs", "1", "-o", str(out), "--json").json
    assert found["sha256"] == hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()
