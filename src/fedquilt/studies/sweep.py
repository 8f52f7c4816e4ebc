"""A sweep: every point with every seed, on one federation; the best point is chosen on validation samples alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedquilt.config.config import Config, dump, parse, section
from fedquilt.config.settings import OTHERWISE
from fedquilt.config.space import Range, Space
from fedquilt.core.plain import JSON, Row
from fedquilt.data import Federation, Stream
from fedquilt.errors import ConfigError, InputError, RoundError
from fedquilt.results.ranking import FILE, ranking
from fedquilt.rounds.engine import Engine
from fedquilt.runs.build import federation_of
from fedquilt.runs.given import Given
from fedquilt.storage.files import to_json, write_atomic
from fedquilt.studies.compare import begin, keep_federations
from fedquilt.studies.player import Audience, Federations, PlannedRun, Player
from fedquilt.studies.points import Asker, Values, asker

_OTHER_ROWS = "the points would be scored on different rows"
_APART = {
    "seed": "sweep.seeds lists the seeds of every point",
    "name": "it only names the folder",
    "data": _OTHER_ROWS,
    "stream": _OTHER_ROWS,
}


@dataclass(frozen=True)
class Point:
    """One point: its number, a short name, its values and its settings."""

    number: int
    label: str
    values: Values
    config: Config
    given: Given | None = None

    def cells(self, top: Path) -> list[PlannedRun]:
        """Its runs, seed by seed; their test scores are withheld, so that nobody chooses by them."""
        output = self.config.output.model_copy(update={"withhold_test": True})
        return [
            PlannedRun(
                self.label,
                self.config.model_copy(update={"seed": seed, "output": output}),
                top / f"point{self.number:03d}-seed{seed}",
                self.label,
                given=self.given,
            )
            for seed in self.config.sweep.seeds
        ]


def folder_of(config: Config) -> Path:
    """Where a sweep goes; more points of the same random search go to the same folder."""
    plan = config.sweep.model_dump(mode="json", exclude={"points", "seeds"})
    told = json.dumps([config.identity(), plan], sort_keys=True)
    return Path(config.output.folder) / f"sweep-{config.name}-{hashlib.sha256(told.encode()).hexdigest()[:8]}"


def at(config: Config, values: Mapping[str, JSON]) -> Config:
    """The settings with these values."""
    raw = config.model_dump(mode="json", exclude_none=True)
    given = config.train.model_dump(mode="json", exclude_none=True, exclude_unset=True)
    raw["train"] = given  # what was left open follows from the method, which the values may name
    for name, value in values.items():
        *parents, leaf = name.split(".")
        try:
            section(raw, parents)[leaf] = value
        except InputError as error:
            raise ConfigError([f"sweep.space.{name}: {error}"]) from error
    return parse(raw, "sweep.space")


def planned(config: Config) -> int:
    """How many runs there will be."""
    return asker(config.sweep).total * len(config.sweep.seeds)


def sweep(config: Config, audience: Audience | None = None) -> Row:
    """Run every point that is not finished yet, then choose."""
    _check(config)
    federations = dict.fromkeys(config.sweep.seeds, federation_of(config))
    return swept(config, folder_of(config), lambda values: (at(config, values), None), federations, audience)


Settings = Callable[[Values], tuple[Config, Given | None]]  # of a point, with its objects where a script gives them


def swept(
    config: Config,
    top: Path,
    settings: Settings,
    federations: Federations,
    audience: Audience | None = None,
    engine: Engine | None = None,
    fresh: Callable[[Sequence[PlannedRun]], None] = lambda cells: None,
    drawn: bool = True,
) -> Row:
    """The points of a sweep in its folder, on the federation of each seed; ``fresh`` sees runs before they begin."""
    search = asker(config.sweep)
    for cell in _cells((Point(0, "", values, *settings(values)) for values in ends(config.sweep.space)), top):
        _check_scores(cell, federations[cell.config.seed])
    points: list[Point] = []
    done: list[tuple[Values, float | None]] = []
    known: dict[str, Point] = {}
    with Player(config, federations, audience, engine) as player:
        while asked := _asked(search, done):
            begun = len(points)
            for values in asked:
                key = json.dumps(values, sort_keys=True)
                if key not in known:
                    label = _label(values, [p.label for p in points])
                    known[key] = Point(len(points), label, values, *settings(values))
                    points.append(known[key])
            todo = _cells(points[begun:], top)
            fresh(todo)
            _write(config, top, points, search.total)
            player.play(todo)
            rows = ranking(top)
            done += [(values, rows[known[json.dumps(values, sort_keys=True)].number]["valid"]) for values in asked]
    keep_federations(top, _cells(points, top), federations)
    if all(accuracy is None for _, accuracy in done):
        raise RoundError(player.all_failed("point"))
    return conclude(config, top, points, player.failed, drawn)


def _cells(points: Iterable[Point], top: Path) -> list[PlannedRun]:
    """The runs of all these points."""
    return [cell for point in points for cell in point.cells(top)]


def _asked(search: Asker, done: Sequence[tuple[Values, float | None]]) -> list[Values]:
    """What to try next: one point, or all that are left where none depends on what is found at another."""
    found: list[Values] = []
    while not (found and search.learns):
        values = search.ask([*done, *((values, None) for values in found)])
        if values is None:
            break
        found.append(values)
    return found


def _check_scores(cell: PlannedRun, federation: Federation | Stream) -> None:
    """Refuse what cannot work, or has no score to choose by, before the first run."""
    if getattr(cell.method(federation), "reconstructs", False):
        raise InputError(
            f"{cell.config.method.kind} does not classify, so there is no accuracy to select by. Run it separately and "
            "use 'fedquilt continual RUN', or compare settings with 'fedquilt compare'."
        )


def _check(config: Config) -> None:
    if not config.sweep.space:
        raise InputError(
            "There are no hyperparameters to vary. Give settings with values, for example --set "
            "train.optimizer.lr=0.01,0.1, "
            "or a section [sweep.space] in the recipe."
        )
    if not config.data.valid and not config.data.common_valid:
        raise ConfigError(["data.valid: a sweep selects on validation samples, and there are none"])
    problems = []
    for name in config.sweep.space:
        first = name.partition(".")[0]
        why = "it cannot change the numbers" if first in OTHERWISE else _APART.get(first)
        problems += [f"sweep.space.{name}: this setting cannot be varied: {why}"] if why else []
    problems = problems or _wrong(config)
    if problems:
        raise ConfigError(problems, "sweep.space")


def ends(space: Space) -> list[Values]:
    """For every value of a list and both ends of a range, one point that has it."""
    tried = {n: [t.low, t.high] if isinstance(t, Range) else t for n, t in space.items()}
    first = {name: values[0] for name, values in tried.items()}
    return [first, *({**first, name: value} for name, values in tried.items() for value in values[1:])]


def _wrong(config: Config) -> list[str]:
    problems: dict[str, None] = {}
    for values in ends(config.sweep.space):
        try:
            at(config, values)
        except ConfigError as error:
            problems |= dict.fromkeys(error.problems)
    return list(problems)


def _label(values: Values, taken: Sequence[str]) -> str:
    """Short names and values; numbered where it is taken."""
    leaves = [name.rpartition(".")[2] for name in values]
    names = [leaf if leaves.count(leaf) == 1 else name for leaf, name in zip(leaves, values, strict=True)]
    label = ", ".join(f"{name}={_told(value)}" for name, value in zip(names, values.values(), strict=True))
    return label if label not in taken else f"{label} #{len(taken)}"


def _told(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return ",".join([str(value.get("kind", "")), *(f"{k}={_told(v)}" for k, v in value.items() if k != "kind")])
    return str(value)


def _write(config: Config, top: Path, points: Sequence[Point], total: int) -> None:
    """What is planned and known so far, for whoever looks."""
    begin(config, top, [cell for point in points for cell in point.cells(top)])
    space = config.sweep.space
    content = {
        "name": config.name,
        "search": config.sweep.search,
        "total": total,
        "seeds": config.sweep.seeds,
        "names": list(space),
        "log": [n for n, t in space.items() if isinstance(t, Range) and t.log],
        "points": [
            {"label": p.label, "values": p.values, "folders": [c.folder.name for c in p.cells(top)]} for p in points
        ],
    }
    write_atomic(top / FILE, to_json(content, indent=1).encode())


def conclude(
    config: Config, top: Path, points: Sequence[Point], failed: Sequence[Mapping[str, JSON]] = (), drawn: bool = True
) -> Row:
    """The table, the picture, the report, and the recipe of the best point."""
    from fedquilt.report import write_report
    from fedquilt.results.comparison_plots import as_csv, draw

    rows = ranking(top)
    best = next(row for row in rows if row["best"])
    summary = {
        "folder": str(top),
        "search": config.sweep.search,
        "seeds": config.sweep.seeds,
        "chosen_on": "validation",
        "names": list(config.sweep.space),
        "points": rows,
        "best": best,
        "failed": list(failed),
        "report": str(top / "report.html"),
        "recipe": None,
    }
    if points[best["point"]].given is None:
        summary["recipe"] = str(top / "best.toml")
        told = f"# fedquilt run {top.name}/best.toml\n# chosen by a sweep on validation samples: {best['label']}\n"
        write_atomic(top / "best.toml", (told + dump(points[best["point"]].config)).encode())
    write_atomic(top / "sweep.csv", as_csv(rows).encode())
    if drawn:
        draw(rows, list(config.sweep.space), top / "parameters")
    write_atomic(top / "summary.json", to_json(summary, indent=1).encode())
    if drawn:
        write_report(top)
    return summary
