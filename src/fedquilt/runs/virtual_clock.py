"""The virtual clock: how long rounds would take on other devices and links than those they were played on.

An exchange takes as long as its slowest participant (download, work, upload) and what the server does for it. Scoring
takes no virtual time, and nobody waits for replies that were left out. A run that was played already can be timed on
other links (:func:`timed`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedquilt.config.config import apply, parse
from fedquilt.config.links import PRESETS, Network
from fedquilt.core.plain import JSON, Row
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId
from fedquilt.errors import ConfigError, InputError
from fedquilt.results.statistics.targets import costs_until
from fedquilt.results.views import RunView, views_in
from fedquilt.rounds.phases import Phase
from fedquilt.storage.logs import PHASES, UPDATES, rows_by_round
from fedquilt.storage.slots import client_id

PARTS = ("broadcast", "train", "upload", "aggregate")  # download, work, upload, server
NEEDED = ("place", "exchange", "client", "bytes_down", "bytes_up", "seconds", "steps")  # of a client update
SERVER = ("broadcast", "upload", "aggregate")  # phases of the server's own work


@dataclass(frozen=True)
class Device:
    """A client's device: seconds for a byte each way, for a message, and for a second of work here."""

    down: float
    up: float
    latency: float
    work: float


@dataclass(frozen=True)
class TimedExchange:
    """One exchange on the virtual clock: the seconds of its slowest participant's parts, and of the server."""

    exchange: str
    broadcast: float
    train: float
    upload: float
    aggregate: float

    @property
    def seconds(self) -> float:
        """In all."""
        return self.broadcast + self.train + self.upload + self.aggregate


class VirtualClock:
    """Times rounds by their client updates.

    Example:
        >>> clock = VirtualClock(Network(uplink_mbps=8, latency_ms=100, seconds_per_step=0.5))
        >>> update = {"exchange": "train", "place": 0, "client": 7, "bytes_down": 1000, "bytes_up": 10**6,
        ...           "seconds": 0.01, "steps": 4}
        >>> [exchange.seconds for exchange in clock.exchanges([update], {})]  # 0.1 + 4 * 0.5 + 0.1 + 8e6 / 8e6
        [3.2]
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self._devices: dict[ClientId, Device] = {}

    def device(self, client: ClientId) -> Device:
        """A client's device: a pure function of the settings and its id."""
        known = self._devices.get(client)
        if known is None:
            known = self._devices[client] = self._drawn(client)
        return known

    def _drawn(self, client: ClientId) -> Device:
        network = self.network
        profile: Any = network
        factors = [1.0, 1.0, 1.0]
        if network.profiles or network.spread:
            draw = Seed(network.seed).fold("network", client).numpy()
            place, z = float(draw.random()), draw.standard_normal(3).tolist()
            factors = [math.exp(network.spread * value) for value in z]
            if network.profiles:
                profile = {**PRESETS, **network.own}[_chosen(network.profiles, place)]
        return Device(
            _per_byte(profile.downlink_mbps, factors[0]),
            _per_byte(profile.uplink_mbps, factors[1]),
            profile.latency_ms / 1e3,
            profile.compute_scale / factors[2],
        )

    def exchanges(self, updates: Iterable[Mapping[str, JSON]], server: Mapping[str, float]) -> list[TimedExchange]:
        """The exchanges of one round, from its client updates (rows of metrics/client_updates.jsonl) and the seconds
        that the server worked for each exchange."""
        slowest: dict[tuple[int, str], tuple[float, float, float]] = {}
        for update in updates:
            key, parts = (update.get("place", 0), update["exchange"]), self._parts(update)
            if key not in slowest or sum(parts) > sum(slowest[key]):
                slowest[key] = parts
        names = [name for _, name in slowest]
        return [
            TimedExchange(name, *slowest[place, name], self._server(server.get(name, 0.0) / names.count(name)))
            for place, name in sorted(slowest)
        ]

    def _parts(self, update: Mapping[str, JSON]) -> tuple[float, float, float]:
        device, step = self.device(update["client"]), self.network.seconds_per_step
        work = update["seconds"] if step is None else step * (update["steps"] or 0)
        down, up = (
            device.latency + update["bytes_down"] * device.down,
            device.latency + update["bytes_up"] * device.up,
        )
        return down, work * device.work, up

    def _server(self, measured: float) -> float:
        if self.network.server_seconds is not None:
            return self.network.server_seconds
        return measured if self.network.seconds_per_step is None else 0.0


def server_seconds(phases: Iterable[Phase]) -> dict[str, float]:
    """The seconds that the server itself worked for each exchange."""
    found: dict[str, float] = {}
    for phase in phases:
        if phase.exchange is not None and phase.phase in SERVER:
            found[phase.exchange] = found.get(phase.exchange, 0.0) + phase.seconds
    return found


def _chosen(shares: Mapping[str, float], place: float) -> str:
    left = place * sum(shares.values())
    for name, share in shares.items():
        left -= share
        if left < 0:
            return name
    return name


def _per_byte(mbps: float | None, factor: float) -> float:
    return 0.0 if mbps is None else 8 / (mbps * 1e6 * factor)


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
        raise InputError(f"No run of '{folder}' has finished a round yet.")
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
    updates, phases = rows_by_round(view.rows(UPDATES)), rows_by_round(view.rows(PHASES))
    total, found = 0.0, {}
    for row in view.rounds:
        number = row["round"]
        known = [Phase(p["exchange"], p["phase"], p["seconds"]) for p in phases.get(number, []) if "seconds" in p]
        here = [{**v, "client": client_id(v["client"])} for v in updates.get(number, [])]
        total += sum(exchange.seconds for exchange in clock.exchanges(here, server_seconds(known)))
        found[number] = total
    return found
