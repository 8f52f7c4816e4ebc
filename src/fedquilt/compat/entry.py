"""How the commands of this room end."""

from __future__ import annotations

import sys
from collections.abc import Callable

from fedquilt.errors import FedquiltError


def told(run: Callable[[], object]) -> None:
    """Run it; errors become one message and an exit code, as of the command ``fedquilt``."""
    try:
        run()
    except FedquiltError as error:
        print(f"fedquilt: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
