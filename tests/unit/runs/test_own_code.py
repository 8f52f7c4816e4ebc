"""Code of one's own in recipes: ``file.py:Name``, its arguments, its identity, its copy, and other processes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fedquilt import own_code
from fedquilt.config.config import load, parse
from fedquilt.errors import ConfigError, InputError
from fedquilt.own_code.files import KNOWN
from helpers.command import SMALL, fedquilt

CODE = """
from dataclasses import dataclass, replace

import torch
from torch import nn

import helper
from fedquilt import FedAvg, OnBase
from fedquilt.core.params import add, scale, sub


class MyNet(nn.Module):
    def __init__(self, features, classes, width: int = 16):
        super().__init__()
        self.first, self.last = nn.Linear(features, width), nn.Linear(width, classes)

    def forward(self, x):
        return self.last(helper.act(self.first(x.flatten(1))))


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(64, 10)

    def forward(self, x):
        return self.last(x.flatten(1))


class Narrow(Plain):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(64, 7)


class Wrong(Plain):
    def forward(self, x):
        return self.lost(x)


@dataclass(frozen=True, kw_only=True)
class Half(OnBase):
    base: FedAvg
    step: float = 0.5

    def exchanges(self):
        (train,) = self.base.exchanges()
        return (replace(train, up=self.up),)

    def up(self, state, replies, context):
        after = self.base.up(state, replies, context)
        return replace(after, shared=add(state.shared, scale(sub(after.shared, state.shared), self.step)))


def averaged(objective, **settings):
    return FedAvg(objective, **settings)


def small(objective, epochs):
    return FedAvg(objective, epochs=epochs)


@dataclass(frozen=True)
class Fails(OnBase):
    base: FedAvg

    def up(self, state, replies, context):
        return 1 / 0

    exchanges = Half.exchanges
"""
BASE = """
from torch import nn


class Base(nn.Linear):
    def __init__(self):
        super().__init__(64, 10)

    def forward(self, x):
        return super().forward(x.flatten(1))
"""
HELPER = "import torch\n\n\ndef act(x):\n    return torch.relu(x)\n"


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A recipe's folder with own code in it, which is not the current one."""
    (tmp_path / "my.py").write_text(CODE)
    (tmp_path / "helper.py").write_text(HELPER)
    file = tmp_path / "recipe.toml"
    file.write_text(
        SMALL.replace('kind = "logistic"', 'kind = "my.py:MyNet"') + f'\n[output]\nfolder = "{tmp_path}/runs"\n'
    )
    return file


def problems(recipe: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as error:
        load(recipe, overrides)
    return "\n".join(error.value.problems)


def test_a_model_and_a_method_of_ones_own_run_and_resume(recipe: Path) -> None:
    said = fedquilt("run", recipe, "method.kind=my.py:Half", "method.step=0.9", "model.width=8", "--json")
    assert said.code == 0, said.err
    assert fedquilt("resume", said.json["folder"], "--json").json["digest"] == said.json["digest"]
    again = fedquilt("run", Path(said.json["folder"]) / "config.toml", "--fresh", "--json")  # from its copy
    assert again.json["digest"] == said.json["digest"]
    assert again.json["folder"] == said.json["folder"]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_worker_processes_have_the_same_code(recipe: Path, start: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDQUILT_START", start)
    asked = ("method.kind=my.py:Half", "rounds=1", "--json")
    here = fedquilt("run", recipe, *asked)
    there = fedquilt("run", recipe, *asked, "engine.kind=workers", "engine.processes=1", "--fresh")
    assert there.code == 0, there.err
    assert here.json["digest"] == there.json["digest"]


@pytest.mark.parametrize("kind", ["Plain", "MyNet"])
def test_models_are_given_what_they_ask_for(recipe: Path, kind: str) -> None:
    assert fedquilt("run", recipe, f'model={{kind="my.py:{kind}"}}', "rounds=1").code == 0


@pytest.mark.parametrize("method", ["averaged", "small"])
def test_functions_make_methods_too(recipe: Path, method: str) -> None:
    mine = fedquilt("run", recipe, f"method.kind=my.py:{method}", "rounds=1", "train.batch_size=32", "--json")
    if method == "small":  # it has no place for the recipe's batch size
        assert mine.code == 2
        assert "has no place for train.optimizer, train.batch_size" in mine.out
    else:
        assert (
            mine.json["digest"] == fedquilt("run", recipe, "rounds=1", "train.batch_size=32", "--json").json["digest"]
        )


def test_all_that_is_wrong_is_told_at_once(recipe: Path) -> None:
    told = problems(recipe, "model.widht=3", "model.width=x", "method.kind=my.py:Half", "method.stp=1", "rounds=0")
    assert "model.widht: unknown key for 'my.py:MyNet'; did you mean 'width'?" in told
    assert "method.stp: unknown key for 'my.py:Half'; did you mean 'step'?" in told
    assert "model.width: should be a whole number" in told
    assert "rounds" in told


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("my.py:MyNt", "'my.py' has no 'MyNt'; did you mean 'MyNet'?"),
        ("my.py", "Write 'my.py:MyNet' (it has MyNet, Plain,"),
        ("your.py:Net", "There is no file 'your.py' in"),
        ("no_such_package.module:Net", "The module 'no_such_package.module' cannot be imported: ModuleNotFoundError"),
        ("broken.py:Net", "ZeroDivisionError: division by zero (broken.py, line 2: x = 1 / 0)"),
        ("typo.py:Net", "'typo.py' cannot be imported: SyntaxError: invalid syntax (typo.py, line 1: class Net"),
        ("leaves.py:Net", "'leaves.py' cannot be imported: SystemExit: 3 (leaves.py, line 1:"),
    ],
)  # fmt: skip
def test_what_a_reference_lacks_is_told(recipe: Path, kind: str, told: str) -> None:
    (recipe.parent / "broken.py").write_text("\nx = 1 / 0\n")
    (recipe.parent / "typo.py").write_text("class Net of nn:\n    pass\n")
    (recipe.parent / "leaves.py").write_text("raise SystemExit(3)\n")
    assert told in problems(recipe, f'model={{kind="{kind}"}}')


