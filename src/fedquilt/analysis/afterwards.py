"""What one asks of the folder of a run after it: what it learned, and what that is worth to newcomers."""

from __future__ import annotations

import json
from pathlib import Path

from fedquilt.analysis.newcomers import EPOCHS, LearnedRun, every_mode
from fedquilt.config.config import Config, load
from fedquilt.config.data import federations_of
from fedquilt.core.plain import Row
from fedquilt.core.seed import Seed
from fedquilt.core.table import Divided, Source
from fedquilt.errors import InputError, SnapshotError, did_you_mean
from fedquilt.runs.build import method_of
from fedquilt.storage.files import to_json, write_atomic
from fedquilt.storage.folder import RunFolder

FILE = "metrics/newcomers.json"
_LISTED = 10  # runs that an error lists


def learned_in(folder: Path, federation: Source | None = None) -> tuple[LearnedRun, Source]:
    """What the run learned so far, and the newcomers: those given, or those its recipe holds out."""
    config = config_in(folder)
    part, new = federations_of(config)
    found = new if federation is None else federation
    if found is None:
        raise InputError(f"The recipe of '{folder}' holds out no clients. Set data.newcomers, or pass a federation.")
    return learned_from(config, folder, part), found


def learned_from(config: Config, folder: Path, part: Divided) -> LearnedRun:
    """The state in the newest snapshot of a run on these data."""
    found = RunFolder(folder).newest(config.identity(), part.fingerprint())
    if found is None:
        raise SnapshotError(f"'{folder}' has no valid snapshot. Run or resume it: fedquilt resume {folder}")
    return LearnedRun(method_of(config, part), found.state, found.done, Seed(config.seed))


def config_in(folder: Path) -> Config:
    """The settings of a run."""
    if not (folder / "config.toml").is_file():
        if folder.exists():
            runs = sorted(path.parent.name for path in folder.glob("*/config.toml"))
            more = f" and {len(runs) - _LISTED} more" if len(runs) > _LISTED else ""
            inside = (
                f" The runs inside are {', '.join(runs[:_LISTED])}{more}; take one, '{folder / runs[0]}'."
                if runs
                else ""
            )
            raise InputError(f"'{folder}' is not the folder of a run: it has no config.toml.{inside}")
        meant = did_you_mean(str(folder), [str(path.parent) for path in folder.parent.glob("*/config.toml")])
        raise InputError(f"There is no folder '{folder}'{meant or '.'} 'fedquilt watch runs --once' lists runs.")
    return load(folder / "config.toml")


def newcomers_of(config: Config, folder: Path, part: Divided, new: Divided, epochs: int = EPOCHS) -> Row:
    """The newcomers' scores in all modes, kept in the folder; computed only if they are not there yet."""
    learned = learned_from(config, folder, part)
    key = {"rounds": learned.done, "epochs": epochs, "data": new.fingerprint()}
    kept = _kept(folder / FILE)
    if kept.get("of") != key:
        scores = {"of": key, **every_mode(learned, new, epochs)}
        write_atomic(folder / FILE, to_json(scores, indent=1).encode())
        kept = _kept(folder / FILE)
    return kept


def _kept(path: Path) -> Row:
    try:
        found: Row = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found
