"""The page of ``fedquilt robustness``: what to take, heat maps, and all numbers."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

import fedquilt
from fedquilt.core.plain import JSON
from fedquilt.report.page import asset, document, policy
from fedquilt.results.breakdown import span, told
from fedquilt.storage.files import write_atomic

STYLE = """
.wide { overflow-x: auto; } .wide img { max-width: none; }
table.plain { border-collapse: collapse; font-size: 14px; margin: 12px 0; }
table.plain th, table.plain td { padding: 3px 10px; text-align: right; border-bottom: 1px solid var(--line); }
table.plain th:first-child, table.plain td:first-child { text-align: left; }
"""
BODY = """<header>
<div class="brand"><span class="quilt" aria-hidden="true"></span>
<div><h1>Robustness of {name}</h1><p class="subtitle">{subtitle}</p></div></div>
<div class="tools"><button type="button" id="theme">Dark</button></div>
</header>
<main id="main" tabindex="-1">
{answer}
{pictures}
<h2>Rules</h2>
{rules}
<h2>Attacks</h2>
{attacks}
<p>Accuracy after the last round, mean over honest clients and seeds; ± is the 95 % t-interval over seeds. Points lost
are counted from the mean without an attack. A run that ended early counts with chance ({chance}).</p>
</main>
<footer>fedquilt {version}</footer>
"""


def write_page(summary: Mapping[str, JSON], pictures: Sequence[Path], path: Path) -> Path:
    """One file, with its pictures inside."""
    images = "".join(
        f'<div class="wide"><img alt="{escape(p.stem)}" src="data:image/png;base64,'
        f'{b64encode(p.read_bytes()).decode()}"></div>'
        for p in pictures
    )
    seeds = len(next(iter(summary["cells"]))["seeds"])
    body = BODY.format(
        name=escape(summary["name"]),
        subtitle=escape(f"{summary['method']}, {summary['rounds']} rounds, {seeds} seed{'s' * (seeds > 1)}"),
        answer="".join(f"<p>{escape(line)}</p>" for line in told(summary)),
        pictures=images,
        rules=_table(*rules_table(summary)),
        attacks=_table(*attacks_table(summary)),
        chance=f"{100 * summary['chance']:.0f} %",
        version=escape(fedquilt.__version__),
    )
    scripts = [asset("theme.js")]
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy(scripts)}">\n'
    title = f"{summary['name']}: robustness"
    write_atomic(path, document(title, asset("report.css") + STYLE, body, scripts, head).encode())
    return path


def rules_table(summary: Mapping[str, JSON]) -> tuple[list[str], list[list[str]]]:
    """Headings and lines: each rule, what it costs, and what it loses."""
    clean = {c["rule"]: c for c in summary["cells"] if c["attack"] is None}
    rows = [
        [
            r["rule"],
            span(clean[r["rule"]]),
            f"{100 * r['cost']:.1f}",
            f"{100 * r['lost']:.1f}",
            f"{100 * r['worst']:.1f}",
            r["worst_attack"],
            f"{r['held']} of {r['spoilt']}",
        ]
        for r in summary["rules"]
    ]
    return ["rule", "no attack, %", "cost", "lost, mean", "lost, worst", "under", "held"], rows


def attacks_table(summary: Mapping[str, JSON]) -> tuple[list[str], list[list[str]]]:
    """Headings and lines: each attack, and what becomes of each rule."""
    rules = [row["rule"] for row in summary["rules"]]
    cells = {(c["rule"], c["attack"], c["share"], c["by"]): c for c in summary["cells"]}
    return ["attack", *rules], list(_lines(cells, rules))


def _lines(
    cells: Mapping[tuple[str, str | None, float | None, str | None], JSON], rules: list[str]
) -> Iterator[list[str]]:
    for attack, share, by in dict.fromkeys(key[1:] for key in cells):
        told = "none" if attack is None else f"{attack}, {100 * (share or 0):g} % of {by}"
        yield [told, *(span(cells[rule, attack, share, by]) for rule in rules)]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(h)}</th>" for h in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(v)}</td>' for v in row)}</tr>" for row in rows)
    return f'<div class="wide"><table class="plain"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
