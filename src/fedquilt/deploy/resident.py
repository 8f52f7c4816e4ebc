"""A site's resident: ``python -m fedquilt.deploy.resident SITE.toml PARENT``. It ends with its parent."""

from __future__ import annotations

import sys
from pathlib import Path

from fedquilt.core.errors import FedquiltError


def main(file: Path, parent: int) -> None:
    """Load the data and answer for the site."""
    from fedquilt.deploy.apps import answering
    from fedquilt.engines.flower.resident import stay

    stay(file.parent, answering(file), parent)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), int(sys.argv[2]))
    except FedquiltError as problem:
        sys.exit(f"fedquilt: {problem}")
