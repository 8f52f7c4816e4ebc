"""What may be said of a method beside others: no more than its test allows."""

from __future__ import annotations

import math
from collections.abc import Mapping

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
    """The differences in words: first where ours is above, then where it cannot be told apart, then where it is below.

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
        parts.append(f"not told apart from {listed(level)}")
    if known["one seed"]:
        parts.append(f"one seed cannot tell it from {listed([f'{n} ({signed(found[n])})' for n in known['one seed']])}")
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
