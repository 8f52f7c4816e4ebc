"""What a finished run says of itself; to read it, no heavy library is needed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from fedquilt.core.plain import JSON, Row
from fedquilt.metrics import PRIMARY

CARRIED = ("carried_down", "carried_up", "scoring_down", "scoring_up")  # where messages travel to other machines
MEGABYTE = 1e6


def result_of(folder: Path) -> Row | None:
    """What a finished run wrote about itself, or None if it is not finished."""
    try:
        found: Row = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # missing or damaged: the last snapshot can tell it again
        return None
    return found if isinstance(found, dict) else None


def in_messages(found: Mapping[str, JSON]) -> str:
    """What messages to other machines held, in words; nothing where none travelled."""
    if CARRIED[0] not in found:
        return ""
    down, up, scoring_down, scoring_up = (f"{found[name] / MEGABYTE:.2f} MB" for name in CARRIED)
    return f"messages held {up} up, {down} down in all, of which scoring took {scoring_up} up, {scoring_down} down"


_ROWS = {
    "common_valid": "the server's validation samples",
    "global_valid": "clients' validation samples",
    "common_test": "the common test set",
    "global_test": "clients' test samples",
}
_SUMMARIES = ("pooled", "std", "worst10", "half_95")  # of one model: no modes


def on_validation(numbers: Mapping[str, JSON], id: str = PRIMARY) -> float | None:
    """A round's metric on validation samples: clients', or the server's where they have none."""
    found: float | None = numbers.get(f"valid_{id}", numbers.get(f"common_valid_{id}"))
    return found


def validated(result: Mapping[str, JSON]) -> bool:
    """Was the best round of this result chosen on validation samples, clients' or the server's? Else it is the last
    one."""
    return on_validation(result.get("best") or {}, result.get("chosen_by", PRIMARY)) is not None


def chosen(on_validation: bool) -> str:
    """Which round a table shows, in words."""
    return "round selected on validation data" if on_validation else "last evaluated round (no validation samples)"


def modes_over(rounds: Sequence[Mapping[str, JSON]]) -> Row:
    """The modes of several runs as those of one: every mode that a run was served in, and mean accuracies."""
    kept = [n for n in (rounds[0] if rounds else ()) if n.startswith(tuple(_ROWS))]
    values: dict[str, list[JSON]] = {n: [row.get(n) for row in rounds] for n in kept}
    means = {n: fmean(told) for n, told in values.items() if None not in told}
    modes = dict.fromkeys(row["served"] for row in rounds if row.get("served") is not None)
    return {**means, "served": " or ".join(modes) or None}


def modes_of(metrics: Mapping[str, JSON]) -> Row | None:
    """The mode in which a global model is ``served``, and by the rows they are of the ``accuracy`` of all modes; None
    where there is one mode."""
    if metrics.get("served") is None:
        return None
    found: dict[str, Row] = {}
    for name in _ROWS:
        start = f"{name}_accuracy_"
        modes = {n.removeprefix(start): v for n, v in metrics.items() if n.startswith(start) and v is not None}
        found[name] = {mode: v for mode, v in modes.items() if not mode.endswith(_SUMMARIES)}
    return {"served": metrics["served"], "accuracy": {name: modes for name, modes in found.items() if modes}}


def modes_line(metrics: Mapping[str, JSON]) -> str | None:
    """The same in words."""
    found = modes_of(metrics)
    if found is None:
        return None
    shares = {
        _ROWS[name]: ", ".join(f"{mode} {100 * v:.1f}" for mode, v in modes.items())
        for name, modes in found["accuracy"].items()
    }
    told = "; ".join(f"on {rows} {modes}" for rows, modes in shares.items())
    return f"global model: {found['served']}; accuracy in % of all modes {told}{'' if chosen_mode(found) else UNCHOSEN}"


UNCHOSEN = "; there are no validation samples to choose a mode on"


def chosen_mode(modes: Mapping[str, JSON]) -> bool:
    """Whether there were validation samples to choose a mode on."""
    return any(name.endswith("valid") for name in modes["accuracy"])
