"""The recipes of Localize-and-Stitch, on small folders in the official layouts and a small pretrained transformer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from fedquilt.config.config import load
from fedquilt.models.vit import ViT
from fedquilt.runs.build import federation_of, method_of
from helpers.command import fedquilt

ROOT = Path(__file__).parents[3] / "recipes" / "stitch"
SIZES: dict[str, Any] = {"patch": 8, "width": 16, "depth": 1, "heads": 2, "mlp": 32}
CLASSES = {"eurosat": ("AnnualCrop", "Forest"), "resisc45": ("airplane", "beach"), "dtd": ("banded", "bubbly")}


def picture(path: Path, shade: int, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 60, (20, 24, 3), dtype=np.uint8)
    Image.fromarray(noise + np.uint8(shade)).save(path)


def official(name: str, top: Path) -> None:
    """Twelve pictures of each of two classes where the data set's authors put them."""
    place = {
        "eurosat": top / name / "2750",
        "resisc45": top / name / "NWPU-RESISC45",
        "dtd": top / name / "dtd" / "images",
    }
    files = []
    for label, kind in enumerate(CLASSES[name]):
        for i in range(12):
            file = f"{kind}/{kind}_{i:03d}.jpg"
            picture(place[name] / file, 120 * label, i)
            files.append(file)
    if name == "dtd":
        labels = top / name / "dtd" / "labels"
        labels.mkdir()
        for split, part in (("train1", files[::3]), ("val1", files[1::3]), ("test1", files[2::3])):
            (labels / f"{split}.txt").write_text("\n".join(part) + "\n")


@pytest.fixture
def pretrained(tmp_path: Path) -> Path:
    """A folder as one would download it; its head has a thousand classes, which no data set here has."""
    module = ViT(classes=1000, size=16, **SIZES)
    folder = tmp_path / "vit"
    folder.mkdir()
    save_file({n.removeprefix("features."): t for n, t in module.state_dict().items()}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("name", [*CLASSES, "eurosat_features", "dtd_features"])
def test_vision_recipes_on_small_folders(
    name: str, tmp_path: Path, pretrained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = name.removesuffix("_features")
    official(source, tmp_path)
    monkeypatch.setenv("FEDQUILT_DATA", str(tmp_path))
    monkeypatch.setenv("FEDQUILT_CACHE", str(tmp_path / "cache"))
    sizes = [f"model.{k}={v}" for k, v in SIZES.items()]
    changes = [
        "rounds=1",
        "data.clients=2",
        "data.partition={kind='iid'}",
        "model.kind=vit_tiny",
        f"model.weights={pretrained}",
        *sizes,
        "train.epochs_first=1",
        "engine.kind=local",
        f"output.folder={tmp_path / 'runs'}",
        "method={kind='localize_stitch', keep=0.5}",
        "data.transforms=[{kind='resize', size=16}, {kind='normalise', mean=0.1307, std=0.3081}]",
    ]
    done = fedquilt("run", ROOT / f"{name}.toml", *changes, "--json")
    assert done.code == 0, done.err + done.out
    config = load(ROOT / f"{name}.toml", changes)
    federation = federation_of(config)
    method: Any = method_of(config, federation)
    assert federation.classes == 2
    shared = method.init_server(method_seed()).shared
    if name.endswith("_features"):
        assert sorted(shared) == ["head.bias", "head.weight"]
        assert done.json["bytes_up"] < 2000
    else:
        given = ViT(classes=1000, size=16, **SIZES).state_dict()
        assert sorted(shared) == sorted(given)
        stored = load_start(pretrained)
        assert torch.equal(shared["features.pos_embed"], stored["pos_embed"])


def method_seed() -> Any:
    from fedquilt.core.seed import Seed

    return Seed(0)


def load_start(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def test_the_settings_are_those_of_the_published_runs() -> None:
    config = load(ROOT / "mnist.toml")
    assert (config.rounds, config.data.clients, config.data.limit) == (12, 5, 6000)
    assert (config.train.epochs_first, config.train.epochs, config.train.batch_size) == (4, 1, 64)
    assert config.train.optimizer.options == {"lr": 0.0003}
    assert config.data.partition.options == {"alpha": 0.15}
    assert [m.kind for m in config.compare.methods] == [
        "fedavg",
        "fedavg_noise",
        "localize_stitch",
        "localize_stitch",
        "stitch_once",
        "single_model",
        "local_only",
    ]


def test_one_comparison_has_every_baseline(tmp_path: Path) -> None:
    done = fedquilt(
        "compare", ROOT / "digits.toml", "rounds=2", "compare.seeds=[0]", f"output.folder={tmp_path}", "--json"
    )
    assert done.code == 0, done.err
    rows = {r["method"].split(",")[0]: r for r in done.json["rows"]}
    assert {"fedavg", "fedavg_noise", "localize_stitch", "stitch_once", "single_model", "local_only"} <= set(rows)
    assert rows["local_only"]["accuracy"] > 0
