"""preparation.json: what a run did to the columns of its tables, kept so that new rows are prepared alike."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch

from fedquilt.core.columns import Column, PerColumn
from fedquilt.core.exchange import Method
from fedquilt.core.net import Net
from fedquilt.core.plain import Row
from fedquilt.core.seed import Seed
from fedquilt.core.table import Divided, Source
from fedquilt.data import Federation
from fedquilt.data.tabular import scope_of
from fedquilt.engines.local import Local
from fedquilt.errors import SnapshotError
from fedquilt.methods.survey import Survey
from fedquilt.rounds.engine import Engine
from fedquilt.rounds.rounds import Rounds
from fedquilt.storage.files import to_json, write_atomic

log = logging.getLogger("fedquilt")
_TOLD: list[str] = []
FILE = "preparation.json"
MOST = 5000  # clients whose exchange is made in a simulation, to tell its bytes


@dataclass(frozen=True)
class Prepared:
    """How rows are prepared, and the bytes of the exchange that agreed on it (0 where none can be told)."""

    prepare: PerColumn
    bytes_down: int = 0
    bytes_up: int = 0

    @property
    def facts(self) -> Row:
        """For the result of a run."""
        return {"told": self.prepare.describe(), "bytes_down": self.bytes_down, "bytes_up": self.bytes_up}

    def write(self, folder: Path) -> None:
        """Keep it in the folder of the run."""
        content = {
            "told": self.prepare.describe(),
            "scope": self.prepare.scope,
            "bytes_down": self.bytes_down,
            "bytes_up": self.bytes_up,
            "columns": [asdict(c) for c in self.prepare.columns],
        }
        write_atomic(folder / FILE, to_json(content, indent=1).encode())


def kept_in(folder: Path | None) -> Prepared | None:
    """What the folder of a run keeps; None if its rows are no table."""
    if folder is None or not (folder / FILE).is_file():
        return None
    try:
        found = json.loads((folder / FILE).read_text(encoding="utf-8"))
        columns = tuple(Column(**{**c, "levels": tuple(c["levels"])}) for c in found["columns"])
        return Prepared(PerColumn(columns, found["scope"]), found["bytes_down"], found["bytes_up"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SnapshotError(f"'{folder / FILE}' is damaged: {error}. Run it again with --fresh.") from error


def survey(source: Source, engine: Engine, blank: PerColumn, seed: Seed) -> Prepared:
    """Ask every client for the sums of its columns: one exchange, on any engine."""
    rounds = Rounds(Survey(blank.blank()), source, engine, seed)
    log = rounds.play()
    return Prepared(rounds.state.prepare, log.bytes_down, log.bytes_up)


def agreed(source: Divided, engine: Engine, standardise: Any, seed: Seed, folder: Path | None = None) -> Divided:
    """The sites of a real federation, whose tables are prepared alike: as this run began with, or as they agree now."""
    table: PerColumn | None = getattr(source, "table", None)
    scope = scope_of(standardise)
    if table is None or scope is None or getattr(source, "prepare", None) is not None:
        return source
    found = kept_in(folder)
    if found is None:
        found = survey(source, engine, replace(table, scope=scope), seed)
        if folder is not None:
            found.write(folder)
    sites: Any = source  # a dataclass, as its table says
    return cast(Divided, replace(sites, prepare=found.prepare))


def tell_whole_numbers(method: Method, source: Source) -> None:
    """Say, once in a process, that rows of whole numbers are given to a network as they are, unless it embeds them."""
    columns, net = getattr(source, "columns", None), getattr(method, "net", None)
    x = columns.get("x") if isinstance(columns, dict) else None
    if _TOLD or not isinstance(net, Net) or x is None or x.dim() != 2 or x.dtype not in (torch.int64, torch.int32):
        return
    if not net.embeds:
        _TOLD.append(str(x.dtype))
        log.warning(
            "note: rows of %d whole numbers (%s) are taken for token ids and given to the network as they are. If they "
            "are numbers, such as counts, give them as floats, x.astype('float32'): then they are a table, whose "
            "columns are standardised.",
            x.shape[1],
            str(x.dtype).removeprefix("torch."),
        )


def of_run(federation: Source, folder: Path | None) -> Prepared | None:
    """What is to be told of a run's tables; in a simulation the exchange is made here, for its bytes."""
    prepare: PerColumn | None = getattr(federation, "preparation", None)
    if prepare is None:
        return None
    known = kept_in(folder)
    if known is not None and known.prepare == prepare:
        return known
    whole = isinstance(federation, Federation) and isinstance(federation.prepare, PerColumn)
    if whole and len(federation.ids) <= MOST:
        spent = survey(federation, Local(), prepare, Seed(0))
        return replace(spent, prepare=prepare)
    return Prepared(prepare)
