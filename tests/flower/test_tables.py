"""Tables on a real federation: the sites agree on columns by one exchange of sums, and end where a simulation ends."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedquilt.config.config import Config
from fedquilt.core.columns import Column, ColumnSums, PerColumn, check_sums
from fedquilt.data import Federation, imports
from fedquilt.deploy.dry_run import leaving
from fedquilt.deploy.site import settings_of, source_of
from fedquilt.engines.flower.inprocess import InProcess
from fedquilt.engines.flower.jobs import RunTerms
from fedquilt.engines.local import Local
from fedquilt.errors import FedquiltError, InputError
from fedquilt.records.record import unpack
from fedquilt.runs.build import federation_of, run_of
from fedquilt.storage.finished import result_of
from helpers import clinics
from helpers.nodes import flower, site

SITES = ("east", "north", "west")
RECIPE: dict[str, Any] = {
    "rounds": 3,
    "model": {"kind": "mlp", "hidden": [8]},
    "flower": {"nodes": 3, "classes": 2},
    "train": {"batch_size": 16},
    "engine": {"kind": "local"},
}


def sources(tmp_path: Path, **settings: Any) -> dict[str, Any]:
    """What each site has: a file of its own."""
    made = {}
    for name in SITES:
        file = clinics.write(tmp_path / f"{name}.csv", name)
        made[name] = source_of(settings_of({"data": str(file), "name": name, "state": str(tmp_path), **settings}, "x"))
    return made


def whole(tmp_path: Path, **options: Any) -> Federation:
    """The same clients in one process."""
    read = {name: imports.of_csv(clinics.write(tmp_path / f"{name}.csv", name)) for name in SITES}
    clients = {name: arrays.pair for name, arrays in read.items()}
    return Federation.from_clients(clients, classes=2, table=read["east"].table, **options)


def played(
    config: Config, found: dict[str, Any], folder: Path, seen: list[Any] | None = None, rounds: int = 99
) -> dict[str, Any]:
    """The result of a run on nodes in this process, or nothing if it is stopped early."""
    grid = InProcess({n: site(source) for n, source in enumerate(found.values(), start=1)})
    engine = flower(grid, run="tables")
    if seen is not None:
        push = grid.push_messages
        grid.push_messages = lambda messages: push([seen.append(m) or m for m in messages])  # type: ignore[func-returns-value,method-assign]
    for snapshot in run_of(config, engine, folder, engine.gather(3, classes=2)):
        if snapshot.round == rounds:
            break
    return result_of(folder) or {}


def local(config: Config, federation: Federation, folder: Path) -> dict[str, Any]:
    for _ in run_of(config, Local(), folder, federation):
        pass
    result = result_of(folder)
    assert result is not None
    return result


def test_a_federation_of_tables_ends_where_a_simulation_ends(tmp_path: Path):
    """Same digest, same preparation, same bytes of the exchange before round 1; and a resumed run asks nobody again."""
    config = Config.model_validate(RECIPE)
    here = local(config, whole(tmp_path), tmp_path / "here")
    there = played(config, sources(tmp_path), tmp_path / "there")
    assert there["digest"] == here["digest"]
    texts = [(tmp_path / place / "preparation.json").read_text() for place in ("here", "there")]
    assert texts[0] == texts[1]
    told = there["preparation"]
    assert told == here["preparation"]
    assert told["bytes_up"] > 0
    assert told["bytes_down"] > 0
    assert "3 number columns" in told["told"]
    assert "town (3 levels)" in told["told"]
    assert "flagged: age" in told["told"]
    seen: list[Any] = []
    played(config, sources(tmp_path), tmp_path / "cut", rounds=1)
    assert played(config, sources(tmp_path), tmp_path / "cut", seen)["digest"] == here["digest"]
    assert not [m for m in seen if m.metadata.message_type == "train.columns"]


def test_each_sites_own_numbers_never_leave_it(tmp_path: Path):
    config = Config.model_validate({**RECIPE, "data": {"standardise": "clients"}})
    seen: list[Any] = []
    there = played(config, sources(tmp_path), tmp_path / "there", seen)
    kept = json.loads((tmp_path / "there/preparation.json").read_text())
    assert all(column["mean"] == 0.0 and column["std"] == 1.0 for column in kept["columns"])
    federation = whole(tmp_path, standardise="clients")
    assert there["digest"] == local(config, federation, tmp_path / "here")["digest"]


def test_sites_whose_columns_differ_are_told_apart(tmp_path: Path):
    found = sources(tmp_path)
    file = tmp_path / "odd.csv"
    file.write_text((tmp_path / "west.csv").read_text().replace(",f,", ",1,").replace(",m,", ",2,"))
    found["west"] = source_of(settings_of({"data": str(file), "name": "west", "state": str(tmp_path)}, "x"))
    engine = flower(InProcess({n: site(source) for n, source in enumerate(found.values(), start=1)}), run="odd")
    with pytest.raises(InputError, match=r"sites differ in the prepare .* sex \(category\)"):
        engine.gather(3, classes=2)
    again = {"data": str(file), "name": "west", "state": str(tmp_path), "categories": ["sex"]}
    assert source_of(settings_of(again, "x")).prepare.kinds() == found["east"].prepare.kinds()  # type: ignore[attr-defined]


def test_every_message_says_how_rows_are_prepared(tmp_path: Path):
    """So that a node which was restarted can serve it."""
    from fedquilt.engines.flower.content import from_content

    seen: list[Any] = []
    played(Config.model_validate(RECIPE), sources(tmp_path), tmp_path / "there", seen)
    begins = {
        m.metadata.message_type: unpack(from_content(m.content)["begin"])
        for m in seen
        if m.metadata.message_type.startswith(("train.", "evaluate."))
    }
    assert all(isinstance(begin, RunTerms) for begin in begins.values())
    assert begins["train.columns"].prepare is None
    assert isinstance(begins["train.train"].prepare, PerColumn)


def test_a_dry_run_shows_the_sums(tmp_path: Path):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('rounds = 1\n[flower]\nclasses = 2\n[model]\nkind = "logistic"\n')
    file = clinics.write(tmp_path / "east.csv", "east")
    settings = settings_of({"data": str(file), "name": "east", "state": str(tmp_path)}, "x")
    shown = leaving(settings, recipe)
    assert {t["name"] for t in shown["exchanges"]["columns"]["tensors"]} >= {"upload.mean", "upload.squares"}


def sums(**changes: Any) -> ColumnSums:
    sound = ColumnSums(
        4, torch.tensor([4, 3]), torch.zeros(2).double(), torch.ones(2).double(), (torch.tensor([[7, 9], [2, 1]]),)
    )
    return replace(sound, **changes)


@pytest.mark.parametrize(
    "lie",
    [
        sums(rows=0),
        sums(rows=True),
        sums(present=torch.tensor([5, 3])),
        sums(present=torch.tensor([-1, 3])),
        sums(mean=torch.zeros(3).double()),
        sums(mean=torch.zeros(2)),
        sums(squares=-torch.ones(2).double()),
        sums(levels=()),
        sums(levels=(torch.tensor([[7, 7], [1, 1]]),)),
        sums(levels=(torch.tensor([[-7], [1]]),)),
        sums(levels=(torch.tensor([[7], [5]]),)),
        sums(levels=(torch.zeros(2, 2),)),
        "nothing",
        None,
        sums(mean=torch.tensor([0, 1e200], dtype=torch.float64)),
        sums(squares=torch.tensor([0, 1e200], dtype=torch.float64)),
        sums(present=None),
        sums(levels=None),
        sums(mean="much"),
        sums(levels=(torch.stack([torch.arange(300), torch.ones(300, dtype=torch.int64)]),)),
    ],
)
def test_sums_that_cannot_be_are_refused(lie: Any):
    blank = PerColumn((Column("age"), Column("sex", True)))
    check_sums(blank, sums())
    with pytest.raises((ValueError, FedquiltError)):
        check_sums(blank, lie)


def test_the_simulation_of_a_recipe_is_the_same_again(tmp_path: Path):
    """The numbers follow from the data alone, also through a recipe."""
    path = clinics.write(tmp_path / "all.csv")
    config = Config.model_validate({**RECIPE, "data": {"path": str(path), "user": "site"}})
    assert federation_of(config).prepare == Federation.from_csv(path, user="site").prepare
