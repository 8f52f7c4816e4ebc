"""``fedquilt merge``: streamed, checked first, told about, never over what is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedquilt.analysis.merging import RULES, Request, card_of, known_rule, merge_files
from fedquilt.core.seed import Seed
from fedquilt.errors import InputError
from fedquilt.models.weights.streamed import CheckpointWriter, StoredModel
from fedquilt.pieces.merging.rule import merge
from fedquilt.pieces.merging.stitch import Stitch
from helpers.command import fedquilt

SHAPES = {"a.weight": (6, 5), "a.bias": (6,), "bn.running_mean": (4,), "bn.num_batches_tracked": ()}


def model(seed: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    draw = Seed(seed).torch()
    made = {n: torch.randn(s, generator=draw).to(dtype) for n, s in SHAPES.items()}
    return {**made, "bn.num_batches_tracked": torch.tensor(seed)}


@pytest.fixture
def stored(tmp_path: Path) -> tuple[Path, list[Path]]:
    paths = [tmp_path / f"{n}.safetensors" for n in ("base", "one", "two", "three")]
    for seed, path in enumerate(paths):
        save_file(model(seed), path)
    return paths[0], paths[1:]


def test_the_file_is_what_memory_gives(stored: tuple[Path, list[Path]], tmp_path: Path) -> None:
    base, models = stored
    out = tmp_path / "out" / "merged.safetensors"
    heard: list[str] = []
    facts = merge_files(Request(models, out, base=base, options={"keep": 0.3}), lambda name, count: heard.append(name))
    expected, report = merge(Stitch(keep=0.3), model(0), [model(i) for i in (1, 2, 3)])
    found = load_file(out)
    assert all(torch.equal(found[n], expected[n]) for n in expected)
    assert facts["density"] == report.summary()["density"] == [10 / 36] * 3
    assert sorted(heard) == sorted(SHAPES)
    card = card_of(out)
    assert "27.78 % of its changes" in card.read_text()
    told = json.loads(card.with_suffix(".json").read_text())
    assert told["conflicts"] == report.conflicts / 36
    assert len(told["models"][0]["sha256"]) == 64


@pytest.mark.parametrize("rule", [r for r in RULES if r not in ("slerp", "fisher", "regmean", "greedy_soup")])
def test_every_rule_writes_a_model(rule: str, stored: tuple[Path, list[Path]], tmp_path: Path) -> None:
    base, models = stored
    out = tmp_path / "out.safetensors"
    merge_files(Request(models, out, rule, base))
    assert {n: tuple(t.shape) for n, t in load_file(out).items()} == SHAPES


def test_rules_with_statistics_and_pairs(stored: tuple[Path, list[Path]], tmp_path: Path) -> None:
    """Equal Fisher information is the plain mean; without a base where it does not matter."""
    base, models = stored
    ones = tmp_path / "ones.safetensors"
    save_file({n: torch.ones(s) for n, s in SHAPES.items()}, ones)
    grams = tmp_path / "grams.safetensors"
    save_file({"a.weight": torch.eye(5)}, grams)
    outs = [tmp_path / f"{r}.safetensors" for r in ("fisher", "regmean", "soup", "slerp")]
    merge_files(Request(models[:2], outs[0], "fisher", options={"statistics": [ones, ones]}))
    merge_files(Request(models[:2], outs[1], "regmean", options={"statistics": [grams, grams]}))
    merge_files(Request(models[:2], outs[2], "mean"))
    merge_files(Request(models[:2], outs[3], "slerp", options={"t": 0.0}))
    fisher, regmean, soup, slerp = map(load_file, outs)
    for other in (fisher, regmean):
        torch.testing.assert_close(other["a.weight"], soup["a.weight"])
    torch.testing.assert_close(slerp["a.weight"], model(1)["a.weight"])
    with pytest.raises(InputError, match="0 given for 2 models"):
        merge_files(Request(models[:2], tmp_path / "x", "fisher", base))


def test_differences_are_all_told_before_anything_is_written(stored: tuple[Path, list[Path]], tmp_path: Path) -> None:
    base, (one, two, _) = stored
    save_file({n: t for n, t in model(1).items() if n != "a.bias"} | {"c": torch.zeros(1)}, one)
    save_file(model(2) | {"a.weight": torch.zeros(2, 2), "a.bias": torch.zeros(6, dtype=torch.float16)}, two)
    with pytest.raises(InputError, match="4 differences") as error:
        merge_files(Request([one, two], tmp_path / "out.safetensors", base=base))
    for text in ("lacks a.bias", "has besides c", "'a.weight' is (2, 2) F32, but (6, 5) F32", "'a.bias' is (6,) F16"):
        assert text in str(error.value)
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("rule", ["stitch", "soup"])
def test_numbers_that_are_not_finite_are_refused_by_name(
    rule: str, bad: float, stored: tuple[Path, list[Path]], tmp_path: Path
) -> None:
    base, models = stored
    weights = model(2)
    weights["a.bias"][1] = bad
    save_file(weights, models[1])
    with pytest.raises(InputError, match=r"'a\.bias' holds numbers that are not finite"):
        merge_files(Request(models, tmp_path / "out.safetensors", rule, base))
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rule": "task_arithmetic", "options": {"scale": float("nan")}}, "scale must be a finite number"),
        ({"rule": "ties", "options": {"scale": float("inf")}}, "scale must be a finite number"),
        ({"rule": "task_arithmetic", "options": {"scale": 1e39}}, "would be non-finite after the merge"),
        ({"rule": "dare", "options": {"drop": 1.0}}, "drop is a probability"),
        ({"weights": [float("nan"), 1.0, 1.0]}, "Weights must be finite"),
        ({"weights": [float("inf"), 1.0, 1.0]}, "Weights must be finite"),
        ({"weights": [1.0]}, "There are 3 models but 1 weights"),
    ],
)
def test_bad_numbers_write_nothing(
    changes: dict[str, Any], message: str, stored: tuple[Path, list[Path]], tmp_path: Path
) -> None:
    base, models = stored
    with pytest.raises(InputError, match=message):
        merge_files(Request(models, tmp_path / "out.safetensors", base=base, **changes))
    assert not list(tmp_path.glob("out*"))


def test_files_that_hold_nothing_or_nonsense(stored: tuple[Path, list[Path]], tmp_path: Path) -> None:
    base, (one, *_) = stored
    empty, whole = tmp_path / "empty.safetensors", one.read_bytes()
    save_file({}, empty)
    with pytest.raises(InputError, match="contains no tensors"):
        merge_files(Request([empty, empty], tmp_path / "out.safetensors", "soup"))
    for content in (b"", b"hello", whole[: len(whole) // 2]):
        one.write_bytes(content)
        with pytest.raises(InputError, match="cannot be read as safetensors"):
            merge_files(Request([one], tmp_path / "out.safetensors", base=base))
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="folder"):
        merge_files(Request([tmp_path / "folder"], tmp_path / "out.safetensors", base=base))
    assert not list(tmp_path.glob("out*"))


def test_nothing_is_overwritten_unless_asked(stored: tuple[Path, list[Path]], tmp_path: Path) -> None:
    base, models = stored
    out = tmp_path / "out.safetensors"
    out.write_text("precious")
    with pytest.raises(InputError, match="--force"):
        merge_files(Request(models, out, base=base))
    assert out.read_text() == "precious"
    merge_files(Request(models, out, base=base, force=True))
    assert len(load_file(out)) == 4
    with pytest.raises(InputError, match="one of the models that are read"):
        merge_files(Request(models, models[0], base=base, force=True))


def test_an_interrupted_merge_leaves_nothing(stored: tuple[Path, list[Path]], tmp_path: Path) -> None:
    def stop(name: str, count: int) -> None:
        raise KeyboardInterrupt

    base, models = stored
    with pytest.raises(KeyboardInterrupt):
        merge_files(Request(models, tmp_path / "out.safetensors", base=base), stop)
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"rule": "stich"}, "unknown rule 'stich'"),
        ({"base": None}, "--base"),
        ({"options": {"t": 0.5}}, "takes --keep, --per, --count, --conflicts; got --t"),
        ({"options": {"keep": 2.0}}, r"\(0, 1\], got 2.0"),
        ({"weights": [1.0]}, "3 models but 1 weights"),
        ({"models": []}, "nothing to merge"),
        ({"rule": "slerp"}, "two models, got 3"),
        ({"rule": "greedy_soup"}, "--recipe"),
        ({"base": Path("nowhere")}, "no weights at 'nowhere'"),
    ],
)
def test_what_cannot_be_done_is_said(
    change: dict[str, Any], text: str, stored: tuple[Path, list[Path]], tmp_path: Path
) -> None:
    base, models = stored
    asked = {"models": models, "out": tmp_path / "out.safetensors", "base": base, **change}
    with pytest.raises(InputError, match=text):
        merge_files(Request(**asked))


def folder(path: Path, tensors: dict[str, Tensor]) -> Path:
    """A folder as transformers writes it: two shards, their index, and settings."""
    path.mkdir()
    names = list(tensors)
    shards = {"model-00001-of-00002.safetensors": names[:2], "model-00002-of-00002.safetensors": names[2:]}
    for file, part in shards.items():
        save_file({n: tensors[n] for n in part}, path / file, metadata={"format": "pt"})
    where = {n: file for file, part in shards.items() for n in part}
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    (path / "config.json").write_text('{"model_type": "toy"}')
    return path


def test_a_folder_with_shards_stays_one(tmp_path: Path) -> None:
    base = folder(tmp_path / "base", model(0, torch.bfloat16))
    two = [folder(tmp_path / f"m{i}", model(i, torch.bfloat16)) for i in (1, 2)]
    out = tmp_path / "merged"
    merge_files(Request(two, out, base=base, options={"keep": 1.0}))
    assert json.loads((out / "config.json").read_text()) == {"model_type": "toy"}
    found = StoredModel(out)
    mean = (model(1, torch.bfloat16)["a.weight"].float() + model(2, torch.bfloat16)["a.weight"].float()) / 2
    torch.testing.assert_close(found["a.weight"], mean.to(torch.bfloat16))
    assert sorted(f.name for f in found.files) == [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    assert (out / "merge_card.md").exists()
    found.close()


def test_only_one_tensor_of_a_model_is_held(stored: tuple[Path, list[Path]]) -> None:
    found = StoredModel(stored[0])
    first = found["a.weight"]
    assert found["a.weight"] is first
    assert found["a.bias"] is not first
    assert found["a.weight"] is not first
    with pytest.raises(InputError, match="should be written as"):
        CheckpointWriter(found, stored[0].with_name("x.safetensors")).add("a.bias", torch.zeros(2))
    found.close()


def test_a_file_that_is_cut_short_is_refused(stored: tuple[Path, list[Path]], tmp_path: Path) -> None:
    base, models = stored
    models[0].write_bytes(models[0].read_bytes()[:-3])
    with pytest.raises(InputError, match="cannot be read as safetensors"):
        merge_files(Request(models, tmp_path / "out.safetensors", base=base))


def test_the_command(stored: tuple[Path, list[Path]], tmp_path: Path) -> None:
    base, models = stored
    out = tmp_path / "out.safetensors"
    asked = ["merge", *map(str, models), "--base", str(base), "--rule", "harmonic", "--keep", "0.3", "-o", str(out)]
    done = fedquilt(*asked)
    assert done.code == 0, done.err
    assert "27.78 % of its changes" in done.out
    again = fedquilt(*asked, "--json")
    assert again.code == 2
    assert "--force" in again.json["message"]
    third = fedquilt(*asked, "--force", "--json", "--weight", "1", "--weight", "2", "--weight", "1")
    assert third.json["weights"] == [1, 2, 1]


def test_other_names_of_rules() -> None:
    assert known_rule("harmonic") == known_rule("masked_mean") == "stitch"


def test_a_greedy_soup_is_scored_on_a_recipe(tmp_path: Path) -> None:
    """Of a model trained a little, the same with noise, and one of noise only, the last stays out."""
    from fedquilt.config.config import load
    from fedquilt.runs.build import federation_of, method_of
    from helpers.toy import last

    recipe = tmp_path / "r.toml"
    recipe.write_text('[data]\nclients = 4\n[model]\nkind = "logistic"\n[train]\noptimizer = {kind="sgd", lr=0.5}\n')
    config = load(recipe)
    method = method_of(config, federation_of(config))
    good = last(method, federation_of(config), rounds=3).state.shared
    draw = Seed(0).torch()
    noisy = {n: t + 0.001 * torch.randn(t.shape, generator=draw) for n, t in good.items()}
    wild = {n: 100 * torch.randn(t.shape, generator=draw) for n, t in good.items()}
    paths = [tmp_path / f"{i}.safetensors" for i in range(3)]
    for path, tensors in zip(paths, (good, wild, noisy), strict=True):
        save_file(tensors, path)
    facts = merge_files(Request(paths, tmp_path / "soup.safetensors", "greedy_soup", options={"recipe": recipe}))
    assert str(paths[1]) not in facts["chosen"]
    assert len(facts["density"]) == 3
    assert facts["density"][1] == 0.0
    card = card_of(tmp_path / "soup.safetensors").read_text().splitlines()
    told = {i: next(line for line in card if f"{i}.safetensors" in line) for i in range(3)}
    assert "left out" in told[1]
    assert "left out" not in told[0] + told[2]
    assert "% of its changes" not in "".join(card)  # there is no base that they could have changed
    assert facts["valid_accuracy"] > 0.5
