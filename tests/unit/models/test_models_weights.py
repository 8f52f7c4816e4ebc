"""Weights from elsewhere: files, folders and shards, layouts, what does not fit, and what a run makes of them."""

from __future__ import annotations

import json
from functools import partial

import pytest
import torch
from safetensors.torch import save_file

from fedquilt.config.config import parse
from fedquilt.core.describe import build, describe
from fedquilt.core.net import Net
from fedquilt.core.seed import Seed
from fedquilt.errors import InputError
from fedquilt.models import MLP, ViT, load_weights, make, with_weights
from fedquilt.models.weights.files import fingerprint, read_tensors
from fedquilt.models.weights.start import from_timm, translate
from helpers.command import SMALL, fedquilt, small

SMALL_VIT = partial(ViT, classes=3, channels=3, size=8, patch=4, width=8, depth=2, heads=2, mlp=16)


def drawn(builder, seed):
    with Seed(seed).ambient():
        return builder()


def saved(module, path, **changes):
    tensors = {n: t.clone() for n, t in module.state_dict().items()} | changes
    save_file({n: t for n, t in tensors.items() if t is not None}, path)
    return path


def same(one, other, names=None):
    a, b = one.state_dict(), other.state_dict()
    return all(torch.equal(a[n], b[n]) for n in names or a)


def test_a_file_is_taken_whole(tmp_path):
    source, target = drawn(SMALL_VIT, 1), drawn(SMALL_VIT, 2)
    assert not same(source, target)
    found = load_weights(target, saved(source, tmp_path / "a.safetensors"))
    assert same(source, target)
    assert found.complete
    assert (set(found.taken), found.fresh) == (set(source.state_dict()), ())


def test_a_head_for_other_classes_stays_fresh(tmp_path):
    source, target, before = (
        drawn(SMALL_VIT, 1),
        drawn(partial(SMALL_VIT, classes=5), 2),
        drawn(partial(SMALL_VIT, classes=5), 2),
    )
    found = load_weights(target, saved(source, tmp_path / "a.safetensors"))
    assert found.fresh == ("head.weight", "head.bias")
    assert same(target, before, found.fresh)
    assert same(target, source, found.taken)
    assert str(found).endswith("left fresh: head.weight, head.bias")


def test_shards_and_half_precision(tmp_path):
    source, target = drawn(SMALL_VIT, 1), drawn(SMALL_VIT, 2)
    tensors = {n: t.half() for n, t in source.state_dict().items()}
    names = sorted(tensors)
    parts = {"one.safetensors": names[:5], "two.safetensors": names[5:]}
    for file, some in parts.items():
        save_file({n: tensors[n] for n in some}, tmp_path / file)
    index = {"weight_map": {n: file for file, some in parts.items() for n in some}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert load_weights(target, tmp_path).complete
    assert all(torch.equal(t, tensors[n].float()) for n, t in target.state_dict().items())
    (tmp_path / "two.safetensors").unlink()
    with pytest.raises(InputError, match=r"names two\.safetensors, which the folder does not have"):
        load_weights(target, tmp_path)


def test_what_does_not_fit_is_named(tmp_path):
    source = drawn(SMALL_VIT, 1)
    path = saved(
        source,
        tmp_path / "a.safetensors",
        **{"features.norm.bias": None, "features.extra": torch.zeros(2), "features.pos_embed": torch.zeros(1, 9, 8)},
    )
    target, before = drawn(SMALL_VIT, 2), drawn(SMALL_VIT, 2)
    with pytest.raises(InputError) as told:
        load_weights(target, path)
    for part in (
        "do not fit ViT",
        "1 missing: features.norm.bias",
        "1 unexpected: features.extra",
        "strict=False",
        "features.pos_embed is (1, 9, 8) in the file and (1, 5, 8) here",
    ):
        assert part in str(told.value)
    assert same(target, before)  # nothing half done
    found = load_weights(target, path, strict=False)
    assert (found.missing, found.unexpected) == (("features.norm.bias",), ("features.extra",))
    assert found.mismatched == (("features.pos_embed", (1, 9, 8), (1, 5, 8)),)
    assert same(target, source, found.taken)
    assert same(target, before, [*found.missing, "features.pos_embed"])


def test_nothing_but_a_head_is_refused_even_without_strict(tmp_path):
    save_file({"head.weight": torch.zeros(3, 8), "head.bias": torch.zeros(3)}, tmp_path / "a.safetensors")
    with pytest.raises(InputError, match="do not fit ViT: 2 tensors taken; 30 missing"):
        load_weights(SMALL_VIT(), tmp_path / "a.safetensors", strict=False)


def test_prefixes_are_renamed_longest_first(tmp_path):
    source, target = drawn(partial(MLP, 4, 2, (3,)), 1), drawn(partial(MLP, 4, 2, (3,)), 2)
    names = {"body.layers.1.": "features.1.", "body.": "", "fc.": "head."}
    there = {
        "features.1.weight": "body.layers.1.weight",
        "features.1.bias": "body.layers.1.bias",
        "head.weight": "fc.weight",
        "head.bias": "fc.bias",
    }
    save_file({there[n]: t for n, t in source.state_dict().items()}, tmp_path / "a.safetensors")
    assert load_weights(target, tmp_path / "a.safetensors", rename=names).complete
    assert same(source, target)
    with pytest.raises(InputError, match=r"two tensors the name 'x\."):
        load_weights(target, tmp_path / "a.safetensors", rename={"body.layers.1.": "x.", "fc.": "x."})


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda folder: None, r"There are no weights at .*Give a \.safetensors file"),
        (lambda folder: folder.mkdir(), r"has neither model\.safetensors nor model\.safetensors\.index\.json"),
        (lambda folder: folder.write_bytes(b"no"), "cannot be read as safetensors"),
        (
            lambda folder: (folder.mkdir(), (folder / "model.safetensors.index.json").write_text("[]")),
            "is not an index of shards",
        ),
    ],
)
def test_wrong_files(tmp_path, prepare, message):
    prepare(tmp_path / "it")
    with pytest.raises(InputError, match=message):
        load_weights(SMALL_VIT(), tmp_path / "it")


