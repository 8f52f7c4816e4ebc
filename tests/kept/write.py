"""Write run folders that stopped half-way, with the version of this tree: ``python tests/kept/write.py FOLDER``.

Run it with the version whose files are to be kept; ``tests/faults/test_kept.py`` goes on from them.
"""

from __future__ import annotations

import json
import shutil
import sys
import tarfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fedquilt.config.config import parse
from fedquilt.engines.local import Local
from fedquilt.registry import METHODS
from fedquilt.runs.build import run_of
from fedquilt.runs.outputs import environment
from helpers.guessing import fitting

SMALL = {
    "name": "kept",
    "rounds": 4,
    "data": {"clients": 3, "limit": 90},
    "model": {"kind": "mlp", "hidden": [12]},
    "engine": {"kind": "local"},
    "snapshot": {"seconds": 0},
}
HALF = 2


def main(place: Path) -> None:
    """One folder for each method, the digest that its run ends with, and where all this was computed."""
    facts = {"environment": environment(), "digests": {}}
    for kind in sorted(METHODS.keys() - {"fedbn"}):
        config = parse({**fitting(SMALL, kind), "method": {"kind": kind}})
        folder = place / kind
        whole = list(run_of(config, Local(), folder, fresh=True))
        facts["digests"][kind] = whole[-1].digest()
        shutil.rmtree(folder)
        for snapshot in run_of(config, Local(), folder, fresh=True):
            if snapshot.round == HALF:
                break
    (place / "facts.json").write_text(json.dumps(facts, indent=1))
    with tarfile.open(place.with_suffix(".tar.gz"), "w:gz") as pack:
        pack.add(place, arcname=".")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
