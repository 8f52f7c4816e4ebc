"""How a scene is told: in words, which say of a method no more than its test allows, and in small pictures as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from fedquilt.core.plain import Row
from fedquilt.results.statistics.paired import Accuracies, against, told

MINUS = "\N{MINUS SIGN}"


def pairs(ours: Accuracies, others: Mapping[str, Accuracies]) -> dict[str, Row]:
    """Ours minus each of the others, with a test that is corrected for their number (see ``Paired``)."""
    return told({name: against(other, ours) for name, other in others.items()})


def verdict(pair: Row) -> str:
    """'above' or 'below', where the test says so; 'level' where it does not; 'one seed' where there is no test."""
    if pair["seeds"] < 2:
        return "one seed"
    if not pair["significant"]:
        return "level"
    return "above" if pair["difference"] > 0 else "below"


def compared(found: Mapping[str, Row]) -> str:
    """The differences in words: above first, then no significant difference, then below.

    Example:
        >>> compared({"FedAvg": {"seeds": 3, "significant": True, "difference": 0.25, "half": 0.03}})
        '25.0 points above FedAvg'
    """
    known: dict[str, list[str]] = {"above": [], "level": [], "below": [], "one seed": []}
    for name, pair in found.items():
        known[verdict(pair)].append(name)

    def far(name: str) -> str:
        return f"{abs(100 * found[name]['difference']):.1f}"

    above, below = ([f"{far(n)} points {way} {n}" for n in known[way]] for way in ("above", "below"))
    level = [f"{n} ({signed(found[n])})" for n in known["level"]]
    parts = [*above]
    if level:
        parts.append(f"not significantly different from {listed(level)}")
    if known["one seed"]:
        parts.append(
            f"one seed, so not compared with {listed([f'{n} ({signed(found[n])})' for n in known['one seed']])}"
        )
    return listed([*parts, *below])


def signed(pair: Row) -> str:
    """A difference in points with half of its interval, if it has one."""
    value = 100 * pair["difference"]
    half = "" if math.isnan(pair["half"]) else f" ± {100 * pair['half']:.1f}"
    return f"{MINUS if value < 0 else '+'}{abs(value):.1f}{half}"


def listed(parts: list[str]) -> str:
    """With commas, and an "and" before the last."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}" if parts else ""


def percent(value: float, half: float = math.nan) -> str:
    """In per cent, with half of its interval, if it has one."""
    return f"{100 * value:.1f}{'' if half is None or math.isnan(half) else f' ± {100 * half:.1f}'} %"


def times(more: float, fewer: float) -> str:
    """How many times fewer: '30', '4.6'."""
    ratio = more / fewer
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}"


WIDE = 420  # units; on a phone they are a little smaller than pixels
LABEL, BAR, GAP = 156, 18, 12
COLOURS = ("var(--c0)", "var(--c1)", "var(--c2)", "var(--c3)", "var(--c4)", "var(--c5)", "var(--c7)")
QUIET = "var(--soft)"
Point = tuple[float, float]


def bars(rows: Sequence[tuple[str, float, float]], ours: str, unit: str = "%", top: float | None = None) -> str:
    """A bar for each (name, value, half of its interval); ``ours`` stands out. Values of "%" are shares."""
    percent = unit == "%"
    most = top or (1.0 if percent else max(value for _, value, _ in rows) or 1.0)
    room, parts = WIDE - LABEL - 62, []
    for place, (name, value, half) in enumerate(rows):
        y, end = place * (BAR + GAP) + 4, room * min(value, most) / most
        colour = "var(--accent)" if name == ours else QUIET
        shade = "1" if name == ours else "0.45"
        parts.append(_text(LABEL - 8, y + 13, name, "end", bold=name == ours))
        parts.append(_box(LABEL, y, end, BAR, colour, shade))
        sure = 0.0 if half is None or math.isnan(half) else room * half / most
        if sure:
            left, right = LABEL + max(0.0, end - sure), LABEL + min(room, end + sure)
            parts.append(_path([(left, y + BAR / 2), (right, y + BAR / 2)], "var(--ink)", 1.4))
        told = f"{100 * value:.1f} %" if percent else f"{value:,.1f} {unit}"
        parts.append(_text(LABEL + max(end, min(room, end + sure)) + 6, y + 13, told, bold=name == ours))
    return _svg(parts, len(rows) * (BAR + GAP) + 2)


def grouped(rows: Mapping[str, Mapping[str, float]], ours: str) -> str:
    """For each row a bar for each part of it, the parts in the same colours; shares. Ours begin with ``ours``."""
    names = list(next(iter(rows.values())))
    parts, y, room = _legend(names), 30.0, WIDE - LABEL - 52
    for name, shares in rows.items():
        middle = y + len(shares) * 11 / 2
        parts.append(_text(LABEL - 8, middle + 4, name, "end", bold=name.startswith(ours)))
        for place, value in enumerate(shares.values()):
            parts.append(_box(LABEL, y, room * value, 9, COLOURS[place]))
            parts.append(_text(LABEL + room * value + 5, y + 8.5, f"{100 * value:.0f} %", size=10.5))
            y += 11
        y += 12
    return _svg(parts, y - 4)


