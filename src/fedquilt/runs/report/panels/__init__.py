"""The panels of a report, in their order. Each is a function of what was gathered; None where it does not apply.

To add one, write such a function, and put it here.
"""

from __future__ import annotations

from collections.abc import Callable

from fedquilt.runs.report.blocks import Panel
from fedquilt.runs.report.gather import Gathered
from fedquilt.runs.report.panels.clients import distribution, heat_map
from fedquilt.runs.report.panels.clusters import clusters
from fedquilt.runs.report.panels.curves import curves
from fedquilt.runs.report.panels.federation import federation
from fedquilt.runs.report.panels.files import leakage, tails
from fedquilt.runs.report.panels.ledger import ledger
from fedquilt.runs.report.panels.settings import differences, runs, settings
from fedquilt.runs.report.panels.streams import banks, forgetting
from fedquilt.runs.report.panels.summary import comparison, headline, tests
from fedquilt.runs.report.panels.traffic import compression, messages, seconds

PANELS: tuple[Callable[[Gathered], Panel | None], ...] = (
    headline, comparison, tests,
    curves,
    distribution, heat_map,
    federation,
    clusters, tails, forgetting, banks, compression, leakage,
    messages, seconds,
    ledger,
    runs, differences, settings,
)  # fmt: skip
