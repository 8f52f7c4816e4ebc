"""The command ``fedquilt`` in this process, and small recipes for it."""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from fedquilt import cli

SMALL = """
name = "small"
rounds = 3

[data]
clients = 4
limit = 400
partition = { kind = "dirichlet", alpha = 1.0, minimum = 20 }

[model]
kind = "logistic"

[train]
batch_size = 20
optimizer = { kind = "sgd", lr = 0.1 }

[engine]
kind = "local"

[snapshot]
seconds = 0
"""


@dataclass(frozen=True)
class Said:
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as JSON in its strict form: NaN and Infinity are not numbers there."""

        def refuse(word: str) -> Any:
            raise AssertionError(f"{word} is not JSON")

        return json.loads(self.out, parse_constant=refuse)


def fedquilt(*arguments: object) -> Said:
    """Run the command with these arguments."""
    out, err = io.StringIO(), io.StringIO()
    words = ["fedquilt", *(str(a) for a in arguments)]
    code: Any = 0
    with patch.object(sys, "argv", words), redirect_stdout(out), redirect_stderr(err):
        try:
            cli.main()
        except SystemExit as end:
            code = end.code
    return Said(0 if code is None else code, out.getvalue(), err.getvalue())


def small(folder: Path, text: str = SMALL) -> Path:
    """A recipe that runs in a moment, whose runs go below ``folder``."""
    recipe = folder / "small.toml"
    recipe.write_text(f'{text}\n[output]\nfolder = "{folder}/runs"\n')
    return recipe


def lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a log."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def untimed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows without what a clock said."""
    return [{k: v for k, v in row.items() if "seconds" not in k and k != "peak_bytes"} for row in rows]
