"""Playing scenes: each is a comparison, and all together are a page."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedquilt.config.config import Config, load
from fedquilt.core.plain import Row
from fedquilt.demo.scenes import SCENES, Played, Scene, Told
from fedquilt.errors import InputError, RoundError, did_you_mean
from fedquilt.storage.files import to_json, write_atomic
from fedquilt.studies.compare import cells, compare
from fedquilt.studies.player import Audience


@dataclass(frozen=True)
class Shown:
    """A scene that was played."""

    scene: Scene
    told: Told
    report: Path
    seeds: int
    seconds: float

    def row(self) -> Row:
        """As plain values."""
        values = [{"method": n, "value": v, "half_95": h} for n, v, h in self.told.values]
        return {
            "scene": self.scene.name,
            "title": self.scene.title,
            "problem": self.scene.problem,
            "system": self.scene.system,
            "verdict": self.told.badge,
            "sentence": self.told.sentence,
            "measure": self.told.measure,
            "values": values,
            "facts": self.told.facts,
            "report": str(self.report),
            "seconds": round(self.seconds, 1),
        }


def scenes(names: Sequence[str]) -> list[Scene]:
    """Those of these names in their order; all without names."""
    unknown = [name for name in names if name not in SCENES]
    if unknown:
        hints = [f"'{name}'{did_you_mean(name, SCENES)}" for name in unknown]
        raise InputError(f"There is no scene {'; nor '.join(hints)}. Scenes: {', '.join(SCENES)}.")
    return [SCENES[name] for name in dict.fromkeys(names or SCENES)]


def config_of(scene: Scene, folder: Path, overrides: Sequence[str] = ()) -> Config:
    """The settings of a scene; its runs go below ``folder``."""
    return load(scene.recipe, [f"output.folder={folder}", *overrides])


def play(scene: Scene, config: Config, audience: Callable[[int, int], Audience] | None = None) -> Shown:
    """Play what is not finished of a scene, and tell what came of it. ``audience`` is made of its rounds and runs."""
    began, runs = time.monotonic(), len(cells(config)[1])
    summary = compare(config, audience and audience(config.rounds, runs))
    if summary["failed"]:
        told = "; ".join(f"{run['method']}, seed {run['seed']}: {run['reason']}" for run in summary["failed"][:3])
        raise RoundError(f"The scene {scene.name} is not whole: {told}")
    told_of = scene.tell(Played(summary))
    return Shown(scene, told_of, Path(summary["report"]), len(summary["seeds"]), time.monotonic() - began)


def write(shown: Sequence[Shown], top: Path) -> Path:
    """The page, and its numbers beside it."""
    from fedquilt.demo.page import page

    name = "index" if len(shown) == len(SCENES) else "-".join(one.scene.name for one in shown)
    path = top / f"{name}.html"
    write_atomic(path, page(shown, top).encode())
    write_atomic(top / f"{name}.json", to_json([one.row() for one in shown], indent=1).encode())
    return path
