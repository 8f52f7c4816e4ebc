"""Which aggregator holds in a federation: each is run without an attack, and with attacks by more and more clients.

Runs are those of the recipe with another ``method.aggregate`` (and ``[checks]``) and another ``[attack]``; they are
played and kept as those of a comparison.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedquilt.config.config import Config
from fedquilt.config.options import check_options, options_of
from fedquilt.core.plain import JSON, Row
from fedquilt.errors import ConfigError, RoundError
from fedquilt.report.breakdown import write_page
from fedquilt.results.breakdown import Accuracies, Attacked, Breakdown, draw
from fedquilt.results.views import RunView
from fedquilt.runs.build import federation_of
from fedquilt.storage.files import file_name, to_json, write_atomic
from fedquilt.storage.finished import result_of
from fedquilt.studies.compare import begin, check_tests, keep_federations
from fedquilt.studies.player import Audience, PlannedRun, Player
from fedquilt.studies.sweep import at

MEAN = "mean"


@dataclass(frozen=True)
class Cell:
    """One run: under which rule, under what attack (None: nobody's), and its settings."""

    rule: str
    attacked: Attacked | None
    run: PlannedRun


def folder_of(config: Config) -> Path:
    """Where it all goes; more rules, attacks, shares and seeds go to the same folder."""
    return Path(config.output.folder) / f"robustness-{config.name}-{config.identity()}"


def cells(config: Config) -> list[Cell]:
    """All runs, seed by seed, those without an attack first; everything wrong is told at once."""
    plan, top = config.robustness, folder_of(config)
    rules = _labelled([MEAN, *(rule for rule in plan.rules if rule != MEAN)])
    problems: dict[str, None] = {}
    found = []
    for seed, attacked, (label, rule) in itertools.product(plan.seeds, [None, *_attacks(config)], rules.items()):
        try:
            made = _settings(config, rule, attacked).model_copy(update={"seed": seed})
        except ConfigError as error:
            problems |= dict.fromkeys(error.problems)
            continue
        told = "no attack" if attacked is None else str(attacked)
        short = "none" if attacked is None else f"{attacked.attack}-{attacked.by}-{attacked.share:g}"
        folder = top / file_name(f"{label}-{short}-{made.identity()}")
        found.append(Cell(label, attacked, PlannedRun(f"{label}, {told}", made, folder, f"{label}, {told}")))
    if problems:
        raise ConfigError(list(problems), "robustness")
    return found


def _labelled(choices: Sequence[str | Row]) -> dict[str, Row]:
    """Choices by short names; options are added where two have the same."""
    tables = [{"kind": choice} if isinstance(choice, str) else dict(choice) for choice in choices]
    names = [_name(table) for table in tables]
    full = [
        name if names.count(name) == 1 else name + "".join(f",{k}={v}" for k, v in table.items() if _said(k, v))
        for name, table in zip(names, tables, strict=True)
    ]
    return dict(zip(full, tables, strict=True))


def _name(table: Mapping[str, JSON]) -> str:
    """What is chained, one behind the other."""
    kind, behind = str(table.get("kind", MEAN)), table.get("then")
    behind = {"kind": behind} if isinstance(behind, str) else behind
    return kind + ("" if behind is None else f"+{_name(behind)}") + ("+checks" if "checks" in table else "")


def _said(name: str, value: JSON) -> bool:
    return name not in ("kind", "then", "checks") and not isinstance(value, dict | list)


def _attacks(config: Config) -> Iterator[Attacked]:
    plan = config.robustness
    for by, (label, options), share in itertools.product(plan.by, _labelled(plan.attacks).items(), plan.shares):
        yield Attacked(label, share, by, options)


def _settings(config: Config, rule: Row, attacked: Attacked | None) -> Config:
    """The recipe with this rule and this attack. Rules that want to know how many replies may be false are told the
    largest share that is tried: a server does not know who is malicious today."""
    aggregate = _informed({k: v for k, v in rule.items() if k != "checks"}, max(config.robustness.shares))
    values: Row = {"method.aggregate": aggregate}
    if "checks" in rule:
        values["checks"] = rule["checks"]
    if attacked is not None:
        values["attack"] = {**attacked.options, attacked.by: attacked.share}
    return at(config, values)


def _informed(rule: Row, share: float) -> Row:
    if rule.get("kind", MEAN) == MEAN:
        return rule
    found, problems = dict(rule), check_options("aggregate", rule["kind"], {}, "robustness.rules")[1]
    if problems:
        raise ConfigError(problems, "robustness")
    if "byzantine" in options_of("aggregate", rule["kind"]):
        found.setdefault("byzantine", _most(rule["kind"], share))
    if "then" in found:
        behind = found["then"]
        found["then"] = _informed({"kind": behind} if isinstance(behind, str) else behind, share)
    return found


def _most(kind: str, share: float) -> float:
    """Bulyan bears no more than a quarter."""
    return min(share, 0.2) if kind == "bulyan" else share


def robustness(config: Config, audience: Audience | None = None) -> Row:
    """Play what is not finished yet, then tell which rule to take."""
    todo, top = cells(config), folder_of(config)
    federation, runs = federation_of(config), [cell.run for cell in todo]
    first = runs[0]
    check_tests(config, federation, {first.display: first.method(federation)})
    federations = dict.fromkeys(config.robustness.seeds, federation)
    begin(config, top, runs)
    keep_federations(top, runs, federations)
    with Player(config, federations, audience) as player:
        player.play(runs)
    if all(result_of(run.folder) is None for run in runs):
        raise RoundError(player.all_failed("run"))
    return conclude(config, todo, top, federation.classes or 2, player.failed)


def conclude(
    config: Config, todo: Sequence[Cell], top: Path, classes: int, failed: Sequence[Row] = (), most: float | None = None
) -> Row:
    """What the runs say: numbers, pictures and a page."""
    plan = config.robustness
    found = Breakdown(1 / classes, plan.most_cost if most is None else most)
    for cell in todo:
        found.add(cell.rule, cell.attacked, cell.run.config.seed, _accuracies(cell.run))
    summary: Row = {
        "folder": str(top),
        "name": config.name,
        "method": config.method.kind,
        "rounds": config.rounds,
        **found.summary(),
        "failed": list(failed),
        "page": str(top / "robustness.html"),
    }
    write_atomic(top / "robustness.json", to_json(summary, indent=1).encode())
    pictures = [draw(summary, by, top / f"robustness_{by}") for by in plan.by]
    write_page(summary, pictures, top / "robustness.html")
    return summary


def _accuracies(run: PlannedRun) -> Accuracies:
    """Those of honest clients, or the one on a common test set, after the last round: the best round would hide what
    came later. Nothing of a run that ended early."""
    result = result_of(run.folder)
    if result is None:
        return {}
    common = result["last"].get("common_test_accuracy")
    scored = RunView(run.folder, run.label, run.config.seed, run.display).scored.last()
    return scored or ({} if common is None else {"common": common})
