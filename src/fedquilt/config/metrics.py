"""Metrics of the user's own that a recipe names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedquilt.config.options import check_options, piece
from fedquilt.config.settings import named
from fedquilt.core.plain import JSON
from fedquilt.errors import InputError
from fedquilt.own_code import short
from fedquilt.registry import RegistryEntry, lookup

if TYPE_CHECKING:
    from fedquilt.metrics.table import Metric

_OF_THE_METRIC = ("name", "share", "higher_is_better")  # options of a mere function beside its own arguments


def use_metrics(asked: JSON) -> list[str]:
    """From here on these metrics are known, and those of the recipe before are not; what is wrong with them."""
    asked = [asked] if isinstance(asked, str | Mapping) else asked
    listed = [named(item) for item in asked] if isinstance(asked, list) else []
    problems: list[str] = []
    found = []
    for place, item in enumerate(listed):
        path = f"metrics.{place}"
        try:
            if not isinstance(item["kind"], str):
                raise TypeError
            found.append(_metric(lookup("metric", item["kind"]), item, path, problems))
        except InputError as error:
            problems.append(f"{path}: {error}")
        except (KeyError, TypeError):
            problems.append(f"{path}: should be a name such as 'my.py:auroc', or a table with a kind, got {item!r}")
    if not problems:
        from fedquilt.metrics.table import use  # with numpy, which light commands do without

        try:
            use([m for m in found if m is not None])
        except InputError as error:
            problems.append(f"metrics: {error}")
    return problems


def _metric(entry: RegistryEntry, item: Any, path: str, problems: list[str]) -> Metric | None:
    """One of them: ready, made by a class, or of a function of scores and labels."""
    from fedquilt.metrics.own import of_function
    from fedquilt.metrics.table import Metric

    found, options = entry.load(), {n: v for n, v in item.items() if n != "kind"}
    if isinstance(found, Metric):
        problems += [f"{path}.{name}: {entry.name!r} has no options" for name in options]
        return found
    own = {n: options.pop(n) for n in _OF_THE_METRIC if n in options} if not isinstance(found, type) else {}
    given, wrong = check_options("metric", item["kind"], options, path)
    problems += wrong
    if wrong:
        return None
    made = piece("metric", entry, given)
    return made if isinstance(made, Metric) else of_function(short(item["kind"]).lower(), made, **own)
