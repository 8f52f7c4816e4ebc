"""How methods look in all pictures, on paper and on pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fedquilt.core.plain import Row

# Okabe and Ito's hues, told apart by colour-blind readers too, dark enough for thin lines on white; as on pages.
COLOURS = ("#0072B2", "#D55E00", "#00795A", "#B04A86", "#B97900", "#2A8FC7", "#33383E", "#8D8600")
LINES = ("-", "--", ":", "-.")


@dataclass(frozen=True)
class Look:
    """How a method looks in all pictures: what people read, and its place in the comparison, which gives its colour
    and, after eight of them, its line."""

    display: str
    place: int

    @property
    def name(self) -> str:
        """For a legend, which would hide what begins with _."""
        return f" {plain(self.display)}" if self.display.startswith("_") else plain(self.display)

    @property
    def colour(self) -> str:
        """The same on every picture."""
        return COLOURS[self.place % len(COLOURS)]

    @property
    def line(self) -> Row:
        """Colour and line of a curve."""
        return {"color": self.colour, "linestyle": LINES[self.place // len(COLOURS) % len(LINES)]}


Looks = Mapping[str, Look]


def looks_of(methods: Iterable[str], looks: Looks | None = None) -> dict[str, Look]:
    """The look of each method; of those that have none, by their order."""
    return {name: (looks or {}).get(name, Look(name, place)) for place, name in enumerate(methods)}


def plain(text: str) -> str:
    """A text for matplotlib, which would take $ for mathematics."""
    return text.replace("$", r"\$")
