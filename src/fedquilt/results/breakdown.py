"""What attacks do to aggregators: accuracies by rule, attack and share of malicious clients, and which rule to take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedquilt.core.plain import JSON, Row
from fedquilt.core.table import ClientId
from fedquilt.results.statistics.beside import winner
from fedquilt.results.statistics.intervals import interval

HELD = 0.03  # a rule holds where it stays so near to the mean without an attack
SPOILT = 0.2  # and the mean breaks down where it loses more than this


@dataclass(frozen=True)
class Attacked:
    """An attack by a share of the clients, or of those who hold a share of the samples."""

    attack: str
    share: float
    by: str = "clients"
    options: Row = field(default_factory=dict, compare=False)

    def __str__(self) -> str:
        return f"{self.attack} {100 * self.share:g} % of {self.by}"


Accuracies = Mapping[ClientId, float]  # of honest clients


@dataclass
class Breakdown:
    """Accuracies of runs, the plain mean's first. What a rule loses under an attack is counted from the plain mean
    without one, for the same clients and seed. A run that ended early, because its model was past saving, counts with
    ``chance``.

    Args:
        chance: The accuracy of guessing.
        most_cost: What a rule may cost without an attack, to be recommended.
    """

    chance: float
    most_cost: float = 0.01
    found: dict[str, dict[Attacked | None, dict[int, Accuracies]]] = field(default_factory=dict)

    def add(self, rule: str, attacked: Attacked | None, seed: int, accuracies: Accuracies) -> None:
        """One run; without accuracies it ended early."""
        self.found.setdefault(rule, {}).setdefault(attacked, {})[seed] = accuracies

    def summary(self) -> Row:
        """Everything, as plain values."""
        rows = [self._row(rule) for rule in self.found]
        return {
            "chance": self.chance,
            "rules": rows,
            "cells": [self._cell(rule, a) for rule, cells in self.found.items() for a in cells],
            "recommended": self._recommended(rows),
            "helpless": [self._best(a) for a in self._attacks() if self._spoils(a) and not self._held_by(a)],
        }

    def _attacks(self) -> list[Attacked]:
        return [a for a in self.found[self._first] if a is not None]

    @property
    def _first(self) -> str:
        """The plain mean."""
        return next(iter(self.found))

    def _value(self, found: Accuracies) -> float:
        return float(np.mean(list(found.values()))) if found else self.chance

    def _values(self, rule: str, attacked: Attacked | None) -> list[float]:
        return [self._value(found) for found in self.found[rule][attacked].values()]

    def _losses(self, rule: str, attacked: Attacked | None) -> list[float]:
        """For each seed, the plain mean's accuracy without an attack minus the rule's with one."""
        whole = self.found[self._first][None]
        return [
            self._value({c: v for c, v in whole[seed].items() if c in found} if found else whole[seed])
            - self._value(found)
            for seed, found in self.found[rule][attacked].items()
        ]

    def _lost(self, rule: str, attacked: Attacked | None) -> float:
        return float(np.mean(self._losses(rule, attacked)))

    def _cell(self, rule: str, attacked: Attacked | None) -> Row:
        known, lost = interval(self._values(rule, attacked)), interval(self._losses(rule, attacked))
        found = self.found[rule][attacked]
        return {
            "rule": rule,
            "attack": None if attacked is None else attacked.attack,
            "share": None if attacked is None else attacked.share,
            "by": None if attacked is None else attacked.by,
            "accuracy": known.mean,
            "half_95": known.half,
            "lost": lost.mean,
            "lost_half_95": lost.half,
            "seeds": {str(seed): self._value(of_seed) for seed, of_seed in found.items()},
            "ended_early": sum(not of_seed for of_seed in found.values()),
        }

    def _row(self, rule: str) -> Row:
        """A rule: what it costs without an attack, and what it loses with one."""
        cost = interval(self._losses(rule, None))
        lost = {a: self._lost(rule, a) for a in self._attacks()}
        worst = max(lost, key=lambda a: lost[a])
        return {
            "rule": rule,
            "accuracy": float(np.mean(self._values(rule, None))),
            "cost": cost.mean,
            "cost_half_95": cost.half,
            "lost": float(np.mean(list(lost.values()))),
            "worst": lost[worst],
            "worst_attack": str(worst),
            "held": sum(lost[a] <= HELD for a in lost if self._spoils(a)),
            "spoilt": sum(self._spoils(a) for a in lost),
        }

    def _spoils(self, attacked: Attacked) -> bool:
        """Whether an attack breaks the mean."""
        return self._lost(self._first, attacked) > SPOILT

    def _held_by(self, attacked: Attacked) -> list[str]:
        return [rule for rule in self.found if self._lost(rule, attacked) <= HELD]

    def _best(self, attacked: Attacked) -> Row:
        """Of an attack that no rule holds against, the best of them."""
        lost = {rule: self._lost(rule, attacked) for rule in self.found}
        best = min(lost, key=lost.__getitem__)
        where = {"attack": attacked.attack, "share": attacked.share, "by": attacked.by}
        return {**where, "best": best, "lost": lost[best]}

    def _recommended(self, rows: Sequence[Mapping[str, JSON]]) -> Row:
        """The rule that loses least under attacks, on average, of those that cost little without one."""
        cheap = [row for row in rows if row["cost"] <= self.most_cost]
        able = [{"method": row["rule"], "kind": "", "kept": -row["lost"]} for row in cheap]
        scores = {row["method"]: self._by_seed(row["method"]) for row in able}
        won = winner(able, scores, "kept") or {}
        return {"rule": won["method"], "tied": won["tied"], "most_cost": self.most_cost}

    def _by_seed(self, rule: str) -> list[dict[ClientId, float]]:
        """For each seed, what the rule keeps under each attack."""
        values = {str(a): self._losses(rule, a) for a in self._attacks()}
        return [{name: -own[i] for name, own in values.items()} for i in range(len(self.found[rule][None]))]


def told(summary: Mapping[str, JSON]) -> list[str]:
    """Which rule to take, what it costs, and where nothing helps, in sentences."""
    rows, chosen = {row["rule"]: row for row in summary["rules"]}, summary["recommended"]
    mean, row = summary["rules"][0], rows[chosen["rule"]]
    lines = []
    if row is mean:
        lines.append("Take the plain mean: no rule that costs little without an attack loses less under one.")
    else:
        lines.append(
            f"Take {row['rule']}: under attacks it loses {_points(row['lost'])} on average and {_points(row['worst'])} "
            f"at worst ({row['worst_attack']}), where the mean loses {_points(mean['lost'])} and "
            f"{_points(mean['worst'])} ({mean['worst_attack']})."
        )
        half = row["cost_half_95"]
        sure = "" if half is None or half != half else f" ± {100 * half:.1f}"
        lines.append(f"When nobody attacks it costs {100 * row['cost']:.1f}{sure} points.")
    if chosen["tied"]:
        lines.append(f"It cannot be told apart from {', '.join(chosen['tied'])}.")
    if mean["spoilt"]:
        lines.append(
            f"Of {mean['spoilt']} attacks that take more than {100 * SPOILT:g} points from the mean, it holds within "
            f"{100 * HELD:g} points of the accuracy without one against {row['held']}."
        )
    for where in summary["helpless"]:
        lines.append(
            f"Nothing helps against {where['attack']} by {100 * where['share']:g} % of {where['by']}: the best rule "
            f"there, {where['best']}, loses {_points(where['lost'])}."
        )
    return lines


def _points(share: float) -> str:
    return f"{100 * share:.1f} points"


def span(cell: Mapping[str, JSON]) -> str:
    """An accuracy in per cent, with half of its interval."""
    half = cell["half_95"]
    return f"{100 * cell['accuracy']:.1f}" + ("" if half is None or half != half else f" ± {100 * half:.1f}")


def draw(summary: Mapping[str, JSON], by: str, path: Path) -> Path:
    """A heat map for each attack: rules by shares, the accuracy and half of its interval in each field."""
    from matplotlib import rc_context

    from fedquilt.results.plots import STYLE, save, subplots

    cells = {(c["rule"], c["attack"], c["share"]): c for c in summary["cells"] if c["by"] in (by, None)}
    rules = [row["rule"] for row in summary["rules"]]
    attacks = list(dict.fromkeys(a for _, a, _ in cells if a is not None))
    shares = sorted({s for _, _, s in cells if s is not None})
    with rc_context({**STYLE, "axes.grid": False}):
        size = (1.8 + len(attacks) * (0.7 + 0.75 * len(shares)), 1.1 + 0.34 * len(rules))
        figure, axes = subplots(1, len(attacks), figsize=size, sharey=True, squeeze=False)
        for axis, attack in zip(axes[0], attacks, strict=True):
            grid = [[cells[rule, None, None], *(cells[rule, attack, s] for s in shares)] for rule in rules]
            axis.imshow([[c["accuracy"] for c in row] for row in grid], vmin=0, vmax=1, cmap="RdYlGn", aspect="auto")
            for y, row in enumerate(grid):
                for x, cell in enumerate(row):
                    axis.text(x, y, span(cell).replace(" ", "\n", 1), ha="center", va="center", fontsize=6)
            axis.set_title(attack)
            axis.set_xticks(range(len(shares) + 1), ["none", *(f"{100 * s:g} %" for s in shares)])
            axis.set_yticks(range(len(rules)), rules)
        figure.supxlabel(f"malicious share of {by}", fontsize=10)
        rows = [(c["rule"], c["attack"] or "", c["share"] or 0, c["accuracy"], c["half_95"]) for c in cells.values()]
        return save(figure, path, ("rule", "attack", "share", "accuracy", "half_95"), rows)
