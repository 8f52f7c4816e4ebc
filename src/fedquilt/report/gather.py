"""What a report is made of: the runs of a folder, their table, and the federation they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path

from fedquilt.config.shown import with_options
from fedquilt.core.plain import Row
from fedquilt.core.table import ClientId
from fedquilt.metrics.table import main
from fedquilt.registry import shown_as
from fedquilt.results.ranking import FILE as SWEEP
from fedquilt.results.tables import by_label, mean_of, summary_of
from fedquilt.results.views import CELLS, RunView, read_json, views_in
from fedquilt.storage.federation_file import FILE
from fedquilt.storage.journal import MESSAGES
from fedquilt.storage.logs import row_in
from fedquilt.storage.slots import client_id

TARGET = 0.8


@dataclass(frozen=True)
class Gathered:
    """The runs in a folder. Panels read what they need of them."""

    folder: Path
    views: Sequence[RunView]

    @classmethod
    def of(cls, folder: Path) -> Gathered:
        """From a folder of a run or of a comparison."""
        return cls(folder, tuple(views_in(folder)))

    @cached_property
    def plan(self) -> Row:
        """What a comparison set out to do; empty for a run."""
        return read_json(self.folder / CELLS)

    @cached_property
    def title(self) -> str:
        """The name of the recipe."""
        named = self.plan.get("name") or next((v.config["name"] for v in self.views if "name" in v.config), None)
        return str(named or self.folder.resolve().name)

    @cached_property
    def about(self) -> list[tuple[str, str]]:
        """Which data, how they are divided, which model, and the day of the last message, as far as all runs agree."""
        told = {"data": _data_of, "partition": _partition_of, "model": _model_of}
        found = {name: {of(view.config) for view in self.views if view.config} for name, of in told.items()}
        times = [time for view in self.views if (time := _last_word(view.folder / MESSAGES)) is not None]
        day = [("date", datetime.fromtimestamp(max(times)).date().isoformat())] if times else []
        return [(name, one) for name, ones in found.items() if len(ones) == 1 for one in ones if one] + day

    @cached_property
    def methods(self) -> dict[str, list[RunView]]:
        """All runs by method, under the name that people read."""
        return _by_name(self.views)

    @cached_property
    def begun(self) -> dict[str, list[RunView]]:
        """Runs that have played a round, by method; those may have curves."""
        return _by_name([view for view in self.views if view.rounds])

    @cached_property
    def places(self) -> dict[str, int]:
        """The place of each method, which gives it its colour."""
        return {label: i for i, label in enumerate(self.methods)}

    def named(self, view: RunView) -> Row:
        """A run's method with its place, and its seed: where a line of a table begins."""
        return {"method": view.display, "place": self.places[view.display], "seed": view.seed}

    @cached_property
    def federation(self) -> Row:
        """Labels by client; empty if it was not written."""
        return read_json(self.folder / FILE)

    @cached_property
    def constant(self) -> dict[int, dict[ClientId, float]]:
        """Each client's accuracy with its commonest label, by seed."""
        return {s: {client_id(c): v for c, v in told.get("majority", [])} for s, told in self._by_seed.items()}

    @cached_property
    def _by_seed(self) -> dict[int, Row]:
        """The federation of each seed: that of all runs, or that of a run with this seed."""
        return {view.seed: self.federation or read_json(view.folder / FILE) for view in self.views}

    @cached_property
    def groups(self) -> dict[ClientId, int]:
        """The planted group of each client, if there are such."""
        return {client_id(c): g for c, g in self.federation.get("groups") or []}

    @cached_property
    def target(self) -> float:
        """The accuracy that costs are counted to."""
        return float(self.plan.get("target", TARGET))

    @cached_property
    def complete(self) -> list[RunView]:
        """The runs of methods all of whose seeds are finished and scored: only those can be compared."""
        names = (f"test_{main().id}", f"common_test_{main().id}")
        done = [g for g in self.methods.values() if all(any(n in v.result.get("best", {}) for n in names) for v in g)]
        return [view for group in done for view in group]

    @cached_property
    def summary(self) -> Row | None:
        """The table of finished methods; None if there is none."""
        common = mean_of([told.get("majority_common") for told in self._by_seed.values()])
        return summary_of(self.complete, self.constant, self.target, common) if self.complete else None

    @cached_property
    def failed(self) -> list[Row]:
        """Runs that a comparison gave up, and why."""
        found: list[Row] = read_json(self.folder / "summary.json").get("failed", [])
        return found

    @cached_property
    def sweep(self) -> Row:
        """What a sweep tried; empty for runs and comparisons."""
        return read_json(self.folder / SWEEP)

    @property
    def comparison(self) -> bool:
        """Whether there is more than one run."""
        return len(self.views) > 1


def _by_name(views: Sequence[RunView]) -> dict[str, list[RunView]]:
    return {group[0].display: group for group in by_label(views).values()}


def _last_word(path: Path) -> float | None:
    """When a run said the last thing that can be read."""
    try:
        said = [row_in(line) for line in path.read_bytes().splitlines(keepends=True)[-3:]]
    except OSError:
        return None
    times = [row["time"] for row in said if row is not None and isinstance(row.get("time"), float)]
    return times[-1] if times and 0 < times[-1] < 2**33 else None


def _data_of(config: Row) -> str:
    data = config.get("data", {})
    source = data.get("source") or Path(str(data.get("path", ""))).name
    return _choice_of("dataset", source if isinstance(source, dict) else {"kind": source})


def _partition_of(config: Row) -> str:
    data = config.get("data", {})
    return "by user" if data.get("by_user") else _choice_of("partition", data.get("partition"))


def _model_of(config: Row) -> str:
    return _choice_of("model", config.get("model"))


def _choice_of(table: str, choice: Row | None) -> str:
    """A choice of a recipe as people write it; nothing where there is none."""
    if not choice:
        return ""
    options = {name: v for name, v in choice.items() if name != "kind" and isinstance(v, int | float | str)}
    return with_options(shown_as(table, str(choice.get("kind", ""))), options)
