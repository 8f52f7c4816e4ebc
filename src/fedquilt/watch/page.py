"""The page that follows runs: the report's styles and pictures, and a script that asks for news every second."""

from __future__ import annotations

import html

import fedquilt
from fedquilt.report.page import SHARED, asset, document, policy

ROOM = "fedquilt.watch"
OWN = ("words.js", "list.js", "close.js", "watch.js")


def page(title: str) -> tuple[str, str]:
    """The page for a folder of this name, and the policy it is sent with: its own scripts, and its own server."""
    scripts = [asset(name) for name in SHARED] + [asset(name, ROOM) for name in OWN]
    body = BODY.format(title=html.escape(title), version=html.escape(fedquilt.__version__))
    text = document(f"{title}: fedquilt watch", asset("report.css") + asset("watch.css", ROOM), body, scripts)
    return text, f"{policy(scripts)}; connect-src 'self'; frame-ancestors 'none'"


BODY = """<header>
<div class="brand"><span class="quilt" aria-hidden="true"></span>
<div><h1>{title}</h1><p class="subtitle" id="subtitle">asking …</p></div></div>
<div class="tools"><button type="button" id="theme">Dark</button></div>
</header>
<main id="main" tabindex="-1">
<div id="trouble" class="warning" role="alert" hidden></div>
<noscript><p>This page needs JavaScript; without it, 'fedquilt watch --once' prints the same.</p></noscript>
</main>
<footer>fedquilt {version} · <span id="when"></span></footer>
<div id="live" class="unseen" role="status" aria-live="polite"></div>
"""
