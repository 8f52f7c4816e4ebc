"""What a finished run says of itself; to read it, no heavy library is needed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CARRIED = ("carried_down", "carried_up", "scoring_down", "scoring_up")  # where messages travel to other machines
MEGABYTE = 1e6


def result_of(folder: Path) -> dict[str, Any] | None:
    """What a finished run wrote about itself, or None if it is not finished."""
    try:
        found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    except (OSError, ValueError):  # missing or damaged: the last snapshot can tell it again
        return None
    return found


def in_messages(found: Mapping[str, Any]) -> str:
    """What messages to other machines held, in words; nothing where none travelled."""
    if CARRIED[0] not in found:
        return ""
    down, up, scoring_down, scoring_up = (f"{found[name] / MEGABYTE:.2f} MB" for name in CARRIED)
    return f"messages held {up} up, {down} down in all, of which scoring took {scoring_up} up, {scoring_down} down"