def test_names_of_timm(tmp_path):
    # The names of a timm VisionTransformer are ours below "features", and the head's.
    source, target = drawn(SMALL_VIT, 1), drawn(SMALL_VIT, 2)
    there = {n.removeprefix("features."): t for n, t in source.state_dict().items()}
    assert {
        "cls_token",
        "pos_embed",
        "patch_embed.proj.weight",
        "blocks.1.attn.qkv.bias",
        "blocks.0.mlp.fc1.weight",
        "blocks.0.norm2.bias",
        "norm.weight",
        "head.bias",
    } <= there.keys()
    assert from_timm(there).keys() == source.state_dict().keys()
    save_file(there, tmp_path / "model.safetensors")
    assert load_weights(target, tmp_path).complete
    assert same(source, target)


@pytest.mark.parametrize("kind", ["ViTForImageClassification", "ViTModel"])
def test_a_folder_of_transformers_gives_the_same_numbers(tmp_path, kind):
    transformers = pytest.importorskip("transformers")
    settings = transformers.ViTConfig(
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=8,
        patch_size=4,
        num_labels=3,
        layer_norm_eps=1e-6,
    )
    theirs = drawn(partial(getattr(transformers, kind), settings), 5).eval()
    with torch.no_grad():
        for tensor in theirs.parameters():  # zero biases and equal norms would hide a wrong mapping
            tensor.add_(torch.randn(tensor.shape, generator=Seed(6).torch()), alpha=0.2)
    transformers.utils.logging.disable_progress_bar()
    theirs.save_pretrained(tmp_path)
    ours = drawn(SMALL_VIT, 2).eval()
    found = load_weights(ours, tmp_path)
    assert found.complete
    assert found.fresh == (() if kind != "ViTModel" else ("head.weight", "head.bias"))
    x = torch.randn(4, 3, 8, 8, generator=Seed(0).torch())
    with torch.no_grad():
        if kind == "ViTModel":
            torch.testing.assert_close(ours.features(x), theirs(x).last_hidden_state[:, 0])
        else:
            torch.testing.assert_close(ours(x), theirs(x).logits)


def test_names_that_are_ours_or_unknown_are_left_alone():
    assert "features.a" in translate({"features.a": torch.zeros(1), "embeddings.cls_token": torch.zeros(1)})
    assert list(translate({"conv1.weight": torch.zeros(1)})) == ["conv1.weight"]


