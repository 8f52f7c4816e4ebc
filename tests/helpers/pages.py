"""What the page of a report is made of."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any


def content(path: Path) -> dict[str, Any]:
    """The data inside a report."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), re.S)
    assert found is not None
    return json.loads(found[1])  # type: ignore[no-any-return]


def panel(path: Path, key: str) -> dict[str, Any]:
    """A panel of a report."""
    return next(p for p in content(path)["panels"] if p["key"] == key)
