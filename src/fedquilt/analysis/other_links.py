"""A run that was played already, timed by the virtual clock on other links and devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedquilt.config.config import apply, parse
from fedquilt.config.links import Network
from fedquilt.core.plain import JSON, Row
from fedquilt.core.table import ClientId
from fedquilt.errors import ConfigError, InputError
from fedquilt.results.statistics.targets import costs_until
from fedquilt.results.views import RunView, views_in
from fedquilt.rounds.phases import Phase
from fedquilt.runs.meters import LOG
from fedquilt.runs.virtual_clock import VirtualClock, server_seconds


def network_of(view: RunView, changes: Sequence[str]) -> Network:
    """The links of a run's recipe, with changes such as ``uplink_mbps=2``."""
    given = [text if text.startswith("network.") else f"network.{text}" for text in changes]
    raw, problems = apply({"network": view.config.get("network", {})}, given)
    if problems:
        raise ConfigError(problems)
    network = parse({"network": raw["network"]}).network
    assert network is not None
    return network


def timed(folder: Path, changes: Sequence[str] = (), target: float = 0.8) -> list[Row]:
    """For each run of a folder: virtual seconds in all, and until the mean test accuracy reaches the target.

    Nothing is written: the client updates of the run say what travelled and how long clients worked.
    """
    views = [view for view in views_in(folder) if view.rounds]
    if not views:
        raise InputError(f"No run of '{folder}' has played a round yet.")
    found = []
    for view in views:
        clock = VirtualClock(network_of(view, changes))
        spent = by_round(clock, view)
        rows = [{**row, "virtual_seconds": spent[row["round"]]} for row in view.rounds]
        reached = costs_until(rows, target)
        found.append(
            {
                "method": view.label,
                "seed": view.seed,
                "rounds": rows[-1]["round"],
                "virtual_seconds": rows[-1]["virtual_seconds"],
                "to_target": None if reached is None else reached["seconds"],
                "rounds_to_target": None if reached is None else int(reached["rounds"] or 0),
            }
        )
    return found


def by_round(clock: VirtualClock, view: RunView) -> dict[int, float]:
    """Virtual seconds since the beginning at the end of each round."""
    updates, phases = _grouped(view.rows("metrics/client_updates.jsonl")), _grouped(view.rows(LOG))
    total, found = 0.0, {}
    for row in view.rounds:
        number = row["round"]
        known = [Phase(p["exchange"], p["phase"], p["seconds"]) for p in phases.get(number, []) if "seconds" in p]
        here = [{**v, "client": _id(v["client"])} for v in updates.get(number, [])]
        total += sum(trip.seconds for trip in clock.trips(here, server_seconds(known)))
        found[number] = total
    return found


def _grouped(rows: Sequence[Mapping[str, JSON]]) -> dict[int, list[Mapping[str, JSON]]]:
    found: dict[int, list[Mapping[str, JSON]]] = {}
    for row in rows:
        found.setdefault(row["round"], []).append(row)
    return found


def _id(client: JSON) -> ClientId:
    return tuple(client) if isinstance(client, list) else client
