"""A virtual environment for each peer, made once: torch first, then the peer, so that all have the same torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TORCH = "torch>=2.6,<2.14"
PACKAGES = {"flower": ["flwr[simulation]>=1.41,<2"], "pfl": ["pfl>=0.4"]}


def python_of(name: str, folder: Path) -> str:
    """The interpreter of a peer's environment."""
    place = folder / name
    program, stamp = place / "bin" / "python", place / "made"
    if not stamp.exists():
        print(f"making {place}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        for wanted in ([TORCH, "numpy"], PACKAGES[name]):
            subprocess.run([str(program), "-m", "pip", "install", "--quiet", *wanted], check=True)
        stamp.write_text("\n".join(PACKAGES[name]))
    return str(program)
