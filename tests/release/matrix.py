"""The quick tests on every promised Python and at both ends of the torch range: ``make matrix``.

Each row is a fresh environment in a temporary folder, removed afterwards; a build of torch with CUDA takes about 5 GB
there while its row is run. Name rows to run others: ``python tests/release/matrix.py 3.12=2.13.0``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FOLDERS = ("tests/unit/core", "tests/unit/kernels", "tests/unit/methods", "tests/oracles")
CONFORMANCE = ROOT / "tests/conformance/test_conformance.py"
METHODS = (
    *("fedavg", "fedavg-batchnorm", "fedprox", "fedadam", "scaffold"),
    *("ditto", "fedrep", "fedetf", "ifca", "localize-stitch"),
)
SHOWN = "import platform, torch, numpy; print(platform.python_version(), torch.__version__, numpy.__version__)"


@dataclass(frozen=True)
class Result:
    """What one row came to: the versions that were installed, and the last line of pytest."""

    versions: str
    said: str
    seconds: float
    passed: bool


def default_rows() -> list[str]:
    """The lowest torch on the lowest Python, and the highest torch on every Python of the classifiers."""
    (bounds,) = (text.removeprefix("torch") for text in PROJECT["dependencies"] if text.startswith("torch"))
    lowest = re.findall(r">=([0-9.]+)", bounds)[0]
    pythons = [p for text in PROJECT["classifiers"] for p in re.findall(r":: Python :: (3\.\d+)", text)]
    return [f"{pythons[0]}=={lowest}.*", *(f"{python}{bounds}" for python in pythons)]


def interpreter(version: str) -> str:
    """The path of a Python of this version, on the search path or among those of pyenv."""
    found = shutil.which(f"python{version}")
    if found and subprocess.run([found, "-c", ""], capture_output=True).returncode == 0:
        return found
    own = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    if not own:
        raise SystemExit(f"No Python {version} here. Install it, or name other rows.")
    return str(own[-1])


def played(row: str, folder: Path) -> Result:
    """Make the environment of ``PYTHON BOUNDS`` and run the tests in it."""
    version, bounds = re.fullmatch(r"(3\.\d+)(.*)", row).groups()  # type: ignore[union-attr]
    subprocess.run([interpreter(version), "-m", "venv", str(folder)], check=True)
    python = str(folder / "bin/python")
    pip = [python, "-m", "pip", "install", "--quiet", "--no-cache-dir"]
    subprocess.run([*pip, f"torch{exact(bounds)}"], check=True)
    subprocess.run([*pip, "--editable", f"{ROOT}[dev]"], check=True)
    versions = subprocess.run([python, "-c", SHOWN], check=True, capture_output=True, text=True).stdout.strip()
    began = time.monotonic()
    ids = " or ".join(f"[{name}]" for name in METHODS)
    outcomes = [tests(python, list(FOLDERS)), tests(python, [str(CONFORMANCE), "-k", ids])]
    seconds = time.monotonic() - began
    return Result(versions, "; ".join(said for said, _ in outcomes), seconds, all(passed for _, passed in outcomes))


def exact(bounds: str) -> str:
    """``=2.13.0``, as one types it, as pip wants it."""
    return f"={bounds}" if re.match(r"=[^=]", bounds) else bounds


def tests(python: str, arguments: list[str]) -> tuple[str, bool]:
    """Run pytest and return the last line it says."""
    command = [python, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
    return (done.stdout.strip().splitlines() or [done.stderr])[-1], done.returncode == 0


def main() -> int:
    """Print one line of a Markdown table for each row; 1 if any failed."""
    print("| Python, torch, numpy | unit and oracles; conformance | seconds |\n|---|---|---|")
    failed = 0
    for row in sys.argv[1:] or default_rows():
        with tempfile.TemporaryDirectory(prefix="fedquilt-matrix-") as folder:
            result = played(row, Path(folder))
        failed += not result.passed
        print(f"| {result.versions} | {result.said} | {result.seconds:.0f} |", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