def test_a_model_that_does_not_fit_is_refused_before_the_run(recipe: Path) -> None:
    said = fedquilt("run", recipe, 'model={kind="my.py:Narrow"}')
    assert said.code == 2
    assert "The data have 10 classes" in said.err
    assert "(1, 7)" in said.err
    said = fedquilt("run", recipe, 'model={kind="my.py:Wrong"}')
    assert said.code == 2
    assert "my.py, line 38: return self.lost(x)" in said.err
    assert not (recipe.parent / "runs").exists()


def test_a_model_that_does_not_fit_a_table_is_told_its_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "".join(f"{i},{-i if i % 3 else ''},{'ab'[i % 2]}\n" for i in range(40))
    (tmp_path / "rows.csv").write_text(f"one,two,label\n{rows}")
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n\n\nclass Two(nn.Module):\n    def __init__(self, classes):\n"
        "        super().__init__()\n        self.head = nn.Linear(2, classes)\n\n"
        "    def forward(self, x):\n        return self.head(x)\n"
    )
    (tmp_path / "r.toml").write_text(
        'model = "mine.py:Two"\n[data]\npath = "rows.csv"\nlabel = "label"\nclients = 2\npartition = { kind = "iid" }\n'
    )
    monkeypatch.chdir(tmp_path)
    said = fedquilt("run", "r.toml")
    assert said.code == 2
    assert "cannot take a row of these data, of 3 inputs (2 number columns" in said.err
    assert "missing cells filled in and flagged: two; 3 inputs in all" in said.err
    assert "an argument 'features' of a model gets their number" in said.err


def test_errors_of_a_method_tell_the_line(recipe: Path) -> None:
    said = fedquilt("run", recipe, "method.kind=my.py:Fails")
    assert said.code == 3
    assert "ZeroDivisionError" in said.err
    assert "my.py, line 68: return 1 / 0" in said.err


def test_the_content_of_the_files_is_the_identity(recipe: Path, tmp_path: Path) -> None:
    before = load(recipe).identity()
    (recipe.parent / "unrelated.py").write_text("x = 1")
    assert load(recipe).identity() == before
    (recipe.parent / "helper.py").write_text(HELPER.replace("relu", "tanh"))
    assert load(recipe).identity() != before
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name, text in {"my.py": CODE, "helper.py": HELPER, "recipe.toml": recipe.read_text()}.items():
        (elsewhere / name).write_text(text)
    assert load(elsewhere / "recipe.toml").identity() == before


def test_resume_refuses_code_that_has_changed(recipe: Path) -> None:
    folder = Path(fedquilt("run", recipe, "--json").json["folder"])
    (result,) = folder.glob("result.json")
    result.unlink()
    (recipe.parent / "helper.py").write_text(HELPER.replace("relu", "tanh"))
    said = fedquilt("resume", folder)
    assert said.code == 2
    assert "-    return torch.relu(x)\n+    return torch.tanh(x)" in said.err
    assert "--saved-code" in said.err
    assert fedquilt("resume", folder, "--saved-code").code == 0
    (recipe.parent / "my.py").unlink()
    (recipe.parent / "helper.py").unlink()
    assert fedquilt("resume", folder).code == 0  # what is gone has not changed


