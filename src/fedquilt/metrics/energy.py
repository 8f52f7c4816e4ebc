"""Joules, where the machine counts them: processors through RAPL's files, NVIDIA devices through NVML.

Counters are of the whole machine: what else runs on it is counted too. Only package domains are added up, since core
and uncore counters are parts of them. Without a counter that can be read everything here does nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

POWERCAP = Path("/sys/class/powercap")
NOT_HERE = "not measurable here"
SWITCHED_OFF = "switched off"


def joules(before: int, after: int, span: int) -> float:
    """Joules between two readings in microjoules of a counter that starts again at 0 after ``span``."""
    return (after - before if after >= before else after - before + span) / 1e6


def per_change(spent: float, change: float) -> float | None:
    """Joules per unit of model change, J / ||w_after - w_before||; None where the model did not change."""
    return spent / change if change > 0 else None


@dataclass(frozen=True)
class Rapl:
    """One package domain: its counter file and where it starts again."""

    file: Path
    span: int

    def read(self) -> int:
        """Microjoules."""
        return int(self.file.read_text(encoding="utf-8"))

    def between(self, before: int, after: int) -> float:
        """Joules."""
        return joules(before, after, self.span)


@dataclass(frozen=True)
class Nvml:
    """One NVIDIA device."""

    library: Any
    handle: Any

    def read(self) -> int:
        """Millijoules since the driver was loaded."""
        return int(self.library.nvmlDeviceGetTotalEnergyConsumption(self.handle))

    def between(self, before: int, after: int) -> float:
        """Joules."""
        return max(after - before, 0) / 1e3  # a driver that was loaded anew starts at 0


Counter = Rapl | Nvml


def packages(root: Path | None = None) -> list[Rapl]:
    """The processors' counters that can be read. Domains of the second interface, intel-rapl-mmio, count the same
    joules again and are left out, as are parts of packages (intel-rapl:0:1)."""
    found = []
    for folder in sorted((POWERCAP if root is None else root).glob("intel-rapl:*")):
        try:
            if folder.name.count(":") == 1 and (folder / "name").read_text(encoding="utf-8").startswith("package"):
                domain = Rapl(folder / "energy_uj", int((folder / "max_energy_range_uj").read_text(encoding="utf-8")))
                domain.read()
                found.append(domain)
        except (OSError, ValueError):  # since 2020 many systems let only root read them
            continue
    return found


def devices() -> list[Nvml]:
    """The NVIDIA devices that count their energy; none without the package nvidia-ml-py (extra ``energy``)."""
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
        made = [Nvml(pynvml, pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return []
    return [device for device in made if _counts(device, pynvml.NVMLError)]


def _counts(device: Nvml, trouble: type[Exception]) -> bool:
    try:
        device.read()
    except trouble:  # only devices since Volta count energy
        return False
    return True


class Meter:
    """Adds up joules by phase.

    ``source`` says what is read: 'rapl', 'nvml', 'rapl+nvml' or 'none'; ``spent`` holds the joules so far.

    Args:
        counters: What is read; none makes a meter that does nothing.
        why: What to say of a run where nothing is read.

    Example:
        >>> meter = Meter.here()
        >>> with meter.phase("train"):
        ...     pass
        >>> set(meter.spent) <= {"train"}
        True
    """

    def __init__(self, counters: Sequence[Counter] = (), why: str = NOT_HERE) -> None:
        self.counters, self.why = tuple(counters), why
        kinds = {"rapl": Rapl, "nvml": Nvml}
        found = [name for name, kind in kinds.items() if any(isinstance(c, kind) for c in counters)]
        self.source = "+".join(found) or "none"
        self.spent: dict[str, float] = {}

    @classmethod
    def here(cls) -> Meter:
        """With the counters of this machine."""
        return cls([*packages(), *devices()])

    def read(self) -> tuple[int, ...] | None:
        """All counters now; None where there is none, or one can no longer be read."""
        if not self.counters:
            return None
        try:
            return tuple(counter.read() for counter in self.counters)
        except Exception:
            self.counters = ()  # a counter that went away must not stop a run
            return None

    def since(self, before: tuple[int, ...] | None) -> float | None:
        """Joules since a reading."""
        after = self.read() if before is not None else None
        if before is None or after is None:
            return None
        return sum(c.between(a, b) for c, a, b in zip(self.counters, before, after, strict=True))

    def add(self, phase: str, spent: float | None) -> None:
        """Count joules to a phase."""
        if spent is not None:
            self.spent[phase] = self.spent.get(phase, 0.0) + spent

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what is spent inside to a phase."""
        before = self.read()
        try:
            yield
        finally:
            self.add(name, self.since(before))


def per_run(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What several runs of a method spent, as the mean of one; what the first of them without joules says, if any."""
    silent = next((f for f in found if not f.get("joules")), None)
    if silent is not None:
        return dict(silent)
    phases = dict.fromkeys(phase for f in found for phase in f["joules"])
    joules = {phase: sum(f["joules"].get(phase, 0.0) for f in found) / len(found) for phase in phases}
    notes = dict.fromkeys(["mean of a run"] * (len(found) > 1) + [f["note"] for f in found if f.get("note")])
    return {"source": found[0]["source"], "joules": joules, "note": "; ".join(notes)}


def in_words(found: Mapping[str, Any]) -> str:
    """What a run spent, as its result.json has it, in a line."""
    spent = found.get("joules")
    if not spent:
        return f"energy: {found.get('note') or 'unknown'}"
    parts = ", ".join(f"{phase} {_figure(joules)} J" for phase, joules in spent.items())
    ratio = found.get("joules_per_model_change")
    change = "" if ratio is None else f"; {_figure(ratio)} J per unit of model change"
    note = f" ({found['note']})" if found.get("note") else ""
    return f"energy: {_figure(sum(spent.values()))} J by {found['source']}: {parts}{change}{note}"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
