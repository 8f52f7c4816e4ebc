"""Runs as they lie in their folders, for whoever looks at them: finished, half-finished, or not begun."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import AnyStr

import numpy as np

from fedquilt.config.settings import MethodChoice, named
from fedquilt.config.shown import shown, shown_of
from fedquilt.config.tasks import use_task_of
from fedquilt.core.plain import JSON, Row
from fedquilt.core.table import ClientId
from fedquilt.errors import InputError
from fedquilt.metrics.table import main, metrics
from fedquilt.own_code import short
from fedquilt.results.looks import Look
from fedquilt.results.statistics.targets import joules_by_round
from fedquilt.storage.logs import CLIENTS, ROUNDS, fault, gaps, in_words, read, row_in, spans, vouched_in
from fedquilt.storage.mending import missing_of, told
from fedquilt.storage.slots import client_id

CELLS = "comparison.json"


@dataclass(frozen=True)
class ClientScores:
    """Test scores of the model each client would use: of each metric [clients, rounds], NaN where there is none."""

    clients: tuple[ClientId, ...]
    rounds: tuple[int, ...]
    values: Mapping[str, JSON]

    def at(self, round: int | None) -> dict[ClientId, float]:
        """Each client's accuracy after a round."""
        if round not in self.rounds:
            return {}
        column = self.values[main().id][:, self.rounds.index(round)].tolist()
        return {c: v for c, v in zip(self.clients, column, strict=True) if v == v}

    def last(self) -> dict[ClientId, float]:
        """The same after the last round that was scored."""
        return self.at(self.rounds[-1] if self.rounds else None)


def scored_in(lines: Sequence[str]) -> ClientScores:
    """From the lines of metrics/clients.jsonl."""
    rows = _tests(_likely(lines, "\n", '"deployed"', '"test"'))
    places: dict[ClientId, int] = {}
    for row in rows:
        row["client"] = client_id(row["client"])
        places.setdefault(row["client"], len(places))
    rounds = sorted({row["round"] for row in rows})
    columns = {round: i for i, round in enumerate(rounds)}
    values = {name: np.full((len(places), len(rounds)), np.nan) for name in (m.id for m in metrics())}
    for row in rows:
        for name, held in values.items():
            if row.get(name) is not None:
                held[places[row["client"]], columns[row["round"]]] = row[name]
    return ClientScores(tuple(places), tuple(rounds), values)


def _likely(lines: Iterable[AnyStr], end: AnyStr, *parts: AnyStr) -> list[AnyStr]:
    """The whole lines that have these parts, which are far fewer than all."""
    return [line for line in lines if line.endswith(end) and all(part in line for part in parts)]


def _tests(lines: Iterable[str | bytes]) -> list[Row]:
    """The rows of lines, as far as they are test scores of the model each client would use."""
    sound = (row for line in lines if (row := row_in(line, CLIENTS)) is not None)
    return [row for row in sound if (row["model"], row["split"]) == ("deployed", "test")]


