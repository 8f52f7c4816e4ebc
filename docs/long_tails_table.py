"""The tables of docs/long-tails.md, from finished runs.

    fedquilt compare recipes/published/fedloge_cifar10_lt.toml
    fedquilt compare recipes/published/fedloge_cifar10_lt_headroom.toml
    python docs/long_tails_table.py runs/compare-fedloge_cifar10_lt-* --upper runs/compare-fedloge_cifar10_lt_headroom-*

Writes the numbers of every seed to docs/long_tails.json, and the tables between their two marks into the page; without
folders, the tables of the numbers that are there. tests/docs/test_long_tails_table.py holds both against each other.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

HOME = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(HOME / "benchmarks"))

from long_tails import paired, scores_in  # noqa: E402 - a script beside

NUMBERS, PAGE = HOME / "docs/long_tails.json", HOME / "docs/long-tails.md"
BEGIN, END = "<!-- tables: docs/long_tails_table.py writes them -->", "<!-- end of tables -->"
COMMON = ("universal", "global", "realigned", "universal_adjusted", "adjusted")
OWN = ("deployed", "own", "readme", "code", "sum")
GROUPS = ("head", "middle", "tail")
LOWER, OURS = "FedAvg", "FedLoGe, balanced"
ENOUGH = 2.0  # standard deviations over seeds between FedAvg and the upper frame, or there is nothing to show

Seeds = Mapping[str, Mapping[str, Any]]  # by seed, what a run gave


def main() -> None:
    """Take the runs if there are any, then write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--upper", nargs="*", type=Path, default=[])
    given = parser.parse_args()
    if given.folders:
        found = numbers(given.folders, given.upper)
        NUMBERS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    kept = json.loads(NUMBERS.read_text(encoding="utf-8"))
    print("\n".join(headroom(kept)))
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), kept), encoding="utf-8")


def numbers(folders: Sequence[Path], upper: Sequence[Path]) -> dict[str, Any]:
    """What the tables need of every run, by method and seed."""
    methods = {next(iter(rows.values()))["display"]: rows for rows in scores_in(folders).values()}
    above = [row for rows in scores_in(upper).values() for row in rows.values()]
    return {
        "upper": {str(row["seed"]): row["global"]["deployed"]["accuracy"] for row in above},
        "methods": {n: {str(seed): _kept(row) for seed, row in methods[n].items()} for n in sorted(methods)},
    }


def _kept(row: Mapping[str, Any]) -> dict[str, Any]:
    """A run: accuracies in every mode, and the mode that is most accurate on the server's validation samples."""
    valid = {mode: row["validation"][mode]["accuracy"] for mode in COMMON if mode in row["validation"]}
    common = {mode: row["global"][mode] for mode in COMMON if mode in row["global"]}
    own = {mode: row["clients"][mode] for mode in OWN if mode in row["clients"]}
    return {
        "chosen": max(valid, key=lambda mode: valid[mode]),
        "common": {m: {"accuracy": r["accuracy"], **{g: r["by_share"][g] for g in GROUPS}} for m, r in common.items()},
        "own": {
            m: {"accuracy": r["plain"]["accuracy"], "masked": r["masked"]["accuracy"], "worst": r["plain"]["worst"]}
            for m, r in own.items()
        },
    }


def common(run: Mapping[str, Any], mode: str = "chosen", what: str = "accuracy") -> float:
    """A number of a run on the common test set, in a mode or in the chosen one."""
    return float(run["common"][run["chosen"] if mode == "chosen" else mode][what])


def own(run: Mapping[str, Any], mode: str = "deployed", what: str = "accuracy") -> float:
    """A number of a run on its clients' own test samples."""
    return float(run["own"][mode][what])


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation, in %."""
    return f"{100 * np.mean(values):.1f} ± {100 * np.std(values, ddof=1):.1f}"


def headroom(found: Mapping[str, Any]) -> list[str]:
    """How far FedAvg is below the upper frame; ends where that is too little to show anything."""
    lower = [common(run, "global") for run in found["methods"][LOWER].values()]
    upper = list(found["upper"].values())
    gap, noise = np.mean(upper) - np.mean(lower), max(np.std(lower, ddof=1), np.std(upper, ddof=1))
    if gap < ENOUGH * noise:
        raise SystemExit(f"No headroom: {100 * gap:.1f} points, and seeds differ by {100 * noise:.1f}. No table.")
    return [
        f"Headroom: FedAvg {spread(lower)} %, all rows at one place with balanced softmax {spread(upper)} %: "
        f"{100 * gap:.1f} points, {gap / noise:.0f} times the larger standard deviation over seeds."
    ]


def tables(found: Mapping[str, Any]) -> str:
    """Everything between the marks."""
    methods: Mapping[str, Seeds] = found["methods"]
    parts = [
        headroom(found),
        [f"Common test set (balanced), %, {_seeds(methods)} seeds, ± standard deviation:"],
        ["| method, mode | accuracy | head | middle | tail |", "|---|---|---|---|---|", *_common(methods)],
        ["Clients' own test samples, means over clients, %:"],
        ["| method, mode | accuracy | with mask | worst client |", "|---|---|---|---|", *_own(methods)],
        [f"{OURS} minus the others, paired over seeds (± half of the 95 % interval; no correction for several tests):"],
        ["| | common test set, chosen mode | p | own samples | p |", "|---|---|---|---|---|", *_tests(methods)],
    ]
    return "\n\n".join("\n".join(part) for part in parts)


def _seeds(methods: Mapping[str, Seeds]) -> int:
    return len(next(iter(methods.values())))


def _common(methods: Mapping[str, Seeds]) -> Iterator[str]:
    for name, runs in methods.items():
        for mode in ("chosen", *next(iter(runs.values()))["common"]):
            cells = [spread([common(run, mode, what) for run in runs.values()]) for what in ("accuracy", *GROUPS)]
            told = dict.fromkeys(run["chosen"] for run in runs.values())
            shown = f"**chosen on validation** ({' or '.join(told)})" if mode == "chosen" else mode
            yield f"| {name}, {shown} | {' | '.join(cells)} |"


def _own(methods: Mapping[str, Seeds]) -> Iterator[str]:
    for name, runs in methods.items():
        for mode in next(iter(runs.values()))["own"]:
            cells = [
                spread([own(run, mode, what) for run in runs.values()]) for what in ("accuracy", "masked", "worst")
            ]
            yield f"| {name}, {mode} | {' | '.join(cells)} |"


def _tests(methods: Mapping[str, Seeds]) -> Iterator[str]:
    ours = methods[OURS]
    for name, runs in methods.items():
        if name == OURS:
            continue
        cells = []
        for number in (common, own):
            test = paired(*([number(side[seed]) for seed in ours] for side in (ours, runs)))
            cells += [f"{100 * test['difference']:+.1f} ± {100 * test['half_95']:.1f}", f"{test['p']:.3f}"]
        yield f"| {name} | {' | '.join(cells)} |"


def with_tables(page: str, found: Mapping[str, Any]) -> str:
    """The page with these tables between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise SystemExit(f"{PAGE} has no marks {BEGIN} and {END}.")
    return f"{before}{BEGIN}\n\n{tables(found)}\n\n{END}{after}"


if __name__ == "__main__":
    main()
