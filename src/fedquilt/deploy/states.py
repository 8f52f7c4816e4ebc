"""What a site still keeps of its runs, and how it is let go of. Nothing here is deleted without being asked for:
for personalised methods, a client's state is its model."""

from __future__ import annotations

import math
import re
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from fedquilt.engines.flower.keep import OnDisk, Version
from fedquilt.errors import InputError

_KEY = re.compile(r"[0-9a-z]{6,64}")
_DAY = 86400.0


@dataclass(frozen=True)
class KeptRun:
    """The states of one run: how many clients, the newest round, bytes, and how many days they have not changed."""

    run: str
    clients: int
    round: int
    bytes: int
    days: float


def kept(state: Path) -> list[KeptRun]:
    """The runs of a state folder, the newest first."""
    if not state.is_dir():
        raise InputError(f"There is no folder '{state}'. Give the one that 'fedquilt join --state' was given.")
    found = [_one(place) for place in state.iterdir() if place.is_dir() and _KEY.fullmatch(place.name)]
    return sorted((one for one in found if one is not None), key=lambda one: one.days)


def _one(place: Path) -> KeptRun | None:
    files = list(place.glob(f"*{OnDisk.suffix}"))
    if not files:
        return None
    versions = [Version.of(file.name.removesuffix(OnDisk.suffix)) for file in files]
    facts = [file.stat() for file in files]
    days = (time.time() - max(fact.st_mtime for fact in facts)) / _DAY
    newest = max(version.round for version in versions)
    size = sum(fact.st_size for fact in facts)
    return KeptRun(place.name, len({version.client for version in versions}), newest, size, round(max(days, 0.0), 3))


def forget(state: Path, runs: list[str], older: float | None) -> list[KeptRun]:
    """Delete the states of these runs, and of all that have not changed for so many days; what was deleted."""
    if older is not None and not 0 < older < 1e6:
        raise InputError(f"--older takes days, more than 0, got {older:g}.")
    there = kept(state)
    _check_known(state, runs, there)
    days = math.inf if older is None else older
    gone = [one for one in there if one.run in runs or one.days > days]
    for one in gone:
        shutil.rmtree(state / one.run)
    return gone


def _check_known(state: Path, runs: list[str], there: list[KeptRun]) -> None:
    known = [one.run for one in there]
    for run in runs:
        if run not in known:
            told = ", ".join(known[:5]) or "none"
            raise InputError(f"'{state}' keeps nothing of a run {run!r}. Runs there: {told}.")


def table(found: list[KeptRun]) -> str:
    """For people."""
    if not found:
        return "No states of any run."
    lines = [f"{'run':<34} {'clients':>8} {'round':>6} {'bytes':>14} {'unchanged for':>14}"]
    lines += [f"{k.run:<34} {k.clients:>8} {k.round:>6} {k.bytes:>14,} {k.days:>9.1f} days" for k in found]
    return "\n".join(lines)


def rows(found: list[KeptRun]) -> list[dict[str, object]]:
    """For programs."""
    return [asdict(one) for one in found]
