"""Engines by name."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from fedquilt.core.device import unused
from fedquilt.core.errors import InputError
from fedquilt.engines.auto import Auto
from fedquilt.engines.engine import Engine
from fedquilt.engines.lanes import Lanes
from fedquilt.engines.local import Local
from fedquilt.engines.workers import Workers

log = logging.getLogger("fedquilt")
_SIMULATION = "flower-simulation"
_REMEDY = (
    "To use the first, say engine.devices=['cuda:0'] in a recipe or on the command line, devices=['cuda:0'] in Python."
)
_told: set[str] = set()  # what this process, or the one it was forked from, has said


def make_engine(
    engine: str | Engine, processes: int | None = None, devices: Sequence[str] = (), nodes: int | None = None,
    width: int | None = None, exact: bool = True,
) -> Engine:  # fmt: skip
    """An engine by name: 'auto', 'local', 'workers', 'lanes' or 'flower-simulation'; 'auto' that need not be ``exact``
    may choose lanes."""
    if not isinstance(engine, str):
        return engine
    if engine == _SIMULATION:
        return _simulation(nodes, processes, devices)
    if nodes is not None:
        raise InputError(f"engine.nodes is for kind = 'flower-simulation', not {engine!r}. Leave it out.")
    if width is not None and engine != "lanes":
        raise InputError(f"engine.width is for kind = 'lanes', not {engine!r}. Leave it out.")
    if not exact and engine != "auto":
        raise InputError(f"engine.exact = false is for kind = 'auto', not {engine!r}. Leave it out.")
    for device in devices:
        _check_device(device)
    tell_unused(devices)
    if engine == "lanes":
        alone = (processes or 1) == 1 and len(devices) < 2
        return Lanes(width, devices[0] if devices else None) if alone else Workers(processes, devices, width)
    if engine == "auto" and not devices:
        return Auto(processes, exact)
    if engine == "local":
        return Local(devices[0] if devices else None)
    if engine in ("workers", "auto"):
        return Workers(processes, devices, 1 if exact else None)
    raise InputError(f"Unknown engine {engine!r}. Use 'auto', 'local', 'workers', 'lanes' or 'flower-simulation'.")


def tell_unused(devices: Sequence[str], engine: str = "auto") -> None:
    """Say, once in a process, that this machine has CUDA devices when the work is about to go to the CPU."""
    simulated = "A simulation knows no other place: take engine.kind = 'workers'. " if engine == _SIMULATION else ""
    text = "" if devices else unused(simulated + _REMEDY)
    if text and text not in _told:
        _told.add(text)
        log.warning("note: %s", text)


def _simulation(nodes: int | None, processes: int | None, devices: Sequence[str]) -> Engine:
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
