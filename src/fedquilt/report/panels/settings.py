"""The runs, how their settings differ, and what they share; who has which labels, and how much.

Of a sweep: the point that validation chose, all points, and what each setting does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedquilt.config.config import flat
from fedquilt.core.plain import JSON, Row
from fedquilt.data.partitions.measures import imbalance_told
from fedquilt.metrics.table import main
from fedquilt.report.blocks import RUN, Block, Panel, chart, column, facts, only, table, text
from fedquilt.report.gather import Gathered
from fedquilt.results.comparison_plots import numeric, plain
from fedquilt.results.ranking import best_first, ranking
from fedquilt.results.statistics.targets import MEGABYTE
from fedquilt.results.views import RunView
from fedquilt.storage.slots import client_id

MOST = 80  # clients that are drawn as rows of dots


def federation(found: Gathered) -> Panel | None:
    """A picture of the division, and its measures."""
    tasks = found.federation.get("tasks", [])
    shown = [(i, task) for i, task in enumerate(tasks) if task.get("labels")]
    if not tasks:
        return None
    if not shown:
        return Panel(
            "Federation",
            "federation",
            "Labels by client",
            [text("Too many clients and classes to store label counts; use 'fedquilt partition'.")],
        )
    variants = [_task(found, i, task, len(shown) > 1) for i, task in shown]
    kind = "dots" if max(len(v["y"]) for v in variants) <= MOST else "matrix"
    block = chart(
        kind, "labels", "Training samples by client and label", variants=variants, x_name="label", y_name="client"
    )
    table = [text(f"Table: {told}.")] if (told := found.federation.get("table")) else []
    blocks = [facts(*_facts(found, shown[0][1])), *table, block]
    return Panel(
        "Federation", "federation", "Labels by client", blocks, "Training samples. Colours are true groups, if known."
    )


def _task(found: Gathered, place: int, task: Row, several: bool) -> Row:
    clients = [client_id(c) for c in task["clients"]]
    groups = [found.groups.get(c) for c in clients] if found.groups else None
    return {
        "keys": {"task": str(place)} if several else {},
        "name": "training samples",
        "values": task["labels"],
        "x": [str(c) for c in range(found.federation["classes"])],
        "y": [str(c) for c in clients],
        "groups": groups,
    }


def _facts(found: Gathered, task: Row) -> list[tuple[str, str, str]]:
    rows, measures = np.array(task["rows"]), task["measures"]
    far = measures["label_distance"]
    items = [
        ("clients", str(len(rows)), f"{len(set(found.groups.values()))} true groups" if found.groups else ""),
        ("training samples", f"{rows.sum():,}", f"{rows.min()} to {rows.max()} per client"),
        ("classes", str(found.federation["classes"]), imbalance_told(measures["imbalance_factor"])),
        ("size Gini", f"{measures['size_gini']:.3f}", "0: equal sizes"),
    ]
    if far is not None:
        items.append(("label distance", f"{far:.3f}", "Jensen-Shannon, mean over pairs"))
    return items


TAB = "Runs"
_ELSEWHERE = ("seed", "compare.")  # shown in their own columns, or no part of a run


def runs(found: Gathered) -> Panel | None:
    """Every run with its state and the hash of its final state."""
    columns = (
        *RUN,
        column("state", "state"),
        column(
            "chosen",
            "selected round",
            "number",
            digits=0,
            help=f"selected on validation {main().name}; without validation samples, the last evaluated round",
        ),
        *(
            [] if found.sweep else [column(main().id, main().short, **main().look)]
        ),  # nobody shall choose by test scores
        column("megabytes", "MB", "number", digits=2),
        *_carried(found),
        column("seconds", "seconds", "number", digits=1),
        column("digest", "hash of the final state", "code"),
        column("folder", "folder", "code"),
    )
    return Panel(TAB, "runs", "Runs", [table("runs", columns, [_line(v, found) for v in found.views], filter=True)])


def _carried(found: Gathered) -> list[JSON]:
    if not any("carried_up" in view.result for view in found.views):
        return []
    help = "all network traffic: exchanges, evaluation, control messages and retries"
    return [column("carried", "MB in messages", "number", digits=2, help=help)]


def _line(view: RunView, found: Gathered) -> Row:
    result = view.result
    return {
        **found.named(view),
        "state": view.state,
        "chosen": result.get("best_round"),
        main().id: None if found.sweep else result.get("best", {}).get(f"test_{main().id}"),
        "megabytes": (result["bytes_up"] + result["bytes_down"]) / MEGABYTE if "bytes_up" in result else None,
        **({"carried": (result["carried_up"] + result["carried_down"]) / MEGABYTE} if "carried_up" in result else {}),
        "seconds": result.get("seconds"),
        "digest": result.get("digest", "")[:16] or None,
        "folder": view.folder.name,
        "frame": not result,
    }


def _settings(view: RunView) -> dict[str, str]:
    return {k: v for k, v in flat(view.config).items() if not k.startswith(_ELSEWHERE)}


def differences(found: Gathered) -> Panel | None:
    """Settings that are not the same in all runs."""
    firsts = {label: _settings(group[0]) for label, group in found.methods.items() if group[0].config}
    if len(firsts) < 2:
        return None
    apart = _apart(list(firsts.values()))
    if not apart:
        return Panel(TAB, "differences", "What differs", [text("All runs have the same settings but the seed.")])
    columns = [column("setting", "setting", "code"), *(column(f"m{i}", label) for i, label in enumerate(firsts))]
    rows = [{"setting": name, **{f"m{i}": value for i, value in enumerate(told)}} for name, told in apart.items()]
    return Panel(
        TAB,
        "differences",
        "What differs",
        [table("differences", columns, rows)],
        "Settings that differ between methods (apart from seeds).",
    )


def _apart(methods: Sequence[Mapping[str, str]]) -> dict[str, list[str | None]]:
    """The settings that are not the same in all methods, with the value of each."""
    values = {name: [known.get(name) for known in methods] for one in methods for name in one}
    return {name: told for name, told in values.items() if len(set(told)) > 1}


def settings(found: Gathered) -> Panel | None:
    """The settings that all runs share."""
    known = [_settings(view) for view in found.views if view.config]
    if not known:
        return None
    shared = {name: value for name, value in known[0].items() if all(other.get(name) == value for other in known)}
    columns = (column("setting", "setting", "code"), column("value", "value", "code"))
    rows = [{"setting": name, "value": value} for name, value in shared.items()]
    return Panel(
        TAB, "settings", "Common settings", [table("settings", columns, rows, filter=True, fold="All settings")]
    )


def best_point(found: Gathered) -> Panel | None:
    """Which point is best, and on what that rests."""
    rows = ranking(found.folder)
    best = next((row for row in rows if row["best"]), None)
    if best is None:
        none = text("No point is finished yet.", tone="lead")
        return Panel("Sweep", "best", "In short", [none])
    seeds = len(found.sweep["seeds"])
    done = [row for row in rows if row["valid"] is not None]
    top = "highest" if main().higher_is_better else "lowest"
    said = [
        f"Of {len(done)} points, {best['label']} has the {top} validation {main().name}: "
        f"{_percent(best['valid'], best['valid_half_95'])}.",
        f"Its test {main().name}, not used for selection, is {_percent(best['test'], best['test_half_95'])}.",
    ]
    blocks: list[Block] = [
        text(*said, tone="lead"),
        facts(
            (f"validation {main().name}", _percent(best["valid"]), "the best of many, so slightly optimistic"),
            (
                f"test {main().name}",
                _percent(best["test"]),
                "one seed: no interval" if seeds == 1 else f"over {seeds} seeds",
            ),
            ("points", f"{len(done)} of {found.sweep['total']}", f"{found.sweep['search']}; seeds of each: {seeds}"),
        ),
    ]
    if len(done) < found.sweep["total"]:
        left = found.sweep["total"] - len(done)
        blocks.append(text(f"{left} points are not finished; 'fedquilt sweep' continues them.", tone="warning"))
    for run in found.failed:
        blocks.append(
            text(f"{run.get('display', run['method'])}, seed {run['seed']} failed: {run['reason']}", tone="warning")
        )
    return Panel("Sweep", "best", "In short", blocks)


def points(found: Gathered) -> Panel | None:
    """All points, best first."""
    names = found.sweep["names"]
    rows = [
        {
            **row,
            **{f"v{i}": plain(row["values"][name]) for i, name in enumerate(names)},
            "frame": row["valid"] is None,
            "place": found.places[row["label"]],
        }
        for row in best_first(ranking(found.folder))
    ]
    kept = {"point", "best", "frame", "place", "seeds", "valid", "valid_half_95", "rounds", "megabytes", "seconds"}
    kinds = [{type(row[f"v{i}"]) for row in rows} for i in range(len(names))]
    columns = [
        column("point", "point", "number", digits=0),
        *(
            column(
                f"v{i}", name, "number" if kinds[i] <= {int, float} else "text", digits=5 if float in kinds[i] else 0
            )
            for i, name in enumerate(names)
        ),
        column(
            "valid",
            f"validation {main().name}",
            **main().look,
            half="valid_half_95",
            help="mean over seeds at each seed's selected round, ± 95 % t-interval",
        ),
        column("seeds", "seeds done", "number", digits=0),
        column("rounds", "selected round", "number", digits=1),
        column("megabytes", "MB", "number", digits=1),
        column("seconds", "seconds", "number", digits=1),
    ]
    kept |= {f"v{i}" for i in range(len(names))}
    shown = [only(kept, row) for row in rows]
    told = "the best is marked. Test scores of other points are not shown, on purpose."
    note = f"Sorted by validation {main().name}; {told}"
    return Panel("Sweep", "points", "Points", [table("points", columns, shown, filter=True)], note)


def parameters(found: Gathered) -> Panel | None:
    """Validation accuracy by each setting that was varied."""
    rows = [row for row in ranking(found.folder) if row["valid"] is not None]
    if not rows:
        return None
    variants: list[Row] = []
    for name in found.sweep["names"]:
        values = [plain(row["values"][name]) for row in rows]
        numbers = numeric(values)
        variants.append(
            {
                "keys": {"setting": name},
                "name": name,
                "log": name in found.sweep["log"],
                "numeric": numbers,
                "points": [
                    {
                        "name": row["label"],
                        "x": value if numbers else str(value),
                        "y": row["valid"],
                        "best": row["best"],
                    }
                    for row, value in zip(rows, values, strict=True)
                ],
            }
        )
    block = chart("points", "parameters", f"Validation {main().name} by setting", variants=variants)
    return Panel(
        "Sweep", "parameters", "Effect of each setting", [block], "Every point is one combination of settings."
    )


def _percent(value: float, half: float = float("nan")) -> str:
    return main().in_words(value, half)