@dataclass(frozen=True)
class RunView:
    """A run: what its folder says of it. Logs are read when they are asked for."""

    folder: Path
    label: str
    seed: int
    named: str = ""

    @cached_property
    def display(self) -> str:
        """What people read for its method; files have its ``label``."""
        return self.named or shown_of(self.label)

    @cached_property
    def config(self) -> Row:
        """Its settings; empty if it was not begun."""
        try:
            return tomllib.loads((self.folder / "config.toml").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}

    @cached_property
    def kind(self) -> str:
        """The kind of its method."""
        return short(str(self.config.get("method", {}).get("kind", self.label)))

    @cached_property
    def result(self) -> Row:
        """What it wrote at its end; empty before."""
        return read_json(self.folder / "result.json")

    @cached_property
    def rounds(self) -> list[Row]:
        """The rows of its rounds."""
        return self.rows("metrics/rounds.jsonl")

    @cached_property
    def scored(self) -> ClientScores:
        """Clients' test scores."""
        path = self.folder / CLIENTS
        text = path.read_bytes().decode(errors="replace") if path.exists() else ""
        return scored_in(text.splitlines(keepends=True))

    def tests_at(self, round: int) -> list[Row]:
        """Clients' samples of metrics/clients.jsonl after a round: test scores of the model each would use."""
        path = self.folder / CLIENTS
        if not path.exists():
            return []
        wanted = (b'"deployed"', b'"test"', f'"round": {round},'.encode())
        with path.open("rb") as lines:
            likely = _likely(lines, b"\n", *wanted)
        return [row for row in _tests(likely) if row["round"] == round]

    @cached_property
    def joules(self) -> dict[int, float] | None:
        """The joules of each round; the long log of client updates is read only where something was measured."""
        measured = self.result.get("energy", {}).get("joules")
        return joules_by_round(self.rows("metrics/client_updates.jsonl")) if measured else None

    @property
    def chosen(self) -> dict[ClientId, float]:
        """Each client's accuracy at the round that validation chose."""
        return self.scored.at(self.result.get("best_round"))

    @property
    def state(self) -> str:
        """In words: finished, how far it came, or that it was not begun."""
        planned = self.config.get("rounds")
        if self.result:
            early = ", stopped early" if self.result.get("stopped_early") else ""
            return f"finished, {self.result.get('rounds', '?')} rounds{early}"
        if not self.config:
            return "not begun"
        return f"unfinished: {max((row['round'] for row in self.rounds), default=0)} of {planned} rounds"

    def rows(self, name: str) -> list[Row]:
        """The sound rows of one of its logs."""
        return read(self.folder, name)

    @cached_property
    def missing(self) -> list[str]:
        """What is not in its logs that should be, log by log, in words."""
        known = missing_of(self.result)
        found = {name: [told(lost)] for name, lost in known.items()}
        for name, extent in vouched_in(self.result).items():
            if why := fault(self.folder / name, extent):
                found.setdefault(name, []).append(why)
        absent, unscored = self._absent, self._unscored
        if absent and known.get(ROUNDS, {}).get("missing") != absent:
            found.setdefault(ROUNDS, []).append(f"has no rows of rounds {in_words(absent)}")
        if unscored and CLIENTS not in known:
            found.setdefault(CLIENTS, []).append(f"has no rows of rounds {in_words(unscored)}")
        return [f"{name}: {', '.join(whys)}" for name, whys in found.items()]

    @property
    def _absent(self) -> list[list[int]]:
        """Rounds that were played and have no row."""
        told_of = self.result.get("rounds")
        there = {row["round"] for row in self.rounds}
        return gaps(there, max([told_of if isinstance(told_of, int) else 0, *self._snapshots, *there]))

    @property
    def _unscored(self) -> list[list[int]]:
        """Rounds that were scored and have no clients' samples."""
        scored = {row["round"] for row in self.rounds if row.get(f"test_{main().id}") is not None}
        return spans(scored - set(self.scored.rounds))

    @property
    def _snapshots(self) -> list[int]:
        names = (path.name[6:12] for path in (self.folder / "snapshots").glob("round-*.safetensors"))
        return [int(name) for name in names if name.isdecimal()]


def read_json(path: Path) -> Row:
    """A file of JSON; nothing if it is missing or damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def missing_in(folder: Path) -> list[str]:
    """What is missing in the logs of the runs of a folder, in words."""
    views = views_in(folder)
    lead = {view: f"{view.folder.name}: " if len(views) > 1 else "" for view in views}
    return [f"{lead[view]}{line}" for view in views for line in view.missing]


def views_in(folder: Path) -> list[RunView]:
    """The run, or the runs of the comparison, in a folder; also those that a comparison has not begun."""
    if (folder / "config.toml").is_file():
        view = RunView(folder, folder.name, 0)
        use_task_of(view.config)
        return [RunView(folder, view.kind, int(view.config.get("seed", 0)), _method_in(view.config))]
    planned = read_json(folder / CELLS).get("cells", [])
    if planned:
        return _of_task([RunView(folder / c["folder"], c["label"], c["seed"], c.get("display", "")) for c in planned])
    found = []
    for place in sorted(folder.glob("*/config.toml")):
        label, _, seed = place.parent.name.rpartition("-seed")
        if label and seed.isdecimal():
            found.append(RunView(place.parent, label, int(seed)))
    if not found:
        raise InputError(
            f"'{folder}' is neither the folder of a run (it has no config.toml) nor of a comparison (it has no runs). "
            "Give a folder that 'fedquilt run', 'fedquilt compare' or 'fedquilt sweep' made."
        )
    return _of_task(found)


def _of_task(views: list[RunView]) -> list[RunView]:
    """The same; from here on the metrics are those of their task."""
    use_task_of(next((view.config for view in views if view.config), {}))
    return views


def _method_in(config: Row) -> str:
    """What people read for the method of these settings; nothing where they tell of none."""
    try:
        return shown(MethodChoice.model_validate(named(config.get("method"))))
    except (InputError, ValueError):
        return ""


def looks_for(views: Sequence[RunView]) -> dict[str, Look]:
    """The look of each method of these runs, by their order: of a comparison, as it was planned."""
    names = {view.label: view.display for view in views}
    return {label: Look(name, place) for place, (label, name) in enumerate(names.items())}
