"""Panels made of files that other commands leave in the folder: scores under a long tail, leakage, forgetting; and the
bank of prototypes."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import numpy as np

from fedquilt.analysis.continual import FILE, NAMES, NUMBERS
from fedquilt.core.plain import Row
from fedquilt.registry import shown_as
from fedquilt.report.blocks import RUN, Block, Panel, chart, column, numbers, picture, table
from fedquilt.report.gather import Gathered
from fedquilt.report.panels.clients import MOST, series_of, thinned
from fedquilt.results.views import RunView, read_json

TAILS = ("tails/tails.json", "modes/scores.json")
AUDITS = ("audit/audit.json", "audit.json")


def tails(found: Gathered) -> Panel | None:
    """Head, middle and tail, and accuracy by class; from 'fedquilt tails RUN' or 'fedquilt realign RUN'."""
    rows: list[Row] = []
    lines: list[Block] = []
    for view in found.views:
        scored = next((s for name in TAILS if (s := read_json(view.folder / name))), {})
        for where, modes in (("common test set", scored.get("global", {})), ("clients, own samples", _plain(scored))):
            rows += [{**found.named(view), "where": where, "mode": mode, **_tiers(one)} for mode, one in modes.items()]
        if scored.get("global"):
            lines.append({"keys": {"method": view.display, "seed": str(view.seed)}, "bars": _by_class(scored)})
    if not rows:
        return None
    columns = (
        *RUN,
        column("where", "rows"),
        column("mode", "mode"),
        column("accuracy", "accuracy", "percent"),
        column("balanced", "balanced", "percent"),
        column("head", "head", "percent"),
        column("middle", "middle", "percent"),
        column("tail", "tail", "percent"),
    )
    blocks: list[Block] = [table("tails", columns, rows, filter=True)]
    if lines:
        blocks.append(
            chart(
                "bars",
                "classes",
                "Accuracy by class (training samples), most frequent first",
                variants=lines,
                x_name="share right",
                grouped=True,
            )
        )
    return Panel(
        "Methods",
        "tails",
        "Head, middle and tail",
        blocks,
        "Tiers by share of training samples: classes that hold 75 % of them are the head, those beyond 95 % the tail.",
    )


def _tiers(one: Row) -> Row:
    share = {tier: one.get("by_share", {}).get(tier) for tier in ("head", "middle", "tail")}
    return {"accuracy": one.get("accuracy"), "balanced": one.get("balanced_accuracy"), **share}


def _by_class(scored: Row) -> list[Row]:
    """The share right of each class in each mode, the most frequent class first."""
    order = np.argsort(-np.asarray(scored["rows"]), kind="stable").tolist()
    return [
        {"name": f"{c} ({scored['rows'][c]})", "part": mode, "value": numbers([one["per_class"][c]])[0] or 0}
        for mode, one in scored["global"].items()
        for c in order
    ]


def _plain(scored: Row) -> Row:
    return {mode: kinds["plain"] for mode, kinds in scored.get("clients", {}).items()}


def leakage(found: Gathered) -> Panel | None:
    """What an attacker makes of uploads; from 'fedquilt audit ... --out FOLDER/audit'."""
    audit = next((a for name in AUDITS if (a := read_json(found.folder / name)).get("rows")), None)
    if audit is None:
        return None
    names = list(audit["rows"][0])
    kinds = {n: any(isinstance(row.get(n), float | int) for row in audit["rows"]) for n in names}
    columns = [
        column(n, n.replace("_", " "), "number" if kinds[n] else "text", **({"digits": 3} if kinds[n] else {}))
        for n in names
    ]
    return Panel(
        "Methods",
        "leakage",
        "Leakage",
        [table("leakage", columns, [_named(row) for row in audit["rows"]], filter=True)],
        "Results of attacks on uploads; see the audit documentation.",
    )


def _named(row: Row) -> Row:
    """A line of an audit, its method by the name that people read."""
    return {**row, "method": shown_as("method", str(row["method"]))} if "method" in row else row


BANK = {
    "bank": "rows of the bank",
    "prototypes_merged": "merged",
    "prototypes_added": "added",
    "prototypes_dropped": "dropped",
    "prototypes_evicted": "evicted",
    "prototypes_cos_max": "largest cosine",
    "prototypes_cos_mean": "mean cosine",
    "prototypes_cos_min": "least cosine",
}
PICTURES = {"prototypes": "Nearest image of each prototype", "reconstructions": "Reconstructed patches"}
LARGEST = 1_000_000  # bytes of a picture


def forgetting(found: Gathered) -> Panel | None:
    """Probes of every task after every stage; from 'fedquilt continual RUN'."""
    rows: list[Row] = []
    matrices: list[Block] = []
    pictures: list[Block] = []
    shown: set[str] = set()
    for view in found.views:
        told = read_json(view.folder / FILE)
        for name, one in told.get("measures", {}).items():
            rows.append({**found.named(view), "measure": NAMES[name], **{n: one[n] for n in NUMBERS}})
            matrices.append(
                {
                    "keys": {"measure": NAMES[name], "method": view.display, "seed": str(view.seed)},
                    "name": NAMES[name],
                    "x": [str(task) for task in told["tasks"]],
                    "y": ["start", *(f"round {r}" for r in told["rounds"])],
                    "values": numbers([one["before"], *one["matrix"]]),
                    "share": name != "loss",
                    "groups": None,
                }
            )
        if told and view.display not in shown:
            shown.add(view.display)
            pictures += _pictures(view)
    if not rows:
        return None
    columns = (*RUN, column("measure", "measure"), *(column(n, NUMBERS[n], "number", digits=4) for n in NUMBERS))
    grid = chart(
        "matrix",
        "forgetting",
        "Scores by task and stage",
        variants=matrices,
        x_name="task",
        y_name="after",
        written=True,
    )
    return Panel(
        "Methods",
        "forgetting",
        "Forgetting",
        [grid, table("continual", columns, rows, filter=True), *pictures],
        "Entries right of the diagonal are future tasks. Forgetting: mean drop of a task from its best score; "
        "BWT and FWT: backward and forward transfer.",
    )


def banks(found: Gathered) -> Panel | None:
    """Rows of the prototype bank over rounds, and what became of the prototypes that came."""
    series = series_of(found, _growth)
    if not series:
        return None
    known = {name for one in series for seed in one["seeds"] for name in seed["values"]}
    names = {**{n: t for n, t in BANK.items() if n in known}, "round": "round"}
    block = chart(
        "lines",
        "banks",
        "Prototype bank",
        series=series,
        names=names,
        x="round",
        y="bank",
        shares=[],
        spread="",
        t={},
        level={},
        level_name="",
        bands=["range", "none"],
    )
    return Panel(
        "Methods",
        "banks",
        "Prototypes",
        [block],
        "Prototypes that came merge with a row of the bank or are "
        "added to it; cosines are those between the prototypes of one round.",
    )


def _growth(view: RunView) -> Row | None:
    rows = [row for row in view.rounds if row.get("bank") is not None]
    if not any(row["bank"] for row in rows):
        return None
    rows = thinned(rows, MOST)
    told = {n: [row.get(n) for row in rows] for n in BANK}
    values = {n: numbers(points) for n, points in told.items() if None not in points}
    return {"seed": view.seed, "round": [row["round"] for row in rows], "values": values}


def _pictures(view: RunView) -> list[Block]:
    """Those that the command drew of a run, inside the page."""
    blocks = []
    for name, title in PICTURES.items():
        path: Path = view.folder / "continual" / f"{name}.png"
        if path.is_file() and path.stat().st_size <= LARGEST:
            source = "data:image/png;base64," + b64encode(path.read_bytes()).decode()
            blocks.append(picture(f"{name}-{view.seed}", f"{title}: {view.display}, seed {view.seed}", source))
    return blocks
