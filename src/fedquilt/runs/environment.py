"""What numbers were made with: versions, the kind of CPU, and which kernels computed them.

A run is a pure function of settings, data and seed on one kind of CPU and one version of torch. torch chooses its
kernels by what the CPU can do (``cpu_capability``), and their sums differ in the last digit, which training magnifies.
The number of threads changes nothing: a client's work has one thread on every engine.
"""

from __future__ import annotations

import platform
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from fedquilt.core.exchange import Method
from fedquilt.core.net import Net
from fedquilt.core.plain import Row

KIND = ("torch", "machine", "cpu", "cpu_capability", "mkldnn")  # where these are equal, so are the numbers


def environment(method: Method | None = None) -> Row:
    """Versions, machine and kernels; with a method also which of this library's own kernels its network uses."""
    found: Row = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
        "system": platform.system(),
        "cpu": cpu_name(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "mkldnn": bool(torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled),
        "mkl": bool(torch.backends.mkl.is_available()),
        "threads": torch.get_num_threads(),
    }
    net = getattr(method, "net", None)
    return found | (kernels(net) if isinstance(net, Net) else {})


def kernels(net: Net) -> Row:
    """The layers that this library's own kernels compute, and whether steps of training are captured where they can
    be."""
    return {
        "fast_kernels": dict(net.fast_layers),
        "capture": net.captured_steps.wanted and net.captured_steps.capture is not False,
    }


def same_kind(one: Row, other: Row) -> bool:
    """Whether equal settings, data and seeds give equal numbers in both."""
    return all(one.get(name) == other.get(name) for name in KIND)


@lru_cache(maxsize=1)
def cpu_name() -> str:
    """The CPU as it calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.lower().startswith(("model name", "cpu model")))
    return next(named, "") or platform.processor() or "unknown"
