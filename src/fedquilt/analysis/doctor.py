"""Is this machine fit? Each check says what it found, and what to do when it fails."""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def checks() -> list[dict[str, str]]:
    """All checks, in order."""
    probes: list[tuple[str, Callable[[], str]]] = [
        ("python", _python),
        ("packages", _packages),
        ("cores and memory", _machine),
        ("accelerators", _accelerators),
        ("energy", _energy),
        ("disk", _disk),
        ("data", _data),
        ("local engine", lambda: _engine("local")),
        ("workers engine", _workers),
        ("flower", _flower),
    ]
    rows = []
    for name, probe in probes:
        try:
            rows.append({"check": name, "state": "ok", "found": probe()})
        except Exception as error:
            rows.append({"check": name, "state": "fails", "found": f"{type(error).__name__}: {error}"})
    return rows


def _python() -> str:
    return f"{platform.python_version()} on {platform.system()} {platform.machine()}"


def _packages() -> str:
    found = []
    for name in ("fedquilt", "torch", "numpy", "safetensors", "pydantic", "scikit-learn", "mlxtend", "flwr"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"{name} -")
    return ", ".join(found)


def _machine() -> str:
    from fedquilt.core.memory import machine_bytes

    found = machine_bytes()
    return f"{os.cpu_count()} cores, " + (
        f"{found / 2**30:.1f} GiB" if found else "this system does not tell its memory"
    )


def _accelerators() -> str:
    import torch

    count = torch.cuda.device_count()
    return ", ".join(torch.cuda.get_device_name(i) for i in range(count)) if count else "none; work runs on the CPU"


def _energy() -> str:
    """Whether joules can be counted; where they cannot, nothing is guessed."""
    from fedquilt.metrics.energy import NOT_HERE, Meter

    source = Meter.here().source
    unread = f"{NOT_HERE}: neither RAPL below /sys/class/powercap nor NVML (extra energy) can be read"
    return unread if source == "none" else f"counted by {source}"


def _disk() -> str:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        began = time.perf_counter()
        with (Path(folder) / "probe").open("wb") as file:
            file.write(bytes(1 << 20))
            os.fsync(file.fileno())
        return f"this folder is writable, 1 MB to disk in {(time.perf_counter() - began) * 1e3:.1f} ms"


def _data() -> str:
    from fedquilt.data import available

    here = [row["name"] for row in available() if row["present"]]
    folder = os.environ.get("FEDQUILT_DATA")
    return f"{', '.join(here)}; FEDQUILT_DATA {'is ' + folder if folder else 'is not set'}"


def _flower() -> str:
    """Whether real federations and simulations can be had here; not having them is no failure."""
    found = {}
    for name in ("flwr", "ray"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    if not found["flwr"]:
        return 'not installed; real federations need it: pip install "fedquilt[flower]"'
    simulation = (
        f"ray {found['ray']}" if found["ray"] else 'no ray; simulations need it: pip install "fedquilt[simulation]"'
    )
    return f"flwr {found['flwr']}, {simulation}"


def _workers() -> str:
    from fedquilt.engines.pipe import POSIX, UNIX_ONLY

    return _engine("workers") if POSIX else UNIX_ONLY


def _engine(name: str) -> str:
    from fedquilt.core.net import Net
    from fedquilt.data import Dirichlet, Federation
    from fedquilt.methods.fedavg import FedAvg
    from fedquilt.models.registry import make
    from fedquilt.runs.runner import run

    federation = Federation.from_source("digits", Dirichlet(0.5), 4)
    method = FedAvg(objective=Net(make("mlp", (1, 8, 8), 10)))
    began, digest = time.perf_counter(), ""
    for snapshot in run(method, federation, rounds=2, engine=name, processes=min(2, os.cpu_count() or 1)):
        digest = snapshot.digest()[:12]
    return f"two rounds of FedAvg on digits in {time.perf_counter() - began:.1f} s, state {digest}"
