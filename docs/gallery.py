"""Draw the pictures of docs/methods/index.md: ``python docs/gallery.py``. They show ideas, not results.

A client is a patch of four squares. Colours are those of the report, between its light and its dark ones, so that the
pictures can be read on both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

HOME = Path(__file__).parent / "assets" / "gallery"
RED, BLUE, GREEN, GOLD, ROSE = "#e2702a", "#2f8fd0", "#1fa07c", "#d3941a", "#c76aa6"
PATCH = (RED, BLUE, GREEN, GOLD)
GREY, LINE, EMPTY = "#76808c", "#8a939e", "#8a939e33"


def rect(x: float, y: float, w: float, h: float, fill: str, round: float = 3, more: str = "") -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="{round:g}" fill="{fill}" {more}/>'


def ring(x: float, y: float, r: float, colour: str) -> str:
    about = f'fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="5 4"'
    return f'<circle cx="{x:g}" cy="{y:g}" r="{r:g}" {about}/>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str = LINE, width: float = 1.6, dash: str = "") -> str:
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<path d="M{x1:g} {y1:g}L{x2:g} {y2:g}" stroke="{colour}" stroke-width="{width:g}"{dashes}/>'


def arrow(x1: float, y1: float, x2: float, y2: float, colour: str = LINE, width: float = 1.6) -> str:
    """A line whose end has a head."""
    context = math.atan2(y2 - y1, x2 - x1)
    sides = [(x2 - 7 * math.cos(context + a), y2 - 7 * math.sin(context + a)) for a in (0.5, -0.5)]
    return line(x1, y1, x2, y2, colour, width) + "".join(line(x2, y2, x, y, colour, width) for x, y in sides)


def words(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{text}</text>'


def patch(x: float, y: float, size: float, colours: tuple[str, ...] = PATCH) -> str:
    """A client, or a model: four squares around (x, y)."""
    half, gap = size / 2, size / 24
    places = ((-half, -half), (gap, -half), (-half, gap), (gap, gap))
    return "".join(
        rect(x + dx, y + dy, half - gap, half - gap, colour, size / 9)
        for (dx, dy), colour in zip(places, colours, strict=True)
    )


def grid(x: float, y: float, cell: float, side: int, colour_of: Callable[[int], str]) -> str:
    """Samples, or weights: side x side cells with (x, y) in the middle."""
    start = -side * cell / 2
    return "".join(
        rect(x + start + n % side * cell + 1, y + start + n // side * cell + 1, cell - 2, cell - 2, colour_of(n), 2)
        for n in range(side * side)
    )


def few_labels() -> str:
    """Three clients whose samples are mostly grey, below one model that all of them train."""
    made = [patch(160, 38, 46), words(190, 42, "shared", "start")]
    for x, labelled in ((55, {3: RED, 12: BLUE}), (160, {6: GREEN}), (265, {1: GOLD, 9: RED, 14: GREEN})):
        made.append(line(160, 68, x, 96, dash="2 4"))
        made.append(grid(x, 136, 18, 4, lambda n, some=labelled: some.get(n, EMPTY)))  # type: ignore[misc]
    return "".join([*made, words(160, 192, "coloured: with a label")])


def own_model() -> str:
    """One body, and a head of its own at every client."""
    made = [rect(40, 134, 240, 30, GREY, 6), '<text class="inside" x="160" y="154">shared body</text>']
    for x, colour in ((70, RED), (130, BLUE), (190, GREEN), (250, GOLD)):
        made += [line(x, 130, x, 100), patch(x, 78, 40, (colour,) * 4), words(x, 48, "head")]
    return "".join([*made, words(160, 184, "each client keeps its own head")])


def groups() -> str:
    """Clients of three kinds, and a ring around each kind."""
    made = []
    kinds = ((78, 70, BLUE), (230, 62, RED), (160, 148, GREEN))
    for x, y, colour in kinds:
        made.append(ring(x, y, 48, colour))
        for n in range(5):
            context = 2 * math.pi * n / 5 + x
            made.append(patch(x + 27 * math.cos(context), y + 27 * math.sin(context), 17, (colour,) * 4))
        made.append(patch(x, y, 11, (colour,) * 4))
    return "".join(made)


def rare_classes() -> str:
    """Counts that fall from class to class, and scores that do not."""
    made = [line(22, 160, 146, 160), line(182, 160, 304, 160), arrow(150, 96, 178, 96)]
    colours = (BLUE, GREEN, GOLD, RED, ROSE, GREY)
    for n, colour in enumerate(colours):
        high = 124 * 0.55**n
        made.append(rect(26 + 20 * n, 158 - high, 15, high, colour, 2))
        made.append(rect(186 + 20 * n, 158 - 84 + 3 * n, 15, 84 - 3 * n, colour, 2))
    return "".join([*made, words(84, 180, "samples of a class"), words(243, 180, "attention it gets")])


def streams() -> str:
    """Tasks that arrive one after the other, and a bank that keeps something of each."""
    made = [arrow(24, 150, 300, 150), words(160, 176, "time")]
    for n, colour in enumerate((BLUE, GREEN, GOLD, RED)):
        x = 58 + 66 * n
        made += [grid(x, 120, 12, 3, lambda i, c=colour: c if i % 2 else f"{c}88")]  # type: ignore[misc]
        made += [line(x, 98, 124 + 24 * n, 60, colour, 1.4, "2 4")]
        made += [f'<circle cx="{124 + 24 * n}" cy="46" r="9" fill="{colour}"/>']
    made.append(
        f'<rect x="106" y="28" width="108" height="36" rx="18" fill="none" stroke="{LINE}" stroke-width="1.6"/>'
    )
    return "".join([*made, words(160, 20, "what is kept")])


def slow_links() -> str:
    """A whole change at the client, and the few large weights of it that travel."""
    kept = {2: RED, 9: BLUE, 16: GOLD, 23: GREEN, 30: RED}
    cycle = (RED, BLUE, GREEN, GOLD)
    made = [grid(76, 92, 17, 6, lambda n: kept.get(n, f"{cycle[n % 4]}30"))]
    made += [grid(256, 92, 17, 6, lambda n: kept.get(n, EMPTY)), arrow(138, 92, 194, 92)]
    made += [rect(150 + 10 * n, 76, 7, 7, c, 1.5) for n, c in enumerate((RED, BLUE, GOLD))]
    return "".join([*made, words(76, 166, "client"), words(256, 166, "server"), words(166, 112, "few bytes")])


def trust() -> str:
    """Replies pass a check; one does not. What is sent shows little of what it was made from."""
    made = [line(160, 30, 160, 164, LINE, 3, "9 6"), words(160, 184, "check every reply")]
    for y, good in ((50, True), (97, False), (144, True)):
        made.append(patch(60, y, 34, PATCH if good else (GREY,) * 4))
        made.append(arrow(86, y, 226 if good else 148, y))
        if not good:
            made += [line(168, y - 9, 186, y + 9, RED, 4), line(186, y - 9, 168, y + 9, RED, 4)]
    return "".join([*made, patch(262, 97, 56), words(262, 146, "server"), words(60, 184, "clients")])


def baseline() -> str:
    """The frame of a comparison: alone below, pooled above, methods between."""
    made = [line(30, 46, 300, 46, BLUE, 2, "7 5"), line(30, 128, 300, 128, RED, 2, "7 5")]
    made += [line(30, 160, 300, 160, GREY, 2, "2 5")]
    for n, (low, high) in enumerate(((84, 108), (64, 88), (56, 72), (92, 120))):
        x = 70 + 62 * n
        made += [
            line(x, low, x, high, LINE, 2),
            line(x - 6, low, x + 6, low, LINE, 2),
            line(x - 6, high, x + 6, high, LINE, 2),
        ]
        made.append(patch(x, (low + high) / 2, 15, (GREEN,) * 4))
    made += [words(34, 38, "all data in one place", "start"), words(34, 144, "every client alone", "start")]
    return "".join([*made, words(34, 178, "most frequent label", "start")])


PICTURES = {
    "few-labels": few_labels,
    "own-model": own_model,
    "groups": groups,
    "rare-classes": rare_classes,
    "streams": streams,
    "slow-links": slow_links,
    "trust": trust,
    "baseline": baseline,
}


def drawn(name: str) -> str:
    """The whole file."""
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 320 200">\n'
        f"  <style>\n    text {{ font: 13px system-ui, sans-serif; fill: {GREY}; }}\n"
        "    .inside { fill: #fff; font-weight: 600; text-anchor: middle; }\n"
        "    path { stroke-linecap: round; }\n  </style>\n  " + PICTURES[name]().replace("><", ">\n  <") + "\n</svg>\n"
    )


if __name__ == "__main__":
    HOME.mkdir(parents=True, exist_ok=True)
    for name in PICTURES:
        (HOME / f"{name}.svg").write_text(drawn(name), encoding="utf-8")
