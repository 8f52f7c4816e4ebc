"""What people read for methods: display names, options, labels of recipes; ids stay in files."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from fedquilt.config.config import load, parse
from fedquilt.config.shown import shown_apart, shown_of
from fedquilt.errors import ConfigError
from fedquilt.registry import METHODS, RegistryEntry
from fedquilt.results.views import views_in
from fedquilt.studies.compare import cells
from helpers.command import fedquilt, small
from helpers.pages import panel


def read_as(*methods: Any) -> list[str]:
    return shown_apart(parse({"compare": {"methods": list(methods)}}).compare.methods)


def test_methods_have_the_names_of_their_papers_all_different() -> None:
    names = {kind: entry.shown for kind, entry in METHODS.items()}
    assert names["localize_stitch"] == "Localize-and-Stitch"
    assert (names["flhc"], names["fedprox"], names["local_only"]) == ("FL+HC", "FedProx", "Local only")
    assert len(set(names.values())) == len(names)
    assert not [name for name in names.values() if "_" in name]


@pytest.mark.parametrize(
    ("where", "name"), [("my.package:BestMethod", "BestMethod"), ("my:Rooms.Best", "Best"), ("my:build", "mine")]
)
def test_a_method_of_ones_own_is_called_as_its_class(where: str, name: str) -> None:
    assert RegistryEntry("mine", where, "").shown == name


@pytest.mark.parametrize(
    ("methods", "names"),
    [
        (["fedavg", {"kind": "fedprox", "mu": 0.1}], ["FedAvg", "FedProx (mu 0.1)"]),
        ([{"kind": "fedprox", "mu": 0.01}], ["FedProx"]),  # its default
        (
            [{"kind": "fedprox", "mu": 0.01}, "fedprox", "fedavg", "fedavg"],
            ["FedProx (mu 0.01)", "FedProx", "FedAvg #3", "FedAvg #4"],
        ),
        ([{"kind": "hgls", "own_only": True, "search": "joint"}], ["HGLS (own_only, search joint)"]),
        ([{"kind": "fedavg", "aggregate": {"kind": "ties", "keep": 0.5}}], ["FedAvg (aggregate ties keep 0.5)"]),
        ([{"kind": "fedprox", "mu": 0.1, "label": "Ours"}, "fedprox"], ["Ours", "FedProx"]),
    ],
)
def test_names_tell_the_methods_of_a_recipe_apart(methods: list[Any], names: list[str]) -> None:
    assert read_as(*methods) == names


def test_a_method_of_a_file_is_called_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def Momentum(objective, beta=0.9):\n    return None\n")
    methods = ["mine.py:Momentum", {"kind": "mine.py:Momentum", "beta": 0.5}]
    asked = parse({"compare": {"methods": methods}}, folder=tmp_path).compare.methods
    assert "@" in asked[0].kind
    assert shown_apart(asked) == ["Momentum", "Momentum (beta 0.5)"]


def test_labels_are_text_and_differ() -> None:
    with pytest.raises(ConfigError, match="two methods have the label 'x'; give each one of its own"):
        read_as({"kind": "fedavg", "label": "x"}, {"kind": "fedprox", "label": "x"})
    with pytest.raises(ConfigError, match="label"):
        read_as({"kind": "fedavg", "label": ""})
    with pytest.raises(ConfigError, match="label"):
        read_as({"kind": "fedavg", "label": "two\nlines"})


def test_folders_of_before_have_names_too() -> None:
    assert shown_of("fedprox,mu=0.1") == "FedProx (mu 0.1)"
    assert shown_of("fedavg#1") == "FedAvg #1"
    assert shown_of("lr=0.1, epochs=2") == "lr=0.1, epochs=2"  # a point of a sweep


def test_people_read_labels_and_files_hold_ids(tmp_path: Path) -> None:
    rows = '[{kind="fedavg", label="$A_{vg}$ & co"}, {kind="fedprox", mu=0.3}]'
    recipe = small(tmp_path)
    said = fedquilt("compare", recipe, f"compare.methods={rows}", "compare.seeds=[0]", "rounds=1")
    assert said.code == 0, said.err
    assert "$A_{vg}$ & co" in said.out
    assert "FedProx (mu 0.3)" in said.out
    (top,) = (tmp_path / "runs").glob("compare-*")
    assert {v.display for v in views_in(top)} == {"$A_{vg}$ & co", "FedProx (mu 0.3)"}
    shown = {row["method"] for row in panel(top / "report.html", "comparison")["blocks"][0]["rows"]}
    assert {"$A_{vg}$ & co", "FedProx (mu 0.3)"} <= shown
    for name, column in (("table.csv", "method"), ("curves.csv", "method"), ("comparison_table.csv", "Algorithm")):
        with (top / name).open() as file:
            ids = {row[column] for row in csv.DictReader(file)} - {"majority class"}
        assert ids == {"fedavg", "fedprox"}, name
    summary = json.loads((top / "summary.json").read_text())
    assert {row["method"]: row["display"] for row in summary["rows"]}["fedprox"] == "FedProx (mu 0.3)"
    renamed = load(recipe, [f"compare.methods={rows.replace('co', 'x')}", "compare.seeds=[0]", "rounds=1"])
    assert cells(renamed)[0] == top  # another label is no other comparison
    assert cells(renamed)[1][0].display == "$A_{vg}$ & x"
