"""Pictures are drawn without pyplot: the backend and the settings of a user's notebook or window stay as they were."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import fedquilt

SOURCES = Path(fedquilt.__file__).parent
DRAWS = """
import sys
from importlib import import_module
from pathlib import Path
import matplotlib
matplotlib.rcParams["lines.linewidth"] = 3.5  # a setting of the user's own
before = dict(matplotlib.rcParams)
for name in sys.argv[2:]:
    import_module(name)
from fedquilt.results.plots import curves, partition
row = {"round": 1, "test_accuracy": 0.5, "bytes_up": 10, "bytes_down": 10}
curves({"fedavg": [[row]]}, 0.3, Path(sys.argv[1]) / "curves.png")
partition([[3, 1], [0, 4]], ["a", "b"], "two", Path(sys.argv[1]) / "split.png")
print("matplotlib.pyplot" in sys.modules, matplotlib.get_backend(), dict(matplotlib.rcParams) == before)
"""


def test_plots_leave_backend_settings_and_pyplot_alone(tmp_path):
    drawing = [p for p in SOURCES.rglob("*.py") if "matplotlib" in p.read_text(encoding="utf-8")]
    names = [".".join(("fedquilt", *p.relative_to(SOURCES).with_suffix("").parts)) for p in drawing]
    assert {"fedquilt.audit.report", "fedquilt.results.plots"} <= set(names)
    found = subprocess.run(
        [sys.executable, "-c", DRAWS, str(tmp_path), *names],
        env={**os.environ, "MPLBACKEND": "svg"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert found.stdout.split() == ["False", "svg", "True"], found.stderr
    assert {p.suffix for p in tmp_path.glob("split.*")} == {".png", ".svg", ".eps", ".csv"}
