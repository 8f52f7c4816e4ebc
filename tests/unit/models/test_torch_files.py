"""Files of torch.save: their tensors are read, and nothing in them is run."""

from __future__ import annotations

import json
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from fedquilt.analysis.merging import Request, merge_files
from fedquilt.errors import InputError
from fedquilt.models.weights import torch_files
from fedquilt.models.weights.files import read_tensors
from fedquilt.models.weights.torch_files import read_torch
from helpers.command import fedquilt


def model(value: float) -> dict[str, torch.Tensor]:
    return {"a.weight": torch.full((3, 2), value), "a.bias": torch.arange(3.0) * value}


def saved(path: Path, content: Any) -> Path:
    torch.save(content, path)  # noqa: TID251 - such files are what is read here
    return path


@pytest.mark.parametrize("around", [None, "state_dict", "model_state_dict", "model"])
def test_tensors_come_out_as_they_went_in(tmp_path: Path, around: str | None) -> None:
    content = OrderedDict(model(2.0))
    path = saved(tmp_path / "m.pt", content if around is None else {around: content, "epoch": 3})
    found = read_tensors(path)
    assert found.keys() == content.keys()
    assert all(torch.equal(found[n], t) for n, t in content.items())


def test_merging_them_is_merging_safetensors(tmp_path: Path) -> None:
    for place, value in enumerate((1.0, 2.0, 4.0)):
        save_file(model(value), tmp_path / f"{place}.safetensors")
        saved(tmp_path / f"{place}.{'bin' if place == 1 else 'pt'}", model(value))
    base, *ours = [tmp_path / f"{i}.safetensors" for i in range(3)]
    merge_files(Request(ours, tmp_path / "safe.safetensors", base=base, options={"keep": 0.5}))
    old, *others = [tmp_path / name for name in ("0.pt", "1.bin", "2.pt")]
    done = fedquilt("merge", *others, "--base", old, "--keep", "0.5", "-o", tmp_path / "o.safetensors")
    assert done.code == 0, done.out
    expected, found = load_file(tmp_path / "safe.safetensors"), load_file(tmp_path / "o.safetensors")
    assert all(torch.equal(found[n], t) for n, t in expected.items())
    with pytest.raises(InputError, match="written as safetensors"):
        merge_files(Request(others, tmp_path / "o.pt", base=old))


def test_folders_of_shards_become_safetensors(tmp_path: Path) -> None:
    for name, value in (("base", 0.0), ("one", 1.0)):
        folder = tmp_path / name
        folder.mkdir()
        shards = {n: f"pytorch_model-0000{i}-of-00002.bin" for i, n in enumerate(model(value), 1)}
        for n, tensor in model(value).items():
            saved(folder / shards[n], {n: tensor})
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": shards}))
        (folder / "config.json").write_text("{}")
    out = tmp_path / "out"
    merge_files(
        Request([tmp_path / "one"], out, base=tmp_path / "base", rule="task_arithmetic", options={"scale": 1.0})
    )
    assert sorted(p.name for p in out.iterdir() if "card" not in p.name) == [
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]
    found = read_tensors(out)
    assert all(torch.equal(found[n], t) for n, t in model(1.0).items())


class Trap:
    """What a pickle would run."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path("trapped"),)


def test_nothing_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for content in ({**model(1.0), "trap": Trap()}, nn.Linear(2, 2)):
        with pytest.raises(InputError, match=r"holds more than tensors, .*it asks for ") as told:
            read_torch(saved(tmp_path / "evil.pt", content))
        assert "Re-running" not in str(told.value)  # torch's advice is to trust the file
    assert not (tmp_path / "trapped").exists()


def test_other_files_are_refused_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for content, told in (([1, 2], "list"), ({"epoch": 3}, "epoch"), ({}, "nothing")):
        with pytest.raises(InputError, match=f"no table of tensors, but {told}"):
            read_torch(saved(tmp_path / "m.pt", content))
    (tmp_path / "text.pt").write_text("no weights")
    with pytest.raises(InputError, match="not a file that torch"):
        read_torch(tmp_path / "text.pt")
    whole = saved(tmp_path / "whole.pt", model(1.0)).read_bytes()
    (tmp_path / "cut.pt").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError):
        read_torch(tmp_path / "cut.pt")
    with zipfile.ZipFile(tmp_path / "whole.pt") as given, zipfile.ZipFile(tmp_path / "z.pt", "w", 8) as packed:
        for entry in given.infolist():
            packed.writestr(entry.filename, given.read(entry))
    with pytest.raises(InputError, match="compressed"):
        read_torch(tmp_path / "z.pt")
    monkeypatch.setattr(torch_files, "MOST_PICKLE", 10)
    with pytest.raises(InputError, match="the list of its tensors"):
        read_torch(tmp_path / "whole.pt")


def test_a_few_bytes_cannot_pretend_to_be_many_numbers(tmp_path: Path) -> None:
    wide = torch.zeros(1).expand(10**12)
    with pytest.raises(InputError, match="not stored number by number"):
        read_torch(saved(tmp_path / "wide.pt", {"w": wide}))
    one = torch.zeros(1000)
    with pytest.raises(InputError, match="times the file"):
        read_torch(saved(tmp_path / "many.pt", {f"w{i}": one for i in range(100)}))
