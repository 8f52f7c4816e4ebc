"""The panels of a report, in their order. Each is a function of what was gathered; None where it does not apply.

To add one, write such a function, and put it here.
"""

from __future__ import annotations

from collections.abc import Callable

from fedquilt.report.blocks import Panel, text
from fedquilt.report.gather import Gathered
from fedquilt.report.panels.clients import curves, distribution, heat_map, sureness
from fedquilt.report.panels.clusters import clusters
from fedquilt.report.panels.files import banks, forgetting, leakage, tails
from fedquilt.report.panels.settings import best_point, differences, federation, parameters, points, runs, settings
from fedquilt.report.panels.summary import comparison, headline, tests
from fedquilt.report.panels.traffic import compression, dropped, messages, seconds

PANELS: tuple[Callable[[Gathered], Panel | None], ...] = (
    headline,
    comparison,
    tests,
    curves,
    distribution,
    sureness,
    heat_map,
    federation,
    clusters,
    tails,
    forgetting,
    banks,
    compression,
    leakage,
    messages,
    seconds,
    dropped,
    runs,
    differences,
    settings,
)
SWEEP: tuple[Callable[[Gathered], Panel | None], ...] = (
    best_point,
    points,
    parameters,
    curves,
    federation,
    messages,
    seconds,
    dropped,
    runs,
    settings,
)


def panels_of(found: Gathered) -> list[Panel]:
    """The panels that apply. Those of a sweep leave test scores out, so that nobody chooses by them."""
    made = (_made(make, found) for make in (SWEEP if found.sweep else PANELS))
    return [panel for panel in made if panel is not None]


def _made(make: Callable[[Gathered], Panel | None], found: Gathered) -> Panel | None:
    """A panel; of runs with damaged logs, one that cannot be made says so instead of taking the others along."""
    try:
        return make(found)
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:
        if not any(view.missing for view in found.views):
            raise
        name = make.__name__.replace("_", " ")
        said = f"This panel cannot be created from the remaining logs ({type(error).__name__}: {error})."
        return Panel("Damaged", f"damaged-{make.__name__}", name, [text(said, tone="warning")])
