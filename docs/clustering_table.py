"""The table of simulated federations in docs/methods/clusters.md, from docs/clustering_null.json.

    python docs/clustering_table.py

``benchmarks/clustering_null.py`` makes the numbers; tests/docs/test_clustering_table.py holds the page against them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HOME = Path(__file__).resolve().parent.parent
NUMBERS, PAGE = HOME / "docs/clustering_null.json", HOME / "docs/methods/clusters.md"
BEGIN = "<!-- simulated federations: docs/clustering_table.py writes them -->"
END = "<!-- end of simulated federations -->"
KINDS = {
    "label groups": "groups of classes",
    "rotations": "rotated inputs",
    "other labels": "labels by other names",
    "permuted inputs": "permuted inputs",
    "iid": "no groups: IID",
    "odd": "no groups: one odd client",
    "dirichlet": "no groups: Dirichlet .1 to 10",
}
Rows = Sequence[Mapping[str, Any]]


def table(told: Rows) -> str:
    """The table and the lines below it, as Markdown."""
    lines = [
        "| clients differ by | of | `auto`: right | one instead | wrong | `silhouette`: right | one instead | wrong |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind, name in KINDS.items():
        lines.append(_line(name, [row for row in told if row["kind"] == kind]))
    lines.append(_line("**all**", told))
    good = sum(row["auto"]["verdict"] != "wrong" for row in told)
    counts = [row["auto"]["k"] for row in told if row["groups"] > 1 and row["auto"]["verdict"] == "right"]
    parts = Counter(row["part"] for row in told if row["auto"]["k"] > 1)
    chosen = ", ".join(f"{part or 'all of a network without'} {n}" for part, n in parts.most_common())
    slow = max(row["seconds_of_cpu"] for row in told)
    wrong = [row for row in told if row["auto"]["verdict"] == "wrong"]
    below = [
        f"{good} of {len(told)} ({100 * good / len(told):.1f} %) are right or one cluster. Groups that were found were "
        f"{min(counts)} to {max(counts)}. Part that decided: {chosen}. The slowest decision took {slow:.1f} s of CPU.",
        "Wrong ones: " + ("; ".join(map(_wrong, wrong)) or "none") + ".",
    ]
    return "\n".join([*lines, "", *(part for text in below for part in (*_wrapped(text), ""))]).rstrip()


def _line(name: str, rows: Rows) -> str:
    cells = [name, str(len(rows))]
    for rule in ("auto", "silhouette"):
        counts = Counter(row[rule]["verdict"] for row in rows)
        cells += [str(counts[verdict]) for verdict in ("right", "one", "wrong")]
    return "| " + " | ".join(cells) + " |"


def _wrong(row: Mapping[str, Any]) -> str:
    what = KINDS[row["kind"]].removeprefix("no groups: ")
    planted = f"{row['groups']} groups" if row["groups"] > 1 else f"alpha {row['alpha']:g}" if row["alpha"] else "none"
    found = row["auto"]
    met = f", ARI {found['ari']:.2f}" if row["groups"] > 1 else ""
    return f"{what} ({planted}; {row['classes']} classes, {row['clients']} clients): {found['k']} clusters{met}"


def _wrapped(text: str) -> list[str]:
    import textwrap

    return textwrap.wrap(text, 120, break_long_words=False, break_on_hyphens=False)


def with_table(page: str, told: Rows) -> str:
    """The page with the table between its marks."""
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    return f"{before}{BEGIN}\n\n{table(told)}\n\n{END}{after}"


def main() -> None:
    """Write the page."""
    told = json.loads(NUMBERS.read_text(encoding="utf-8"))
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), told), encoding="utf-8")
    print(table(told))


if __name__ == "__main__":
    main()
