"""The command ``fedquilt audit``: what is overheard, what defences change, and what is written."""

from __future__ import annotations

import csv
import json

import pytest
import torch

from fedquilt.audit import cells as cells_module
from fedquilt.audit import defences
from fedquilt.audit.cells import Plan, audited, cells
from fedquilt.audit.sight import sight
from fedquilt.audit.tapping import Few, overheard
from fedquilt.config.config import load
from fedquilt.core.seed import Seed
from fedquilt.errors import InputError
from fedquilt.methods.fedavg import Upload
from fedquilt.runs.build import federation_of, method_of
from helpers.command import fedquilt, small
from helpers.toy import last


@pytest.fixture
def recipe(tmp_path):
    return small(tmp_path)


def test_one_step_on_one_row_is_the_gradient(recipe):
    """What the server makes of FedAvg's upload equals the gradient of cross-entropy on the client's row."""
    config = load(recipe, ["train.steps=1", "train.batch_size=1"])
    federation = federation_of(config)
    method, few = method_of(config, federation), Few(federation, 1, Seed(3))
    letters = overheard(method, few, Seed(0))
    assert [w.client for w in letters] == list(federation.ids)
    seen = sight(letters, 2, method, 0.1)
    row = few.site(2, 0).train.whole()
    assert (len(row), seen.samples) == (1, 1)
    model = {n: t.clone().requires_grad_() for n, t in seen.server.model.items()}
    loss = torch.nn.functional.cross_entropy(method.net(model, row), row.y)
    for name, gradient in zip(model, torch.autograd.grad(loss, list(model.values())), strict=True):
        assert torch.allclose(seen.server.gradient[name], gradient, atol=1e-5)


def test_defences_change_what_is_sent():
    upload = Upload({"head.weight": torch.full((2, 2), 3.0), "head.bias": torch.full((2,), 3.0)})
    clipped = defences.clip_and_noise(1.0, 0.0)(upload, Seed(0))
    assert float(sum(t.square().sum() for t in clipped.delta.values())) == pytest.approx(1.0)
    small_one = Upload({"head.bias": torch.full((2,), 0.1)})
    assert torch.equal(defences.clip_and_noise(1.0, 0.0)(small_one, Seed(0)).delta["head.bias"], torch.full((2,), 0.1))
    many = Upload({"w": torch.zeros(100_000)})
    noise = defences.clip_and_noise(2.0, 0.25)(many, Seed(0)).delta["w"]
    assert float(noise.std()) == pytest.approx(0.5, rel=0.02)
    kept = defences.without_bias(upload, Seed(0)).delta
    assert not kept["head.bias"].any()
    assert torch.equal(kept["head.weight"], upload.delta["head.weight"])
    for wrong in ("blur", "batch+round"):
        with pytest.raises(InputError, match="defence"):
            defences.parsed(wrong)


def found(recipe, *overrides, **plan):
    config = load(recipe, overrides)
    plan = Plan(**{"images": 1, "iterations": 5, "restarts": 1, **plan})
    federation = federation_of(config)
    return {(f.method, f.defence, f.attack): f for cell in cells(config, plan) for f in audited(cell, federation, plan)}


def test_what_attacks_find(recipe):
    """Logistic regression: one row comes back exactly, and noise or a whole round of training hides it."""
    table = found(recipe, defences=("none", "noise", "no_bias", "round"), noise=0.3)
    clean = table["fedavg", "none", "dlg"].numbers
    assert clean["psnr"] > 60
    assert clean["ssim"] > 0.999
    assert table["fedavg", "noise", "dlg"].numbers["psnr"] < clean["psnr"] - 40
    assert table["fedavg", "round", "dlg"].numbers["psnr"] < clean["psnr"] - 40
    assert table["fedavg", "none", "labels"].numbers["classes_exact"] == 1
    assert table["fedavg", "none", "features"].numbers["feature_error"] < 1e-3
    hidden = table["fedavg", "no_bias", "features"].numbers
    assert hidden["feature_cosine"] > 0.999  # the direction is in the weights as well
    assert hidden["feature_error"] is None
    truth, guess = table["fedavg", "none", "idlg"].pictures
    assert torch.allclose(truth, guess, atol=0.01)


def test_methods_that_send_less(recipe):
    table = found(recipe, "model.kind=mlp", methods=("fedper", "local_only", "fedproto"), defences=("none",))
    assert table["fedper", "none", "dlg"].numbers["psnr"] > 0
    assert "head's gradient was not sent" in table["fedper", "none", "labels"].note
    assert "no change of weights was sent" in table["local_only", "none", "dlg"].note
    assert table["fedproto", "none", "labels"].numbers["classes_exact"] == 1  # it tells how many rows of each class
    broken = found(recipe, "model.kind=mlp", methods=("fedproto",), defences=("noise",), attacks=("labels",))
    assert "the round failed" in broken["fedproto", "noise", "labels"].note


def test_after_some_rounds(recipe):
    """The rounds before are the recipe's own; the model that the victims are sent is the one these rounds made."""
    config = load(recipe)
    federation = federation_of(config)
    method = method_of(config, federation)
    after = last(method, federation, rounds=2)
    state, slots = cells_module._before(config, federation, Plan(rounds=2))
    letters = overheard(method, federation, Seed(0), state, 2, slots)
    for name, tensor in sight(letters, 0, method, 0.1).server.model.items():
        assert torch.equal(tensor, after.state.shared[name])
    assert found(recipe, attacks=("labels",), defences=("none",), rounds=2)["fedavg", "none", "labels"].numbers


