"""The picture of Localize-and-Stitch beside its baselines: accuracy of the merged model by round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context

from fedquilt.runs.comparison_plots import Histories, method_style, over_seeds
from fedquilt.runs.plots import STYLE, save, subplots

LOOKS: Mapping[str, dict[str, Any]] = {
    "localize_stitch": {"color": "green"},
    "fedavg": {"color": "C0"},
    "fedavg_noise": {"color": "red", "alpha": 0.7},
}
MEASURES = ("common_test_accuracy", "global_test_accuracy_pooled", "test_accuracy_pooled")


def rounds_plot(histories: Histories, kinds: Sequence[str], title: str, path: Path) -> Path:
    """SVG, PNG and EPS, and the numbers as CSV; mean over seeds.

    The measure is the best that all methods have: the common test set, or else all clients' test rows together, or else
    those of the models that clients would use.
    """
    measure = next(
        m for m in MEASURES if all(len(over_seeds(s, m)[0]) for s in histories.values()) or m == MEASURES[-1]
    )
    seen: set[str] = set()
    rows: list[tuple[Any, ...]] = []
    with rc_context(STYLE):
        figure, axis = subplots(figsize=(7.0, 4.5))
        for place, ((label, seeds), kind) in enumerate(zip(histories.items(), kinds, strict=True)):
            rounds, mean = over_seeds(seeds, measure)
            look = LOOKS[kind] if kind in LOOKS and kind not in seen else method_style(place)
            seen.add(kind)
            axis.plot(rounds, mean, label=label, marker="o", markersize=3, **look)
            rows += [(label, int(r), f"{m:.6f}") for r, m in zip(rounds, mean, strict=True)]
        axis.set(xlabel="communication round", ylabel="accuracy", ylim=(0, 1), title=title)
        axis.set_yticks(np.arange(0, 1.01, 0.1))
        if axis.get_legend_handles_labels()[0]:  # there may be no method to draw
            axis.legend(loc="lower right")
        return save(figure, path, ("method", "round", measure), rows).with_suffix(".svg")
