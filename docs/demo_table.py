"""The table of ``make demo`` in the README, from a run of it.

    python docs/demo_table.py                      plays recipes/demo.toml, about a minute on two cores
    python docs/demo_table.py runs/compare-demo-*  takes a comparison that is finished

Writes the numbers to docs/demo.json, with the kind of CPU they were made on, and the table between its two marks into
README.md. tests/docs/test_demo_table.py holds both against each other, and against a fresh run.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HOME = Path(__file__).resolve().parent.parent
RECIPE, NUMBERS, PAGE = HOME / "recipes/demo.toml", HOME / "docs/demo.json", HOME / "README.md"
BEGIN, END = "<!-- demo table: docs/demo_table.py writes it -->", "<!-- end of demo table -->"
KEPT = (
    "method",
    "kind",
    "frame",
    "accuracy",
    "accuracy_half_95",
    "worst10",
    "worst10_both_half_95",
    "balanced_accuracy",
    "balanced_accuracy_both_half_95",
    "macro_f1",
    "macro_f1_both_half_95",
    "megabytes_up",
    "megabytes_down",
    "versus_first_difference",
    "versus_first_half",
    "versus_first_p",
    "ari",
)


def main(folder: Path | None) -> None:
    """Play if there is nothing to take, then write."""
    from fedquilt.config.config import load
    from fedquilt.runs.progress import Progress
    from fedquilt.studies.compare import compare

    with tempfile.TemporaryDirectory() as place:
        if folder is None:
            config = load(RECIPE, [f"output.folder={place}"])
            with Progress() as progress:
                runs = (len(config.compare.methods) + 2) * len(config.compare.seeds)
                folder = Path(compare(config, progress.parts(config.rounds, runs))["folder"])
        found = numbers(folder)
    NUMBERS.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")
    print(table(found))


def numbers(folder: Path) -> dict[str, Any]:
    """What the table needs of a finished comparison, the accuracy of every seed, and what they were made with."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    seeds, made = {}, {}
    for row in summary["rows"]:
        results = [json.loads((folder / f"{row['method']}-seed{s}/result.json").read_text()) for s in summary["seeds"]]
        seeds[row["method"]] = [result["best"]["test_accuracy"] for result in results]
        made = {k: v for k, v in results[0]["environment"].items() if k not in ("fast_kernels", "capture", "threads")}
    options = {label: _options(folder / f"{label}-seed{summary['seeds'][0]}") for label in seeds}
    return {
        "environment": made,
        "rounds": _rounds(folder),
        "seeds": summary["seeds"],
        "majority_class": summary["majority_class"],
        "winner": {k: summary["winner"][k] for k in ("method", "tied")},
        "options": options,
        "accuracies": seeds,
        "rows": [{k: row[k] for k in KEPT} for row in summary["rows"]],
    }


def _options(run: Path) -> dict[str, Any]:
    import tomllib

    asked = tomllib.loads((run / "config.toml").read_text(encoding="utf-8"))["method"]
    return {name: value for name, value in asked.items() if name != "kind"}


def _rounds(folder: Path) -> int:
    return int(json.loads((folder / "comparison.json").read_text(encoding="utf-8"))["rounds"])


def table(found: Mapping[str, Any]) -> str:
    """The table and the lines below it, as Markdown."""
    first = found["rows"][0]["method"]
    lines = [
        "| method | accuracy, % | worst 10 % of clients | balanced | macro F1 | MB "
        f"| minus {first}, client by client (p) |",
        "|---|---|---|---|---|---|---|",
        f"| *majority class* | {100 * found['majority_class']:.1f} | | | | | |",
    ]
    best = {found["winner"]["method"], *found["winner"]["tied"]}
    for row in sorted(found["rows"], key=lambda row: not row["frame"]):
        scores = [_span(row["accuracy"], row["accuracy_half_95"])]
        scores += [_span(row[n], row[f"{n}_both_half_95"]) for n in ("worst10", "balanced_accuracy", "macro_f1")]
        name = row["method"] + _told(found["options"][row["method"]])
        name = f"*{name}*" if row["frame"] else name
        if row["method"] in best:
            name, scores[0] = f"**{name}**", f"**{scores[0]}**"
        sent = f"{row['megabytes_up'] + row['megabytes_down']:.1f}"
        lines.append("| " + " | ".join([name, *scores, sent, _versus(row)]) + " |")
    return "\n".join([*lines, "", _below(found)])


def _span(value: float, half: float) -> str:
    return f"{100 * value:.1f} ± {100 * half:.1f}"


def _told(options: Mapping[str, Any]) -> str:
    return f" ({', '.join(f'{k} {v}' for k, v in options.items())})" if options else ""


def _versus(row: Mapping[str, Any]) -> str:
    if row["versus_first_difference"] is None:
        return ""
    difference = 100 * row["versus_first_difference"]
    sign = "+" if difference >= 0 else "\N{MINUS SIGN}"
    return f"{sign}{abs(difference):.1f} ± {100 * row['versus_first_half']:.1f} ({row['versus_first_p']:.1g})"


def _below(found: Mapping[str, Any]) -> str:
    made, won = found["environment"], found["winner"]
    tied = f"; not told apart from it: {', '.join(won['tied'])}" if won["tied"] else "; significantly above all others"
    groups = [row for row in found["rows"] if row["ari"] is not None]
    planted = "".join(f" {row['method']} finds the planted groups with an ARI of {row['ari']:.2f}." for row in groups)
    return (
        f"MLP, {found['rounds']} rounds, {len(found['seeds'])} seeds; ± is the 95 % t-interval over seeds, in the "
        "three columns after accuracy with that of the number of test samples, in the last one over clients. Highest: "
        f"{won['method']}{tied}.{planted} Made with torch {made['torch']} on {made['cpu']} ({made['cpu_capability']} "
        "kernels): other kinds of CPU change the last digits of sums, and so some of these."
    )


def with_table(page: str, found: Mapping[str, Any]) -> str:
    """The page with this table between the marks."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{table(found)}\n{END}{after}"


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
