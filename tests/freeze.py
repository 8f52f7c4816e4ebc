"""What must stay the same while code is moved: ``python tests/freeze.py write FILE``, later ``check FILE``.

It records, for every row of the conformance table, the digest after two rounds and the bytes of the server's state and
of the clients' states; the help of every command; and the schema of recipes. Digests depend on the kind of CPU and on
torch's version, so a file is compared on the machine that wrote it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from typer.main import get_command

from conformance.cases import CASES
from fedquilt.cli import app
from fedquilt.config.settings import Config
from fedquilt.metrics.classify import classify
from fedquilt.records.record import pack
from helpers.toy import last


def recorded() -> dict[str, str]:
    """Every fact under its name."""
    found: dict[str, str] = {}
    for number, case in enumerate(CASES):
        print(f"\r{number + 1} of {len(CASES)} rows: {case.name:40}", end="", file=sys.stderr, flush=True)
        snapshot = last(case.method, case.federation, score=classify)
        frame = pack(snapshot.state)
        found[f"digest of {case.name}"] = snapshot.digest()
        found[f"state of {case.name}"] = f"{len(frame)} bytes, {hashlib.sha256(frame).hexdigest()}"
        found[f"score of {case.name}"] = repr({k: v for k, v in snapshot.metrics.items() if k.startswith("test_")})
        found[f"bytes of {case.name}"] = f"{snapshot.metrics['bytes_up']} up, {snapshot.metrics['bytes_down']} down"
    print(file=sys.stderr)
    for name, command in get_command(app).commands.items():
        for option in command.params:
            found[f"option {name} {' '.join(option.opts)}"] = f"{option.type.name}, {option.default!r}, {option.help}"
    found["schema"] = json.dumps(Config.model_json_schema(), sort_keys=True)
    return found


def main() -> int:
    """Write a file, or compare with one and print each difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=["write", "check"])
    parser.add_argument("file", type=Path)
    given = parser.parse_args()
    found = recorded()
    if given.action == "write":
        given.file.write_text(json.dumps(found, indent=1))
        return 0
    before = json.loads(given.file.read_text())
    others = [name for name in sorted(before.keys() | found.keys()) if before.get(name) != found.get(name)]
    for name in others:
        print(f"{name}\n  before {str(before.get(name))[:300]}\n  now    {str(found.get(name))[:300]}")
    print(f"{len(others)} of {len(before)} facts differ")
    return 1 if others else 0


if __name__ == "__main__":
    sys.exit(main())
