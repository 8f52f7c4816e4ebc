"""Scripts beside the library, such as those that write pages, as modules."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

HOME = Path(__file__).resolve().parents[2]


def loaded(path: str) -> Any:
    """The script at this path below the repository's folder."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, HOME / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
