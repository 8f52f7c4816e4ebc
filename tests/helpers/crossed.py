"""Which files of the library a command crosses: ``python tests/helpers/crossed.py run RECIPE ...`` prints them as JSON.

Only calls count, not what happens while modules are imported. Files are listed under the part of the walk in which they
are first called: before the first round ("begin"), in a round but not at a client ("round"), at a client ("client"),
after it in the loop ("record"), and when the loop is over ("end").
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import fedquilt
from fedquilt.cli import main

HOME = Path(fedquilt.__file__).parents[1]
PARTS = {"Rounds.play": ("round", "record"), "ClientSide.update": ("client", "round"), "Run.__iter__": (None, "end")}
FUNCTION = 1  # the flag CO_OPTIMIZED: neither a module nor the body of a class


class Crossed:
    """A profile function that notes the files whose functions are called."""

    def __init__(self) -> None:
        self.part = "begin"
        self.files: dict[str, dict[str, None]] = {}
        self.importing = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """See :func:`sys.setprofile`."""
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(str(HOME / "fedquilt")):
            return
        if code.co_name == "<module>":
            self.importing += 1 if event == "call" else -1
        elif not self.importing and code.co_flags & FUNCTION:
            self.function(code.co_qualname, str(Path(code.co_filename).relative_to(HOME.parent)), event == "call")

    def function(self, name: str, file: str, called: bool) -> None:
        """A function of the library is called, or returns (a generator also when it yields)."""
        inside, after = PARTS.get(name, (None, None))
        self.part = (inside if called else after) or self.part
        if called:
            self.files.setdefault(self.part, {})[file] = None


if __name__ == "__main__":
    crossed = Crossed()
    print_to, sys.stdout = sys.stdout, sys.stderr
    sys.argv[0] = "fedquilt"
    sys.setprofile(crossed)
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
    finally:
        sys.setprofile(None)
    print(json.dumps({part: list(files) for part, files in crossed.files.items()}), file=print_to)