def lines(series: Mapping[str, Sequence[Point]], ours: str, x_name: str, y_name: str, log: bool = False) -> str:
    """A line for each series of (x, share)."""
    points = [point for line in series.values() for point in line]
    xs, ys = [_scaled(x, log) for x, _ in points], [y for _, y in points]
    low, high = math.floor(20 * min(ys)) / 20, math.ceil(20 * max(ys)) / 20
    high = high if high > low else low + 0.1
    left, right, top, bottom = 40.0, WIDE - 10.0, 48.0, 218.0

    def at(x: float, y: float) -> Point:
        across = (_scaled(x, log) - min(xs)) / ((max(xs) - min(xs)) or 1.0)
        return left + (right - left) * across, bottom - (bottom - top) * (y - low) / (high - low)

    order = sorted(series, key=lambda name: name != ours)
    colours = {name: "var(--accent)" if name == ours else COLOURS[place + 1] for place, name in enumerate(order)}
    parts = _legend(list(series), colours)
    for share in (low, (low + high) / 2, high):
        y = at(points[0][0], share)[1]
        parts.append(_path([(left, y), (right, y)], "var(--line)", 1))
        parts.append(_text(left - 6, y + 4, f"{100 * share:.3g}", "end", size=11, soft=True))
    for x in _ticks(series, log):
        parts.append(_text(at(x, low)[0], bottom + 16, f"{x:,.3g}", "middle", size=11, soft=True))
    for name in reversed(order):
        placed = [at(*point) for point in series[name]]
        parts.append(_path(placed, colours[name], 2.6 if name == ours else 1.8))
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{colours[name]}"/>' for x, y in placed]
    parts.append(_text((left + right) / 2, bottom + 34, x_name, "middle", size=12, soft=True))
    parts.append(_text(left - 34, top - 14, y_name, size=11, soft=True))
    return _svg(parts, bottom + 42)


def patches(groups: Mapping[str, Sequence[int | None]]) -> str:
    """A row for each planted group, a patch for each of its clients in the colour of the cluster it was put in."""
    parts, most = [], max(map(len, groups.values()))
    size = min(26.0, (WIDE - LABEL) / most)
    for row, (name, clusters) in enumerate(groups.items()):
        y = row * (size + 4)
        parts.append(_text(LABEL - 8, y + size / 2 + 4, name, "end"))
        for place, cluster in enumerate(clusters):
            colour = "var(--line)" if cluster is None else COLOURS[cluster % len(COLOURS)]
            parts.append(_box(LABEL + place * size, y, size - 2, size - 2, colour))
    return _svg(parts, len(groups) * (size + 4))


def _ticks(series: Mapping[str, Sequence[Point]], log: bool) -> list[float]:
    """Where the axis is written on: at each point of few, otherwise at its powers of ten or its ends."""
    xs = sorted({x for line in series.values() for x, _ in line})
    if log:
        return [10.0**e for e in range(math.ceil(math.log10(xs[0])), math.floor(math.log10(xs[-1])) + 1)]
    return xs if len(xs) <= 8 else [xs[0], xs[len(xs) // 2], xs[-1]]


def _scaled(x: float, log: bool) -> float:
    return math.log10(max(x, 1e-9)) if log else x


def _legend(names: Sequence[str], colours: Mapping[str, str] | None = None) -> list[str]:
    parts, x = [], 0.0
    for place, name in enumerate(names):
        parts.append(_box(x, 3, 11, 11, colours[name] if colours else COLOURS[place]))
        parts.append(_text(x + 16, 13, name, size=12))
        x += 32 + 6.6 * len(name)
    return parts


def _svg(parts: Sequence[str], high: float) -> str:
    return f'<svg viewBox="0 0 {WIDE} {high:.0f}" role="img" aria-hidden="true">{"".join(parts)}</svg>'


def _text(
    x: float, y: float, text: str, anchor: str = "start", size: float = 13, bold: bool = False, soft: bool = False
) -> str:
    weight, colour = (650 if bold else 400), ("soft" if soft else "ink")
    look = f'font-size="{size:g}" font-weight="{weight}" text-anchor="{anchor}" fill="var(--{colour})"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {look}>{escape(text)}</text>'


def _box(x: float, y: float, wide: float, high: float, colour: str, shade: str = "1") -> str:
    size = f'width="{max(wide, 0.5):.1f}" height="{high:.1f}" rx="3"'
    return f'<rect x="{x:.1f}" y="{y:.1f}" {size} fill="{colour}" fill-opacity="{shade}"/>'


def _path(points: Sequence[Point], colour: str, wide: float) -> str:
    drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="{wide}" stroke-linejoin="round"/>'
