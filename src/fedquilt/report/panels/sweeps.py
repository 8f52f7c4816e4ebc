"""The page of a sweep: the point that validation chose, all points, and what each setting does."""

from __future__ import annotations

from fedquilt.core.plain import Row
from fedquilt.report.blocks import Block, Panel, chart, column, facts, only, table, text
from fedquilt.report.gather import Gathered
from fedquilt.results.comparison_plots import numeric, plain
from fedquilt.results.ranking import best_first, ranking

TAB = "Sweep"


def best_point(found: Gathered) -> Panel | None:
    """Which point is best, and on what that rests."""
    rows = ranking(found.folder)
    best = next((row for row in rows if row["best"]), None)
    if best is None:
        none = text("No point is finished yet, so there is none to choose.", tone="lead")
        return Panel(TAB, "best", "In short", [none])
    seeds = len(found.sweep["seeds"])
    done = [row for row in rows if row["valid"] is not None]
    said = [
        f"Of {len(done)} points, {best['label']} has the highest validation accuracy: "
        f"{_percent(best['valid'], best['valid_half_95'])}.",
        f"Its test accuracy, which chose nothing, is {_percent(best['test'], best['test_half_95'])}.",
    ]
    blocks: list[Block] = [
        text(*said, tone="lead"),
        facts(
            ("validation accuracy", _percent(best["valid"]), "the best of many: it promises a little too much"),
            ("test accuracy", _percent(best["test"]), "one seed: no interval" if seeds == 1 else f"over {seeds} seeds"),
            ("points", f"{len(done)} of {found.sweep['total']}", f"{found.sweep['search']}; seeds of each: {seeds}"),
        ),
    ]
    if len(done) < found.sweep["total"]:
        left = found.sweep["total"] - len(done)
        blocks.append(text(f"{left} points are not finished; 'fedquilt sweep' goes on with them.", tone="warning"))
    for run in found.failed:
        blocks.append(
            text(f"{run.get('display', run['method'])}, seed {run['seed']} failed: {run['reason']}", tone="warning")
        )
    return Panel(TAB, "best", "In short", blocks)


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
            "validation accuracy",
            "percent",
            half="valid_half_95",
            help="mean over seeds at each seed's chosen round, ± 95 % t-interval",
        ),
        column("seeds", "seeds done", "number", digits=0),
        column("rounds", "chosen round", "number", digits=1),
        column("megabytes", "MB", "number", digits=1),
        column("seconds", "seconds", "number", digits=1),
    ]
    kept |= {f"v{i}" for i in range(len(names))}
    shown = [only(kept, row) for row in rows]
    note = "Sorted by validation accuracy; the best is marked. Test scores of other points are left out on purpose."
    return Panel(TAB, "points", "Points", [table("points", columns, shown, filter=True)], note)


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
    block = chart("points", "parameters", "Validation accuracy by setting", variants=variants)
    return Panel(TAB, "parameters", "What each setting does", [block], "Every point is one combination of settings.")


def _percent(value: float, half: float = float("nan")) -> str:
    return f"{100 * value:.1f}" + (f" ± {100 * half:.1f}" if half == half else "") + " %"