def test_a_builder_is_not_a_module(tmp_path):
    with pytest.raises(InputError, match=r"takes a module, got partial\. For a builder: with_weights"):
        load_weights(SMALL_VIT, tmp_path)


# A builder with weights


def test_the_start_is_the_file_for_every_seed_and_only_the_fresh_head_is_drawn(tmp_path):
    source = drawn(SMALL_VIT, 1)
    path = saved(source, tmp_path / "a.safetensors")
    net = Net(with_weights(partial(SMALL_VIT, classes=5), path))
    one, two = net.init(Seed(0)), net.init(Seed(1))
    for name, value in source.state_dict().items():
        if not name.startswith("head."):
            assert torch.equal(one[name], value)
            assert torch.equal(two[name], value)
    assert not torch.equal(one["head.weight"], two["head.weight"])
    again = build(describe(net)).init(Seed(0))
    assert all(torch.equal(t, one[n]) for n, t in again.items())


def test_weights_that_change_are_noticed(tmp_path):
    path = saved(drawn(SMALL_VIT, 1), tmp_path / "a.safetensors")
    builder = with_weights(SMALL_VIT, path)
    saved(drawn(SMALL_VIT, 2), path)
    with pytest.raises(InputError, match="have changed: their fingerprint is"):
        builder()


def test_the_fingerprint_is_of_the_content(tmp_path):
    one = saved(drawn(SMALL_VIT, 1), tmp_path / "a.safetensors")
    same_elsewhere = saved(drawn(SMALL_VIT, 1), tmp_path / "b.safetensors")
    other = saved(drawn(SMALL_VIT, 2), tmp_path / "c.safetensors")
    assert fingerprint(one) == fingerprint(same_elsewhere) != fingerprint(other)
    folder = tmp_path / "folder"
    folder.mkdir()
    saved(drawn(SMALL_VIT, 1), folder / "model.safetensors")
    bare = fingerprint(folder)
    (folder / "config.json").write_text("{}")
    assert fingerprint(folder) != bare == fingerprint(one)


# In a recipe


def test_a_run_starts_from_its_weights_and_is_named_by_their_content(tmp_path):
    first = fedquilt("run", small(tmp_path), "rounds=1", "--json").json
    (weights,) = [p for p in (tmp_path / "runs").glob("*/models/*.safetensors") if "best" not in p.name]
    path = f"model.weights={weights}"
    found = fedquilt("run", tmp_path / "small.toml", "rounds=1", path, "--json")
    assert found.code == 0, found.err
    assert found.json["folder"] != first["folder"]
    copied = tmp_path / "copy.safetensors"
    copied.write_bytes(weights.read_bytes())
    again = fedquilt("run", tmp_path / "small.toml", "rounds=1", f"model.weights={copied}", "--json").json
    assert again["folder"] == found.json["folder"]  # where the file lies does not matter
    changed = {n: t + 1 for n, t in read_tensors(copied).items()}
    save_file(changed, copied)
    other = fedquilt("run", tmp_path / "small.toml", "rounds=1", f"model.weights={copied}", "--json").json
    assert other["folder"] != found.json["folder"]


def test_a_recipe_keeps_the_full_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = SMALL.replace('kind = "logistic"', 'kind = "mlp"\nhidden = [8]')
    made = drawn(make("mlp", (64,), 10, hidden=[8]), 1)
    saved(made, tmp_path / "start.safetensors")
    said = fedquilt("run", small(tmp_path, text), "rounds=1", "model.weights=start.safetensors", "--json")
    assert said.code == 0, said.err
    (kept,) = (tmp_path / "runs").glob("*/config.toml")
    assert f'weights = "{tmp_path}/start.safetensors"' in kept.read_text()
    monkeypatch.chdir("/")
    assert fedquilt("resume", kept.parent, "--json").code == 0
    assert fedquilt("run", tmp_path / "small.toml", "model.weights=nowhere.safetensors").code == 2


def test_weights_are_an_option_of_every_model():
    parse({"model": {"kind": "lenet5", "weights": "a.safetensors"}})
    parse({"model": {"kind": "resnet18", "norm": "batch"}})
    with pytest.raises(InputError, match="did you mean 'weights'"):
        parse({"model": {"kind": "lenet5", "weight": "a.safetensors"}})