def test_the_command(recipe, tmp_path):
    out = tmp_path / "audit"
    given = ("--images", 2, "--iterations", 3, "--restarts", 1, "--out", out)
    said = fedquilt("audit", recipe, "--defences", "none,batch+noise", *given)
    assert said.code == 0, said.err
    for word in ("dlg", "features", "batch+noise", "blind", str(out)):
        assert word in said.out
    rows = list(csv.DictReader((out / "audit.csv").read_text().splitlines()))
    assert len(rows) == 2 * 5
    assert {r["clients"] for r in rows} == {"2"}
    for name in ("pictures.png", "pictures.svg"):
        assert (out / name).stat().st_size > 1000
    again = fedquilt("audit", recipe, "--defences", "none,batch+noise", *given, "--json").json
    written = json.loads((out / "audit.json").read_text())
    assert written == again
    assert [float(r["psnr"]) for r in rows if r["psnr"]] == [r["psnr"] for r in again["rows"] if r["psnr"] is not None]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--attacks", "guess"), "no attack 'guess'; there are dlg"),
        (("--defences", "none,blur"), "no defence 'blur'"),
        (("--images", "9"), "--images 9: there are only 4 clients"),
        (("--methods", "centralised"), "pools all data in one place"),
        (("--methods", "fedavgg"), "did you mean 'fedavg'"),
        (("--noise", "-1", "--defences", "noise"), "noise not negative"),
    ],
)
def test_wrong_questions(recipe, tmp_path, arguments, message):
    said = fedquilt("audit", recipe, "--out", tmp_path / "audit", *arguments)
    assert said.code == 2
    assert message in said.err
    assert not (tmp_path / "audit").exists()


def test_gradients_of_hgls(recipe):
    """The gradient of one row at a model that is sent whole gives the head's input exactly; peers are sent it too."""
    table = found(
        recipe,
        "model.kind=mlp",
        "method.kind=hgls",
        "method.mean_head=true",
        defences=("none", "no_bias", "noise"),
        iterations=15,
        noise=0.3,
        attacks=("dlg", "peer", "labels", "features"),
    )
    assert table["hgls", "none", "features"].numbers["feature_error"] < 1e-3
    assert table["hgls", "none", "labels"].numbers["classes_exact"] == 1
    assert table["hgls", "none", "dlg"].numbers["psnr"] > 30
    assert table["hgls", "none", "peer"].numbers["psnr"] > table["hgls", "none", "peer"].numbers["psnr_blind"]
    assert table["hgls", "no_bias", "features"].numbers["feature_error"] is None
    assert table["hgls", "noise", "features"].numbers["feature_cosine"] < 0.9
    assert table["hgls", "noise", "peer"].numbers["psnr"] < table["hgls", "none", "peer"].numbers["psnr"]


def test_codecs(recipe):
    """hgc keeps the signs, so the classes are seen; the features are not exact any more, and fewer bytes travel."""
    plan = {"defences": ("none",), "attacks": ("labels", "features"), "methods": ("fedavg", "hgls")}
    plain, coded = (found(recipe, "model.kind=mlp", codecs=(name,), **plan) for name in ("plain", "hgc"))
    for method in plan["methods"]:
        key = (method, "none")
        assert coded[(*key, "labels")].numbers["classes_exact"] == 1
        assert coded[(*key, "features")].numbers["feature_error"] > plain[(*key, "features")].numbers["feature_error"]
        assert coded[(*key, "labels")].bytes_up < plain[(*key, "labels")].bytes_up
    assert defences.codec_of("top_k=0.05").share == 0.05
    assert defences.codec_of("own") is None
    for wrong in ("zip", "hgc=1", "sign=3"):
        with pytest.raises(InputError, match=r"codec|num_bins"):
            Plan(codecs=(wrong,))
    with pytest.raises(InputError, match="'x' cannot be the value of its first setting"):
        Plan(codecs=("hgc=x",))


def test_a_gradient_that_a_codec_spoiled_does_not_hide_the_rest(recipe):
    """HGLS with hgc sends the body's change as it is: it is attacked as FedPer's would be."""
    plan = {"defences": ("none",), "attacks": ("dlg",), "iterations": 15, "restarts": 2}
    coded = found(recipe, "model.kind=mlp", methods=("hgls",), codecs=("hgc",), **plan)["hgls", "none", "dlg"].numbers
    assert coded["mismatch"] < 0.1
    assert coded["psnr"] > coded["psnr_blind"]


def test_the_recipes_own_codec(recipe):
    """A codec of the recipe is what is overheard by default."""
    plan = {"defences": ("none",), "attacks": ("features",)}
    own = found(recipe, "codec.kind=hgc", "codec.field=delta", **plan)["fedavg", "none", "features"]
    named = found(recipe, codecs=("hgc",), **plan)["fedavg", "none", "features"]
    assert own.bytes_up == named.bytes_up
    assert own.numbers == pytest.approx(named.numbers)
