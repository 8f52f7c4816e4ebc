"""Panels as one HTML file: styles, scripts and data inside it, and a policy that lets nothing else in."""

from __future__ import annotations

import hashlib
import html
from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from importlib import resources

import fedquilt
from fedquilt.core.plain import Row
from fedquilt.report.gather import Gathered
from fedquilt.report.panels import panels_of
from fedquilt.storage.files import to_json

SHARED = ("d3.min.js", "plot.umd.min.js", "elements.js", "tables.js", "figures.js", "charts.js", "theme.js")
SCRIPTS = (*SHARED, "grids.js", "points.js", "main.js")


@cache
def asset(name: str, room: str = "fedquilt.report") -> str:
    """The text of a file that is part of every page."""
    return (resources.files(room) / "assets" / name).read_text(encoding="utf-8")


def page(found: Gathered) -> str:
    """The whole file."""
    panels = [panel.plain() for panel in panels_of(found)]
    size = subtitle(found)
    data = embedded({"title": found.title, "panels": panels})
    scripts = [asset(name) for name in SCRIPTS]
    body = BODY.format(
        heading=html.escape(found.title),
        about=" · ".join(f"<span>{name} <b>{html.escape(told)}</b></span>" for name, told in found.about),
        subtitle=html.escape(size),
        answer=html.escape(" ".join(_answer(panels))),
        data=data,
        footer=_footer(found, data),
    )
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy(scripts)}">\n'
    return document(f"{found.title}: fedquilt report", asset("report.css"), body, scripts, head)


def document(title: str, style: str, body: str, scripts: Sequence[str], head: str = "") -> str:
    """A page of these parts."""
    inside = "".join(f"<script>{text}</script>\n" for text in scripts)
    return DOCUMENT.format(title=html.escape(title), style=style, body=body, scripts=inside, head=head)


def embedded(content: object) -> str:
    """JSON that cannot end the element it stands in, nor begin another."""
    text = to_json(content)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def subtitle(found: Gathered) -> str:
    """How large it is, in a line."""
    methods, seeds = len(found.methods), len({view.seed for view in found.views})
    clients = len(found.federation.get("clients", [])) or max((len(v.scored.clients) for v in found.views), default=0)
    rounds = found.plan.get("rounds") or max((v.config.get("rounds", 0) for v in found.views), default=0)
    counts = ((methods, "point" if found.sweep else "method"), (seeds, "seed"), (clients, "client"), (rounds, "round"))
    return " · ".join(f"{n} {what}{'' if n == 1 else 's'}" for n, what in counts if n)


def _answer(panels: list[Row]) -> list[str]:
    """The first paragraphs, for readers without scripts."""
    return next((b["paragraphs"] for p in panels for b in p["blocks"] if b["kind"] == "text"), [])


def policy(scripts: Sequence[str]) -> str:
    """Only these scripts run, and nothing is fetched from anywhere."""
    hashes = " ".join(f"'sha256-{b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    fixed = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    return f"{fixed}; script-src {hashes}"


def _footer(found: Gathered, data: str) -> str:
    """What the numbers were made with, and what they are."""
    results = [view.result for view in found.views if view.result]
    states = "".join(sorted(str(result.get("digest")) for result in results))
    items = {
        "fedquilt": fedquilt.__version__,
        "environment": _environment([result.get("environment", {}) for result in results]),
        "data": ", ".join(sorted({str(r["data"])[:16] for r in results if r.get("data")})) or "unknown",
        "final states": hashlib.sha256(states.encode()).hexdigest()[:16],
        "this page": hashlib.sha256(data.encode()).hexdigest()[:16],
    }
    return "".join(f"<div><dt>{html.escape(k)}</dt><dd>{html.escape(v)}</dd></div>" for k, v in items.items())


def _environment(known: Sequence[Row]) -> str:
    """What the first run was made with, and whether the others were, too."""
    if not known:
        return "no run is finished"
    made = ", ".join(f"{name} {value}" for name, value in known[0].items()) or "no run is finished"
    return made + ("" if all(other == known[0] for other in known) else " (some runs were made with others)")


DOCUMENT = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
{head}<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
{style}
</style>
</head>
<body>
<a class="skip" href="#main">Skip to the content</a>
{body}{scripts}</body>
</html>
"""

BODY = """<header>
<div class="brand"><span class="quilt" aria-hidden="true"></span>
<div><h1>{heading}</h1><p class="subtitle">{about}</p><p class="subtitle">{subtitle}</p></div></div>
<div class="tools"><button type="button" id="theme">Dark</button><button type="button" id="print">Print</button></div>
</header>
<div role="tablist" aria-label="Parts of the report" id="tabs"></div>
<main id="main" tabindex="-1"><noscript><p>{answer}</p><p>Tables and pictures need JavaScript; nothing is fetched.</p></noscript></main>
<footer><dl>{footer}</dl></footer>
<div id="live" class="unseen" role="status" aria-live="polite"></div>
<script type="application/json" id="data">{data}</script>
"""  # noqa: E501
