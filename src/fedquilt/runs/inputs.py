"""inputs.json: what goes into a run's models, kept so that they can be used without the run's own data."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fedquilt.core.columns import PerColumn
from fedquilt.core.describe import build, describe
from fedquilt.core.plain import JSON, Row
from fedquilt.core.table import ClientId, Columns, Divided, Prepare, in_order
from fedquilt.data.reading import Reading
from fedquilt.errors import InputError, SnapshotError
from fedquilt.runs.callbacks import Callback
from fedquilt.storage.files import to_json, write_atomic
from fedquilt.storage.slots import client_id

if TYPE_CHECKING:
    from fedquilt.runs.play import Run

FILE = "inputs.json"
BY_RECIPE = "by the recipe"
_PREPARERS = ("fedquilt.data.prepare", "fedquilt.data.transforms")  # all that such a file may have called


@dataclass(frozen=True)
class Inputs:
    """What goes into the models of a run.

    Args:
        shape: Of one row as a network takes it.
        dtype: Of such rows, without 'torch.'.
        classes: How many there are; None without labels.
        clients: Those that train or are scored.
        data: The fingerprint of the run's data.
        stored: Shape and dtype of a row before it is prepared; None where rows are at sites of their own.
        prepare: The description of what prepares it (:mod:`fedquilt.core.describe`), ``BY_RECIPE`` where that cannot be
            kept; None where nothing prepares it, and for the columns of tables, which preparation.json tells.
        reading: What the numbers stand for.
        elsewhere: Whether clients' states are at their own sites.
        task_numbers: What the task took from training targets.
    """

    shape: tuple[int, ...]
    dtype: str
    classes: int | None
    clients: tuple[ClientId, ...]
    data: str
    stored: tuple[tuple[int, ...], str] | None = None
    prepare: JSON = None
    reading: Reading | None = None
    elsewhere: bool = False
    task_numbers: Row | None = None

    # As much of a federation as it takes to build a method

    @property
    def ids(self) -> tuple[ClientId, ...]:
        """The clients."""
        return self.clients

    def fingerprint(self) -> str:
        """What data these were."""
        return self.data

    @property
    def preparer(self) -> Prepare | None:
        """What prepares a stored row, as far as this tells it."""
        made: Prepare | None = None if self.prepare in (None, BY_RECIPE) else build(self.prepare, _PREPARERS)
        return made

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each class; () where there are none."""
        return self.reading.names if self.reading else ()

    def told(self) -> str:
        """How rows are made, in words."""
        reading = self.reading or Reading()
        if reading.length:
            whose = reading.tokeniser or f"the run's vocabulary of {len(reading.words)} words"
            return f"the first {reading.length} ids of {whose}"
        if self.prepare == BY_RECIPE:
            return "prepared as the recipe says"
        return "as they are" if self.prepare is None else repr(self.preparer)

    def write(self, folder: Path) -> None:
        """Keep it in the folder of the run."""
        write_atomic(folder / FILE, to_json(asdict(self)).encode(), folder)


def inputs_of(federation: Divided, data: str, elsewhere: bool = False) -> Inputs:
    """What goes into models that learn from these data, whose fingerprint is ``data``."""
    known: Any = federation
    first: Any = (getattr(known, "tasks", None) or (known,))[0]
    shape, dtype = _row(known)
    return Inputs(
        shape,
        dtype,
        federation.classes,
        in_order(list({*federation.ids, *federation.evaluated})),
        data,
        _stored(first),
        _described(first),
        getattr(first, "reading", None),
        elsewhere,
        None if getattr(first, "task", None) is None else first.task.numbers(),
    )


def _row(federation: Any) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of a prepared row; a federation whose data are elsewhere knows them by heart."""
    if getattr(federation, "shape", None) is not None:
        return federation.shape, next(iter(federation.sites.values())).dtype.removeprefix("torch.")
    table = federation.site(federation.ids[0], 0).train
    x: Tensor = table.rows(table.all_rows()[:1]).x
    return tuple(x.shape[1:]), _plain(x)


def _stored(federation: Any) -> tuple[tuple[int, ...], str] | None:
    columns: Columns | None = getattr(federation, "columns", None)
    return None if columns is None else (tuple(columns["x"].shape[1:]), _plain(columns["x"]))


def _plain(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def _described(federation: Any) -> JSON:
    """What prepares rows, if it is this library's own and of plain values."""
    prepare = getattr(federation, "prepare", None)
    if prepare is None or isinstance(prepare, PerColumn):
        return None
    try:
        told = json.loads(json.dumps(describe(prepare, "prepare")))
        build(told, _PREPARERS)
    except (InputError, TypeError):
        return BY_RECIPE
    return told


def inputs_in(folder: Path, again: Callable[[], Divided]) -> Inputs:
    """What the folder of a run keeps; of a folder of an earlier version, what the data tell ``again``."""
    if not (folder / FILE).is_file():
        federation = again()
        return inputs_of(federation, federation.fingerprint())
    try:
        told: Row = json.loads((folder / FILE).read_text())
        stored, reading = told["stored"], told["reading"]
        return replace(
            Inputs(**told),
            shape=tuple(told["shape"]),
            clients=tuple(map(client_id, told["clients"])),
            stored=None if stored is None else (tuple(stored[0]), stored[1]),
            reading=None if reading is None else Reading.of(reading),
        )
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise SnapshotError(f"'{folder / FILE}' is damaged: {error}. Run it again with --fresh.") from error


class KeptInputs(Callback):
    """Writes inputs.json when a run begins."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_run_begin(self, run: Run) -> None:
        """Write it."""
        inputs_of(run.federation, run.data, run.engine.keeps_states).write(self.folder)
