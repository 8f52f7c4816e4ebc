"""The page that follows runs: the report's styles and pictures, and a script that asks for news every second."""

from __future__ import annotations

import html

import fedquilt
from fedquilt.runs.report.page import SHARED, asset, policy

ROOM = "fedquilt.runs.watch"
OWN = ("words.js", "list.js", "close.js", "watch.js")


def page(title: str) -> tuple[str, str]:
    """The page for a folder of this name, and the policy it is sent with: its own scripts, and its own server."""
    scripts = [asset(name) for name in SHARED] + [asset(name, ROOM) for name in OWN]
    text = TEMPLATE.format(
        title=html.escape(title), style=asset("report.css") + asset("watch.css", ROOM),
        version=html.escape(fedquilt.__version__),
        scripts="".join(f"<script>{script}</script>\n" for script in scripts),
    )  # fmt: skip
    return text, f"{policy(scripts)}; connect-src 'self'; frame-ancestors 'none'"


TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}: fedquilt watch</title>
<link rel="icon" href="data:,">
<style>
{style}
</style>
</head>
<body>
<a class="skip" href="#main">Skip to the content</a>
<header>
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
{scripts}</body>
</html>
"""
