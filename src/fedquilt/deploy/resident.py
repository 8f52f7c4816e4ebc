"""A site's resident: ``python -m fedquilt.deploy.resident SITE.toml PARENT``. It ends with its parent."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from fedquilt.errors import FedquiltError


def main(file: Path, parent: int) -> None:
    """Load the data and answer for the site."""
    from fedquilt.deploy.apps import answering
    from fedquilt.deploy.told import SITE, telling, told
    from fedquilt.engines.flower.resident import stay

    say = partial(told, file.parent / SITE, partial(print, file=sys.stderr, flush=True))
    stay(file.parent, telling(answering(file), say), parent)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), int(sys.argv[2]))
    except FedquiltError as problem:
        sys.exit(f"fedquilt: {problem}")