def test_a_copy_that_was_edited_is_refused(recipe: Path) -> None:
    folder = Path(fedquilt("run", recipe, "--json").json["folder"])
    (copy,) = folder.glob("code/*/helper.py")
    copy.write_text(HELPER.replace("relu", "tanh"))
    KNOWN.clear()  # as in another process
    said = fedquilt("resume", folder, "--saved-code")
    assert said.code == 2
    assert "is not what the recipe was made with" in said.err


def test_packages_of_the_recipes_folder_and_installed_ones(recipe: Path) -> None:
    package = recipe.parent / "parts"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "nets.py").write_text("from .base import Base\n\n\nclass Net(Base):\n    pass\n")
    (package / "base.py").write_text(BASE)
    config = load(recipe, ['model={kind="parts.nets:Net"}'])
    assert config.model.kind.startswith("parts.nets@")
    said = fedquilt("run", recipe, 'model={kind="parts.nets:Net"}', "rounds=1", "--json")
    assert said.code == 0, said.err
    index = json.loads((Path(said.json["folder"]) / "code" / "files.json").read_text())
    assert [sorted(i["sha256"]) for i in index.values()] == [["parts/__init__.py", "parts/base.py", "parts/nets.py"]]
    same = fedquilt("run", recipe, 'model={kind="fedquilt.models.small:LogisticRegression"}', "rounds=1", "--json")
    assert (
        same.json["digest"] == fedquilt("run", recipe, 'model={kind="logistic"}', "rounds=1", "--json").json["digest"]
    )


@pytest.mark.parametrize("kind", ["parts:Net", "parts/__init__.py:Net"])
def test_a_package_itself_with_its_relative_imports(recipe: Path, kind: str) -> None:
    package = recipe.parent / "parts"
    package.mkdir()
    (package / "__init__.py").write_text("from .base import Base\n\n\nclass Net(Base):\n    pass\n")
    (package / "base.py").write_text(BASE)
    said = fedquilt("run", recipe, f'model={{kind="{kind}"}}', "rounds=1", "--json")
    assert said.code == 0, said.err
    shutil.rmtree(package)
    again = fedquilt("run", Path(said.json["folder"]) / "config.toml", "--fresh", "--json")  # from its copy
    assert again.code == 0, again.err
    assert again.json["digest"] == said.json["digest"]


def test_names_of_files(recipe: Path) -> None:
    """Also those that no import statement could have; at sites, too."""
    for name in ("01-my net.py", "für_mich.py"):
        (recipe.parent / name).write_text(BASE)
        with own_code.looking_in(recipe.parent):
            assert own_code.load(own_code.where(f"{name}:Base")).__name__ == "Base"
        (code,) = own_code.used(own_code.where(f"{recipe.parent / name}:Base"))
        assert [found.hash for found in own_code.received(own_code.packed([code]))] == [code.hash]
    (recipe.parent / "my.v2.py").write_text(BASE)
    assert "Rename it to one of letters, digits, '_', '-' and spaces, such as 'my_v2.py'" in problems(
        recipe, 'model={kind="my.v2.py:Base"}'
    )


def test_imports_of_what_is_beside_bind_nothing_else(recipe: Path) -> None:
    (recipe.parent / "parts").mkdir()
    (recipe.parent / "parts" / "base.py").write_text("NAME = 'base'\n")
    (recipe.parent / "other.py").write_text("_ = str.upper\nimport parts.base\nNAME = _(parts.base.NAME)\n")
    with own_code.looking_in(recipe.parent):
        assert own_code.load(own_code.where("other.py:NAME")) == "BASE"


def test_two_files_of_one_name_and_two_versions_of_one_file(recipe: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "my.py").write_text("import helper\nNAME = helper.NAME\n")
    (other / "helper.py").write_text("NAME = 'other'\n")
    with own_code.looking_in(other):
        assert own_code.load(own_code.where("my.py:NAME")) == "other"
        (other / "helper.py").write_text("NAME = 'changed'\n")
        assert own_code.load(own_code.where("my.py:NAME")) == "changed"
    with own_code.looking_in(recipe.parent), pytest.raises(InputError, match="has no 'NAME'"):
        own_code.load(own_code.where("my.py:NAME"))


def test_comparisons_name_it_shortly(recipe: Path) -> None:
    methods = 'compare.methods=["fedavg", "my.py:Half", {kind="my.py:averaged"}]'
    said = fedquilt("compare", recipe, methods, "compare.seeds=[0]", "rounds=1", "--json")
    assert said.code == 0, said.err
    assert [row["method"] for row in said.json["rows"]] == ["fedavg", "Half", "averaged"]


def test_settings_in_python_look_in_the_current_folder(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(recipe.parent)
    assert parse({"model": {"kind": "my.py:MyNet"}}).model.kind == load(recipe).model.kind
