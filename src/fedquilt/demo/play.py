"""Playing scenes: each is a comparison, and all together are a page with a card for each."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import fedquilt
from fedquilt.config.config import Config, load
from fedquilt.core.plain import Row
from fedquilt.demo.scenes import SCENES, PlayedComparison, Scene, Told
from fedquilt.errors import InputError, RoundError, did_you_mean
from fedquilt.report.page import asset, document, policy
from fedquilt.storage.files import to_json, write_atomic
from fedquilt.studies.compare import cells, compare
from fedquilt.studies.player import Audience


@dataclass(frozen=True)
class PlayedScene:
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
        raise InputError(f"Unknown scene {'; nor '.join(hints)}. Scenes: {', '.join(SCENES)}.")
    return [SCENES[name] for name in dict.fromkeys(names or SCENES)]


def config_of(scene: Scene, folder: Path, overrides: Sequence[str] = ()) -> Config:
    """The settings of a scene; its runs go below ``folder``."""
    return load(scene.recipe, [f"output.folder={folder}", *overrides])


def play(scene: Scene, config: Config, audience: Callable[[int, int], Audience] | None = None) -> PlayedScene:
    """Play what is not finished of a scene, and tell what came of it. ``audience`` is made of its rounds and runs."""
    began, runs = time.monotonic(), len(cells(config)[1])
    summary = compare(config, audience and audience(config.rounds, runs))
    if summary["failed"]:
        told = "; ".join(f"{run['method']}, seed {run['seed']}: {run['reason']}" for run in summary["failed"][:3])
        raise RoundError(f"The scene {scene.name} is incomplete: {told}")
    told_of = scene.tell(PlayedComparison(summary))
    return PlayedScene(scene, told_of, Path(summary["report"]), len(summary["seeds"]), time.monotonic() - began)


def write(shown: Sequence[PlayedScene], top: Path) -> Path:
    """The page, and its numbers beside it."""

    name = "index" if len(shown) == len(SCENES) else "-".join(one.scene.name for one in shown)
    path = top / f"{name}.html"
    write_atomic(path, page(shown, top).encode())
    write_atomic(top / f"{name}.json", to_json([one.row() for one in shown], indent=1).encode())
    return path


STYLE = """
.scenes { display: grid; gap: 18px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 430px), 1fr)); }
.scene {
  background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 18px 20px; min-width: 0;
}
.scene h2 { margin: 0; font-size: 19px; }
.scene .problem { color: var(--soft); font-style: italic; margin: 2px 0 10px; }
.scene .badge {
  display: inline-block; border-radius: 16px; padding: 2px 12px; font-size: 13px; font-weight: 600;
  background: var(--faint); color: var(--soft);
}
.scene .badge.good { background: var(--accent-soft); color: var(--accent); }
.scene .told { margin: 10px 0 14px; }
.scene figcaption { color: var(--soft); font-size: 13px; margin: 12px 0 6px; }
.scene svg { display: block; width: 100%; height: auto; max-width: 560px; }
.scene .links { margin: 14px 0 0; font-size: 14px; }
.scene .links a { margin-right: 14px; }
a { color: var(--accent); }
.how { color: var(--soft); font-size: 13.5px; max-width: 92ch; margin: 18px 0 0; }
"""
HOW = (
    "Every scene is a comparison on real data (scikit-learn's digits, or 5,000 MNIST digits) with one partition of the "
    "data and {seeds}. ± is the 95 % interval over seeds; for differences between methods (in brackets) it is over "
    "clients, where clients have test samples of their own. 'Above' and 'below' require p < 0.05 (Wilcoxon signed-rank "
    "test over clients, or a paired t-test over seeds, with Holm's correction) and agreement of all seeds. "
    "Hyperparameters were tuned on other partitions and seeds than those shown. The scenes are small; the "
    "documentation reports results on larger data."
)


def page(shown: Sequence[PlayedScene], top: Path) -> str:
    """The whole file; links are relative to the folder ``top``."""
    cards = "\n".join(_card(one, top) for one in shown)
    seeds = max(one.seeds for one in shown)
    how = HOW.format(seeds=f"{seeds} seeds" if seeds > 1 else "one seed, which is not enough to compare methods")
    body = BODY.format(
        subtitle=escape(f"{len(shown)} scene{'s' * (len(shown) > 1)} · real data"),
        cards=cards,
        how=escape(how),
        footer=escape(f"fedquilt {fedquilt.__version__}, Python {platform.python_version()}"),
    )
    scripts = [asset("theme.js")]
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy(scripts)}">\n'
    return document("fedquilt: demo", asset("report.css") + STYLE, body, scripts, head)


def _card(one: PlayedScene, top: Path) -> str:
    figures = "".join(
        f"<figure><figcaption>{escape(text)}</figcaption>{svg}</figure>" for text, svg in one.told.pictures
    )
    report = escape(one.report.relative_to(top).as_posix(), quote=True)
    look = "badge good" if one.told.good else "badge"
    return (
        f'<article class="scene" id="{escape(one.scene.name, quote=True)}"><h2>{escape(one.scene.title)}</h2>'
        f'<p class="problem">{escape(one.scene.problem)}</p>'
        f'<span class="{look}">{escape(one.scene.system)}: {escape(one.told.badge)}</span>'
        f'<p class="told">{escape(one.told.sentence)}</p>{figures}'
        f'<p class="links"><a href="{report}">Full report</a> <code>fedquilt demo {escape(one.scene.name)}</code></p>'
        "</article>"
    )


BODY = """<header>
<div class="brand"><span class="quilt" aria-hidden="true"></span>
<div><h1>Five problems, five systems</h1><p class="subtitle">{subtitle}</p></div></div>
<div class="tools"><button type="button" id="theme">Dark</button></div>
</header>
<main id="main" tabindex="-1"><div class="scenes">
{cards}
</div>
<p class="how">{how}</p></main>
<footer>{footer}</footer>
"""
