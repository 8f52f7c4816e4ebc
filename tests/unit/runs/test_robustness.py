"""``fedquilt robustness``: which aggregator holds in a federation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedquilt.config.config import load, parse
from fedquilt.errors import ConfigError
from fedquilt.results.breakdown import Attacked, Breakdown, told
from fedquilt.studies.robustness import cells, folder_of, robustness
from helpers.command import fedquilt

RECIPE = """
name = "tiny"
rounds = 2
data = {{ source = "digits", clients = 5, partition = "iid", valid = 0.0 }}
model = "logistic"
engine = {{ kind = "local" }}
output = {{ folder = "{folder}" }}
[train]
batch_size = 20
optimizer = {{ kind = "sgd", lr = 0.3 }}
[robustness]
rules = ["median", {{ kind = "nearest_mixing", then = "trimmed_mean" }}, {{ kind = "mean", checks = {{}} }}]
attacks = [{{ kind = "sign_flip", factor = 10.0 }}]
shares = [0.2, 0.4]
seeds = [0, 1]
"""


def recipe(folder: Path) -> Path:
    path = folder / "tiny.toml"
    path.write_text(RECIPE.format(folder=folder / "runs"))
    return path


def test_the_command_tells_which_rule_to_take_and_goes_on(tmp_path: Path) -> None:
    path = recipe(tmp_path)
    first = fedquilt("robustness", str(path), "robustness.seeds=[0]", "--json").json
    folder = Path(first["folder"])
    assert len(list(folder.glob("*/result.json"))) == 4 * 3
    when = {p: p.stat().st_mtime_ns for p in folder.glob("*/result.json")}
    summary = fedquilt("robustness", str(path), "--json").json  # another seed: what is finished is kept
    assert summary["folder"] == first["folder"]
    assert all(p.stat().st_mtime_ns == t for p, t in when.items())
    assert len(list(folder.glob("*/result.json"))) == 4 * 3 * 2
    rules = [row["rule"] for row in summary["rules"]]
    assert rules == ["mean", "median", "nearest_mixing+trimmed_mean", "mean+checks"]
    assert summary["recommended"]["rule"] in rules[1:]
    cell = next(c for c in summary["cells"] if (c["rule"], c["share"]) == ("mean", 0.4))
    result = [json.loads(p.read_text()) for p in folder.glob("mean-sign_flip-clients-0.4-*/result.json")]
    assert sorted(cell["seeds"].values()) == pytest.approx(sorted(r["last"]["test_accuracy"] for r in result))
    page = (folder / "robustness.html").read_text()
    assert all(rule in page for rule in rules)
    assert f"Take {summary['recommended']['rule']}" in page
    assert page.count("data:image/png;base64,") == 1
    assert (folder / "robustness_clients.csv").read_text().count("\n") == 1 + 4 * 3
    shown = fedquilt("robustness", str(path)).out
    assert "no attack" in shown
    assert f"Take {summary['recommended']['rule']}" in shown


def test_rules_are_told_the_largest_share_and_attackers_their_own(tmp_path: Path) -> None:
    config = load(recipe(tmp_path), ['robustness.by=["clients","samples"]'])
    found = {(c.rule, str(c.attacked)): c.run.config for c in cells(config)}
    aggregate = found["nearest_mixing+trimmed_mean", "sign_flip 20 % of clients"].method.options["aggregate"]
    assert aggregate == {"kind": "nearest_mixing", "byzantine": 0.4, "then": {"kind": "trimmed_mean", "byzantine": 0.4}}
    attack = found["mean", "sign_flip 20 % of samples"].attack
    assert attack is not None
    assert (attack.kind, attack.samples, attack.options) == ("sign_flip", 0.2, {"factor": 10.0})
    assert found["mean+checks", "None"].checks is not None
    assert found["mean", "None"].attack is None
    assert len({c.identity() for c in found.values()}) == len(found)
    assert folder_of(config) == folder_of(config.model_copy(update={"robustness": type(config.robustness)()}))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("method.kind=fednova", "method.aggregate: 'fednova' takes none: it averages directions"),
        ('robustness.rules=["medain"]', "unknown aggregate 'medain'; did you mean 'median'?"),
        ('robustness.attacks=["sign_flop"]', "unknown attack 'sign_flop'; did you mean 'sign_flip'?"),
        ("robustness.shares=[0.5]", "robustness.shares.0: should be less than 0.5, got 0.5"),
    ],
)
def test_what_cannot_be_is_told_before_anything_is_played(change: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        robustness(load(recipe(tmp_path), [change]))
    assert says in str(error.value)
    assert not (tmp_path / "runs").exists()


A, B = Attacked("ipm", 0.2), Attacked("alie", 0.2)


def breakdown(**rules: Any) -> dict[str, Any]:
    """From accuracies of two clients over two seeds: without attack, under A, under B; under attacks client 'b' is
    malicious."""
    found = Breakdown(chance=0.1)
    for rule, (none, a, b) in rules.items():
        for seed in (0, 1):
            found.add(rule, None, seed, {"a": none[seed], "b": none[seed] - 0.2})
            found.add(rule, A, seed, {"a": a[seed]} if a[seed] else {})
            found.add(rule, B, seed, {"a": b[seed]})
    return found.summary()


def test_losses_are_counted_by_hand() -> None:
    """The mean has .9 and .8 of client a (and .8, .7 with b); under A one run ends early and counts with .1, the other
    has .3: lost .8 and .5, .65 on average. The median has .88, .79 without an attack: its cost is (.02 + .01) / 2."""
    summary = breakdown(mean=((0.9, 0.8), (None, 0.3), (0.9, 0.7)), median=((0.88, 0.79), (0.87, 0.79), (0.85, 0.75)))
    mean, median = summary["rules"]
    assert (mean["accuracy"], mean["cost"]) == (pytest.approx(0.75), 0)
    # a run that ended early has no honest clients to compare: all of the mean's count, .8 - .1 and .8 - .3
    assert mean["lost"] == pytest.approx(((0.8 - 0.1) + (0.8 - 0.3)) / 4 + (0.0 + 0.1) / 4)
    assert (mean["worst"], mean["worst_attack"]) == (pytest.approx(0.6), "ipm 20 % of clients")
    assert median["cost"] == pytest.approx(0.015)
    assert median["lost"] == pytest.approx((0.03 + 0.01 + 0.05 + 0.05) / 4)
    assert (median["held"], median["spoilt"]) == (1, 1)
    assert summary["recommended"]["rule"] == "mean"  # the median costs more than a point
    assert summary["helpless"] == []


def test_a_rule_that_costs_little_is_recommended_and_where_nothing_helps_is_told() -> None:
    summary = breakdown(
        mean=((0.9, 0.9), (0.3, 0.3), (0.2, 0.2)),
        median=((0.9, 0.9), (0.88, 0.88), (0.6, 0.6)),
        krum=((0.7, 0.7), (0.9, 0.9), (0.7, 0.7)),
    )
    assert summary["recommended"]["rule"] == "median"
    (where,) = summary["helpless"]
    assert (where["attack"], where["best"], where["lost"]) == ("alie", "krum", pytest.approx(0.2))
    lines = told(summary)
    assert lines[0].startswith(
        "Take median: under attacks it loses 16.0 points on average and 30.0 points at worst (alie"
    )
    assert "When nobody attacks it costs 0.0 ± 0.0 points." in lines
    assert lines[-1] == ("Nothing helps against alie by 20 % of clients: the best rule there, krum, loses 20.0 points.")


def test_settings_of_the_study_change_no_run() -> None:
    plain = parse({"rounds": 2})
    assert parse({"rounds": 2, "robustness": {"shares": [0.1]}}).identity() == plain.identity()
