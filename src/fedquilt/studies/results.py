"""What a comparison, a sweep or a run found, for Python: a table, frames, LaTeX, pictures, the best."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Iterator, Sequence
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedquilt.core.plain import Row
from fedquilt.errors import InputError, did_you_mean
from fedquilt.metrics.table import main
from fedquilt.report.gather import Gathered
from fedquilt.results.latex import latex_table
from fedquilt.results.ranking import ranking
from fedquilt.results.shown import Shown, comparison_shown, sweep_shown
from fedquilt.results.views import RunView, looks_for, read_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FRAMES = ("methods", "runs", "rounds", "clients")


class Results:
    """The runs of a study and what they say: of :func:`fedquilt.compare`, :func:`fedquilt.sweep`, or of a folder.

    Numbers are those of the command's table and report: test scores at the round that validation samples chose, means
    over clients and seeds, with 95 % intervals.

    Example:
        >>> from fedquilt import FedAvg, FedProx, compare
        >>> from fedquilt.testing import digits, network
        >>> methods = {"FedAvg": FedAvg(network()), "FedProx": FedProx(network(), mu=0.1)}
        >>> results = compare(methods, digits(clients=4), rounds=2, seeds=[0, 1], engine="local")
        >>> [column for column in results.to_pandas().columns][:2]
        ['method', 'accuracy']
        >>> results.best()["method"] in methods
        True
        >>> print(results.table())  # doctest: +SKIP
        4 clients, 2 seeds; accuracy in %
        method          accuracy  ...
    """

    def __init__(self, folder: str | Path, passing: bool = False) -> None:
        self.folder = Path(folder)
        if passing:  # a temporary folder, which goes with this object
            weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self._found = Gathered.of(self.folder)

    @classmethod
    def load(cls, folder: str | Path) -> Results:
        """Those in a folder, of a run, a comparison or a sweep, whether Python or the command made it."""
        place = Path(folder)
        if not place.is_dir():
            raise InputError(f"There is no folder '{place}'. Give that of a run, a comparison or a sweep.")
        return cls(place)

    @property
    def runs(self) -> tuple[RunView, ...]:
        """Every run: its ``label``, ``seed``, ``folder``, ``result``, ``rounds`` and ``state``."""
        return tuple(self._found.views)

    @property
    def digests(self) -> dict[tuple[str, int], str]:
        """The hash of the final state of each finished run, by label and seed."""
        return {(v.label, v.seed): v.result["digest"] for v in self.runs if v.result}

    @property
    def is_sweep(self) -> bool:
        """Whether settings were tried, not methods compared."""
        return bool(self._found.sweep)

    @property
    def failed(self) -> list[Row]:
        """Runs that were given up: ``method``, ``seed`` and ``reason``."""
        return self._found.failed

    @cached_property
    def summary(self) -> Row:
        """Everything that ``fedquilt compare --json`` tells of the methods that are finished."""
        found = self._found.summary
        if found is None:
            states = "; ".join(f"{view.label}, seed {view.seed}: {view.state}" for view in self.runs[:3])
            raise InputError(f"No method of '{self.folder}' is finished and scored ({states}).")
        if self.is_sweep:
            return found
        kept = read_json(self.folder / "summary.json")
        return {**kept, **found, "clients": kept.get("clients", found["clients"])}

    @cached_property
    def rows(self) -> list[Row]:
        """A line of numbers for each method, or for each point of a sweep in the order they were tried."""
        rows: list[Row] = ranking(self.folder) if self.is_sweep else self.summary["rows"]
        return rows

    def best(self) -> Row:
        """The line of the method with the highest mean accuracy, and which cannot be told apart from it (``tied``); of
        a sweep the point with the highest validation accuracy, with its ``values`` and its ``test`` accuracy."""
        if self.is_sweep:
            found = [row for row in self.rows if row["best"]]
            if not found:
                raise InputError(f"No point of '{self.folder}' is finished.")
            return found[0]
        won = self.summary["winner"]
        if won is None:
            raise InputError(f"'{self.folder}' has no method to select: {', '.join(r['method'] for r in self.rows)}.")
        return next(row for row in self.rows if row["method"] == won["method"]) | {"tied": won["tied"]}

    def table(self) -> Shown:
        """The table, for ``print`` and for notebooks: the best and those that may be as good are bold."""
        return sweep_shown(self.rows) if self.is_sweep else comparison_shown(self.summary)

    def to_pandas(self, of: str = "methods") -> Any:
        """A data frame.

        Args:
            of: 'methods' (or points): the lines of the table with all their numbers; 'runs': the result of each run;
                'rounds': each round of each run; 'clients': each client's test scores after each evaluation.
        """
        try:
            import pandas
        except ImportError as error:
            raise InputError("to_pandas needs pandas: pip install pandas. Or use .rows, a list of dicts.") from error
        if of not in FRAMES:
            raise InputError(f"of should be one of {', '.join(FRAMES)}, got {of!r}{did_you_mean(of, FRAMES, end='.')}")
        return pandas.DataFrame(self._frame(of))

    def _frame(self, of: str) -> list[Row]:
        if of == "methods":
            return [{**row.pop("values", {}), **row} for row in map(dict, self.rows)]
        named = [({"method": view.label, "seed": view.seed}, view) for view in self.runs]
        if of == "runs":
            return [
                {**name, **view.result.get("best", {}), **_plain(view.result)} for name, view in named if view.result
            ]
        if of == "rounds":
            return [{**name, **row} for name, view in named for row in view.rounds]
        return [{**name, **row} for name, view in named for row in _of_clients(view)]

    def to_latex(
        self,
        columns: Sequence[str] | None = None,
        caption: str | None = None,
        label: str = "tab:comparison",
        explain: bool = True,
    ) -> str:
        """The table of a comparison for a paper, with ``\\usepackage{booktabs}``; the best and all that cannot be told
        apart from it are bold.

        Args:
            columns: Keys of scores (``accuracy``, ``worst10``, ...), ``megabytes`` or ``seconds``; by default all
                scores that there are, and megabytes.
            caption: In LaTeX; in front of what the numbers are.
            label: What ``\\ref`` calls the table.
            explain: Whether the caption says what the numbers are: unit, ±, bold.
        """
        if self.is_sweep:
            raise InputError("A sweep has no table of methods for a paper: compare its best point with other methods.")
        return latex_table(self.summary, columns, caption, label, explain)

    def plot(self) -> Figure:
        """A figure, outside pyplot: accuracy by round and by megabytes, mean over seeds with the range between them; of
        a sweep validation accuracy by each setting. ``figure.savefig("curves.pdf")`` keeps it."""
        from fedquilt.results.comparison_plots import by_setting, drawn
        from fedquilt.results.plots import curves_of

        if self.is_sweep:
            return by_setting(self.rows, self._found.sweep["names"])
        known = {row["method"] for row in self.rows}
        views = [view for view in self.runs if view.label in known]
        histories, _ = drawn(views, self.summary["measure"] == main().id)
        return curves_of(histories, self.summary["majority_class"], looks_for(self.runs))[0]

    def report(self, to: str | Path | None = None) -> Path:
        """Write the HTML report; by default as report.html in the folder."""
        from fedquilt.report import write_report

        return write_report(self.folder, to)

    def __repr__(self) -> str:
        done = sum(bool(view.result) for view in self.runs)
        return f"Results({str(self.folder)!r}: {done} of {len(self.runs)} runs finished)"

    def __str__(self) -> str:
        return f"{self.table()}\n{self!r}"

    def _repr_html_(self) -> str:
        return f"{self.table()._repr_html_()}<p>{escape(repr(self))}</p>"


def _of_clients(view: RunView) -> Iterator[Row]:
    """Each client's scores in each scored round of a run."""
    for i, client in enumerate(view.scored.clients):
        for j, round in enumerate(view.scored.rounds):
            yield {"client": client, "round": round, **{id: float(v[i, j]) for id, v in view.scored.values.items()}}


def _plain(result: Row) -> Row:
    """The numbers of a result that are one number each."""
    return {name: value for name, value in result.items() if isinstance(value, bool | int | float | str)}
