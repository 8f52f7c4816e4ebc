"""The table of runs under a long tail: modes of FedLoGe and other methods by one protocol, with paired tests.

    fedquilt compare recipes/long_tail/fashion_mnist_lt.toml
    python benchmarks/long_tails.py runs/compare-fashion_mnist_lt-* [--against fedloge] [--json FILE]

Every run below the given folders is scored as ``fedquilt tails`` does; scores are kept beside it (tails.json), so that
the table can be made again. Lines are means over seeds with their standard deviation, in %. The tests pair seeds: the
difference between the first method and each other one, its 95 % half interval, and the p-value of a paired t-test.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from fedquilt.analysis.afterwards import config_in
from fedquilt.analysis.tails import evaluate
from fedquilt.config.shown import shown
from fedquilt.results.statistics.intervals import interval
from fedquilt.storage.finished import result_of

Scores = dict[str, dict[int, dict[str, Any]]]  # method -> seed -> scores
COMMON = ("universal", "global", "realigned", "universal_adjusted", "adjusted")
LOCAL = ("deployed", "global", "realigned", "own", "readme", "code", "sum")


def scores_in(folders: Sequence[Path]) -> Scores:
    """The scores of every finished run."""
    found: Scores = {}
    for folder in sorted(p.parent for top in folders for p in top.rglob("config.toml")):
        result, kept = result_of(folder), folder / "tails.json"
        if result is None:
            continue
        if not kept.exists():
            told = {"valid": result["last"].get("valid_accuracy"), "display": shown(config_in(folder).method)}
            kept.write_text(json.dumps({**evaluate(folder), **told}))
        row = json.loads(kept.read_text())
        label = folder.name.split("-seed")[0] if "-seed" in folder.name else folder.name.rsplit("-", 1)[0]
        found.setdefault(label, {})[row["seed"]] = row
    return found


def paired(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """The mean difference of pairs, half of its 95 % interval, and p of the paired t-test."""
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    found = interval(differences)
    return {"difference": found.mean, "half_95": found.half, "p": float(stats.ttest_rel(ours, theirs).pvalue)}


def value(row: Mapping[str, Any], path: Sequence[str]) -> float:
    """A number in nested scores."""
    inner: Any = row
    for key in path:
        inner = inner[key]
    return float(inner)


def cell(rows: Mapping[int, Mapping[str, Any]], path: Sequence[str]) -> str:
    """Mean and deviation over seeds, in %."""
    values = 100 * np.array([value(row, path) for row in rows.values()])
    return f"{values.mean():.1f}" + (f" ± {values.std(ddof=1):.1f}" if len(values) > 1 else "")


def table(found: Scores, part: str) -> list[str]:
    """Lines of Markdown: 'global', the common test set, or 'clients', masked and not."""
    names = ("accuracy", "head", "middle", "tail", "macro F1", "calibration error")
    paths = (
        ("accuracy",),
        *(("by_share", g) for g in ("head", "middle", "tail")),
        ("macro_f1",),
        ("calibration_error",),
    )
    lines = [f"| method, mode | {' | '.join(names)} | seeds |", "|---" * (len(names) + 2) + "|"]
    if part == "clients":
        lines = [lines[0].replace("accuracy |", "accuracy | with mask | worst client |", 1), lines[1] + "---|---|"]
    for method, rows in found.items():
        first = next(iter(rows.values()))
        for mode in [m for m in (COMMON if part == "global" else LOCAL) if m in first[part]]:
            plain = (part, mode) if part == "global" else (part, mode, "plain")
            cells = [cell(rows, (*plain, *path)) for path in paths]
            if part == "clients":
                cells[1:1] = [cell(rows, (part, mode, "masked", "accuracy")), cell(rows, (*plain, "worst"))]
            lines.append(f"| {method}, {mode} | {' | '.join(cells)} | {len(rows)} |")
    return lines


def tests(found: Scores, first: str) -> list[str]:
    """Paired differences between the first method and the others."""
    own = found[first]
    what = {
        "common test set, realigned against global": (("global", "realigned"), ("global", "global")),
        "common test set, universal against global": (("global", "universal"), ("global", "global")),
        "own samples, personal against deployed": (("clients", "readme", "plain"), ("clients", "deployed", "plain")),
        "own samples with mask": (("clients", "readme", "masked"), ("clients", "deployed", "masked")),
    }
    lines = [f"| {first} minus | what | accuracy | p | tail | p |", "|---|---|---|---|---|---|"]
    for method, rows in found.items():
        seeds = sorted(own.keys() & rows.keys())
        for name, (mine, theirs) in what.items():
            if method == first and not name.startswith("common"):
                continue
            cells = []
            for path in (("accuracy",), ("by_share", "tail")):
                test = paired(*([value(r[s], (*p, *path)) for s in seeds] for r, p in ((own, mine), (rows, theirs))))
                cells += [f"{100 * test['difference']:+.1f} ± {100 * test['half_95']:.1f}", f"{test['p']:.3f}"]
            lines.append(f"| {method} | {name} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--against", default="fedloge")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = scores_in(given.folders)
    print(
        "\n".join(
            ["Common test set", "", *table(found, "global"), "", "Own test samples", "", *table(found, "clients")]
        )
    )
    if given.against in found:
        print("\n".join(["", "Paired over seeds", "", *tests(found, given.against)]))
    if given.json:
        given.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
