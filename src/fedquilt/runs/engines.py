"""Engines by name."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence

import torch

from fedquilt.core.tree import unused
from fedquilt.engines.auto import Auto
from fedquilt.engines.lanes import Lanes
from fedquilt.engines.local import Local
from fedquilt.engines.workers import Workers
from fedquilt.errors import InputError
from fedquilt.registry import lookup
from fedquilt.rounds.engine import Engine

log = logging.getLogger("fedquilt")
_SIMULATION = "flower-simulation"
_REMEDY = (
    "To use the first, say engine.devices=['cuda:0'] in a recipe or on the command line, devices=['cuda:0'] in Python."
)
_told: set[str] = set()  # what this process, or the one it was forked from, has said


_WHOSE = {"nodes": "flower-simulation", "width": "lanes", "exact": "auto"}  # settings of one kind


def make_engine(
    engine: str | Engine,
    processes: int | None = None,
    devices: Sequence[str] = (),
    nodes: int | None = None,
    width: int | None = None,
    exact: bool = True,
) -> Engine:
    """An engine by name: 'auto', 'local', 'workers', 'lanes', 'flower-simulation', or one of an installed package,
    called with those of ``processes``, ``devices``, ``nodes``, ``width`` and ``exact`` that it takes.

    'auto' that need not be ``exact`` may choose lanes.
    """
    if not isinstance(engine, str):
        return engine
    maker = lookup("engine", engine).load()
    takes = inspect.signature(maker).parameters
    settings = {"processes": processes, "devices": devices, "nodes": nodes, "width": width, "exact": exact}
    for name, whose in _WHOSE.items():
        if name not in takes and settings[name] != (True if name == "exact" else None):
            given = "engine.exact = false" if name == "exact" else f"engine.{name}"
            raise InputError(f"{given} is for kind = {whose!r}, not {engine!r}. Leave it out.")
    made: Engine = maker(**{name: value for name, value in settings.items() if name in takes})
    return made


def auto(processes: int | None, devices: Sequence[str], exact: bool) -> Engine:
    """In this process first; on devices that are named, workers."""
    usable(devices)
    return Workers(processes, devices, 1 if exact else None) if devices else Auto(processes, exact)


def local(devices: Sequence[str]) -> Engine:
    """One client after the other in this process."""
    usable(devices)
    return Local(devices[0] if devices else None)


def workers(processes: int | None, devices: Sequence[str]) -> Engine:
    """Worker processes."""
    usable(devices)
    return Workers(processes, devices, 1)


def lanes(processes: int | None, devices: Sequence[str], width: int | None) -> Engine:
    """Several clients at once, in this process or in workers."""
    usable(devices)
    alone = (processes or 1) == 1 and len(devices) < 2
    return Lanes(width, devices[0] if devices else None) if alone else Workers(processes, devices, width)


def usable(devices: Sequence[str]) -> None:
    """Raise for devices that cannot be used; tell of those that nobody asked for."""
    for device in devices:
        _check_device(device)
    tell_unused(devices)


def tell_unused(devices: Sequence[str], engine: str = "auto") -> None:
    """Say, once in a process, that this machine has CUDA devices when the work is about to go to the CPU."""
    simulated = "A simulation knows no other place: take engine.kind = 'workers'. " if engine == _SIMULATION else ""
    text = "" if devices else unused(simulated + _REMEDY)
    if text and text not in _told:
        _told.add(text)
        log.warning("note: %s", text)


def flower_simulation(nodes: int | None, processes: int | None, devices: Sequence[str]) -> Engine:
    """Flower's simulation runtime."""
    if devices:
        raise InputError("engine.devices is for 'local' and 'workers'; a simulation runs on the CPU.")
    try:
        from fedquilt.engines.flower.simulation import FlowerSimulation
    except ImportError as error:
        raise InputError(
            'The simulation needs Flower. Install the extra "simulation": pip install "fedquilt[simulation]".'
        ) from error
    tell_unused(devices, _SIMULATION)
    return FlowerSimulation(nodes, processes)


def _check_device(name: str) -> None:
    try:
        kind = torch.device(name).type
        if kind == "cuda" and not torch.cuda.is_available():
            raise RuntimeError("there is no CUDA device on this machine")
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise InputError(
            f"engine.devices: {name!r} cannot be used: {reason}. Give devices like 'cuda:0', or none for the CPU."
        ) from error
