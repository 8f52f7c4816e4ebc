"""The table of ``fedquilt demo`` in the README, from a run of it.

    python docs/demo_table.py               plays all scenes, about 90 seconds on two cores
    python docs/demo_table.py runs/demo     takes a demo that is finished

Writes the numbers to docs/demo.json, with the kind of CPU they were made on, and the table between its two marks into
README.md. tests/docs/test_demo_table.py holds both against each other, and against fresh runs.
"""

from __future__ import annotations

import json
import sys
import tempfile
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HOME = Path(__file__).resolve().parent.parent
NUMBERS, PAGE = HOME / "docs/demo.json", HOME / "README.md"
BEGIN, END = "<!-- demo table: docs/demo_table.py writes it -->", "<!-- end of demo table -->"
LEFT_OUT = ("report", "seconds")
CARDS = {
    "HCFL": "hcfl",
    "HGLS": "hgls",
    "FedLoGe": "fedloge",
    "Localize-and-Stitch": "localize-stitch",
    "PODFCSSV": "podfcssv",
}


def main(folder: Path | None) -> None:
    """Play if there is nothing to take, then write."""
    from fedquilt.cli import app

    with tempfile.TemporaryDirectory() as place:
        top = folder or Path(place)
        if folder is None:
            app(["demo", "--to", place], standalone_mode=False)
        found = numbers(top)
    NUMBERS.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")
    print(table(found))


def numbers(top: Path) -> dict[str, Any]:
    """What each scene told, a score of every run, and what they were made with."""
    scenes = json.loads((top / "index.json").read_text(encoding="utf-8"))
    made, told = {}, []
    for scene in scenes:
        files = sorted((top / Path(scene["report"]).parent.name).glob("*/result.json"))
        results = {file.parent.name: json.loads(file.read_text(encoding="utf-8")) for file in files}
        environment = next(iter(results.values()))["environment"]
        made = {k: v for k, v in environment.items() if k not in ("fast_kernels", "capture", "threads")}
        runs = {name: _score(result["best"]) for name, result in results.items()}
        told.append({**{k: v for k, v in scene.items() if k not in LEFT_OUT}, "runs": runs})
    return {"environment": made, "scenes": told}


def _score(best: Mapping[str, Any]) -> float:
    return float(best.get("test_accuracy", best["test_loss"]))


def table(found: Mapping[str, Any]) -> str:
    """The table and the lines below it, as Markdown."""
    lines = ["| problem | method | accuracy | FedAvg | local training | significance |", "|---|---|---|---|---|---|"]
    for scene in found["scenes"]:
        values = {row["method"]: _span(row["value"], row["half_95"]) for row in scene["values"]}
        ours = f"[{scene['system']}](docs/methods/{CARDS[scene['system']]}.md)"
        others = (values.get(name, "") for name in ("FedAvg", "local training"))
        lines.append(
            "| " + " | ".join([scene["title"], ours, values[scene["system"]], *others, scene["verdict"]]) + " |"
        )
    made = found["environment"]
    below = (
        "Accuracy in %, ± 95 % over three seeds: mean over clients, except for rare classes (the global model on a "
        "common test set, so local training has no entry) and new tasks (a linear probe of the features). [The "
        "demo](docs/demo.md) explains the tests, and where these methods gain nothing. Made with torch "
        f"{made['torch']} on {made['cpu']} ({made['cpu_capability']} kernels); other types of CPU round differently, "
        "which changes some digits."
    )
    return "\n".join([*lines, "", *textwrap.wrap(below, 120, break_on_hyphens=False)])


def _span(value: float, half: float) -> str:
    return f"{100 * value:.1f} ± {100 * half:.1f}"


def with_table(page: str, found: Mapping[str, Any]) -> str:
    """The page with this table between the marks."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{table(found)}\n{END}{after}"


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
