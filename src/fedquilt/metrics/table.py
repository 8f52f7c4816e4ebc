"""All metrics in one table: what each is called, how it is computed from clients' scores, and where it is shown.

Whatever computes, writes, reads, sorts or draws metrics goes through this table, or asks it by id. A new metric is one
:class:`Metric`, given to :func:`register` or named by an installed package under the entry points ``fedquilt.metrics``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from fedquilt.errors import InputError, did_you_mean
from fedquilt.metrics import PRIMARY as PRIMARY
from fedquilt.metrics.support import (
    Array,
    Z,
    balanced_variance,
    half_of_mean,
    macro_f1_variance,
    share_variance,
    wilson,
)

if TYPE_CHECKING:
    from torch import Tensor

Summary = Literal["pooled", "std", "worst10", "common"]
Place = Literal["table", "report", "watch"]
GROUP = "fedquilt.metrics"  # of entry points
SUCCESS = "attack_success"  # of simulations with a backdoor
ROWS_HALF = "_rows_half_95"  # ends the key of half the 95 % interval that the number of test samples leaves
_TAKEN = ("round", "client", "model", "split", "rows", "rarest", "scored", "asked")  # in clients' samples


_ENDS = ("pooled", "std", "worst10", "low", "high", "half_95", "rows_half_95")  # of keys beside a metric's own


@dataclass(frozen=True)
class Counts:
    """Scores of many clients at once, as sums over each client's samples.

    Args:
        kind: What the models do.
        rows, loss: [clients]: how many rows, and their summed loss.
        support, correct, called: [clients, classes]: rows of a class, those that are right, rows that are so called;
            without classes for models that do not classify.
        sums: What metrics with a ``statistic`` add up, by their ids: [clients, ...].
    """

    kind: str
    rows: Array
    loss: Array
    support: Array
    correct: Array
    called: Array
    sums: Mapping[str, Array]

    @classmethod
    def of(cls, scores: Sequence[Any]) -> Counts:
        """Of :class:`fedquilt.metrics.classify.Scores`, :class:`fedquilt.metrics.reconstruct.Reconstructed` or
        :class:`fedquilt.metrics.summed.Summed`."""
        kind = getattr(scores[0], "kind", "classification" if hasattr(scores[0], "support") else "reconstruction")
        support, correct, called = (
            _stacked([getattr(s, name) for s in scores]) if kind == "classification" else np.zeros((len(scores), 0))
            for name in ("support", "correct", "called")
        )
        known = set.intersection(*(set(getattr(s, "sums", ())) for s in scores))
        return cls(
            kind,
            np.array([s.rows for s in scores], dtype=np.float64),
            np.array([s.loss_sum for s in scores]),
            support,
            correct,
            called,
            {name: _stacked([s.sums[name] for s in scores]) for name in sorted(known)},
        )

    def together(self) -> Counts:
        """All clients' rows as those of one client."""
        sums = {name: s.sum(0, keepdims=True) for name, s in self.sums.items()}
        rows, loss, support, correct, called = (
            part.sum(0, keepdims=True) for part in (self.rows, self.loss, self.support, self.correct, self.called)
        )
        return Counts(self.kind, rows, loss, support, correct, called, sums)


def _stacked(counts: Sequence[Tensor]) -> Array:
    """Counts of equal ranks below each other; models that know fewer classes have zeros at the end."""
    arrays = [c.numpy() for c in counts]
    shape = np.max([a.shape for a in arrays], axis=0)
    return np.stack([a if a.shape == tuple(shape) else np.pad(a, [(0, n) for n in shape - a.shape]) for a in arrays])


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric of a model on a client's samples.

    Args:
        id: Its key in files: ``test_ID``, ``valid_ID`` and ``global_test_ID`` of a round, ``ID`` of a client.
        name: What people read.
        of: One value for each client, from the counts of all; a masked array where clients may have none.
        heading: Its name above the columns of tables, if that is shorter.
        help: What it means, for tables that explain themselves.
        higher_is_better: Its direction.
        share: Whether it is shown in per cent.
        kinds: The kinds of scores that it can be computed from; () for any.
        summaries: What is kept of it beside the mean over clients: over all rows (pooled), the standard deviation over
            clients, the mean of the worst 10 % of clients, and its value on the server's common rows.
        pooled: Its value on all clients' rows together, where that is not the mean over rows of clients' values.
        variance: Of each client's value, from the counts of its rows.
        interval: The ends of each client's 95 % interval, where that is more than a variance.
        shown: The places that show it: tables of comparisons, the report's curves and clients, the watch page.
        minor: Whether narrow terminals leave it out.
        statistic: From scores of classes and labels, [rows, classes] and [rows], a tensor that adds up over rows (zeros
            of that shape for no rows), if the counts of classes are not enough; ``of`` finds it as ``sums[id]`` with
            the clients as first dimension. It travels in the scores of clients while the metric is known.
        brought: Whether only some scores have it: those whose ``sums`` were brought by who made them.
    """

    id: str
    name: str
    of: Callable[[Counts], Array]
    heading: str = ""
    help: str = ""
    higher_is_better: bool = True
    share: bool = True
    kinds: tuple[str, ...] = ("classification",)
    summaries: tuple[Summary, ...] = ()
    pooled: Callable[[Counts], Array] | None = None
    variance: Callable[[Counts], Array] | None = None
    interval: Callable[[Counts], tuple[Array, Array]] | None = None
    shown: tuple[Place, ...] = ("table", "report", "watch")
    minor: bool = False
    statistic: Callable[[Tensor, Tensor], Tensor] | None = None
    brought: bool = False

    @property
    def short(self) -> str:
        """Its name above a column."""
        return self.heading or self.name

    def applies(self, counts: Counts) -> bool:
        """Whether it can be computed from these."""
        summed = self.statistic is not None or self.brought
        return (not self.kinds or counts.kind in self.kinds) and (not summed or self.id in counts.sums)

    def better(self, value: float, than: float, by: float = 0.0) -> bool:
        """Whether a value is better than another by more than so much."""
        return value > than + by if self.higher_is_better else value < than - by

    def spread(self, counts: Counts) -> dict[str, Array]:
        """How sure each client's value is, by keys of a client's row: the ends of its interval, or half of it."""
        if self.interval is not None:
            low, high = self.interval(counts)
            return {f"{self.id}_low": low, f"{self.id}_high": high}
        return {} if self.variance is None else {f"{self.id}_half_95": Z * np.sqrt(self.variance(counts))}

    def half(self, counts: Counts, which: Array) -> float | None:
        """Half of the 95 % interval of the mean over these clients, from the counts of their rows; None without a
        variance, or where the rows of one are too few for it."""
        variances = None if self.variance is None else self.variance(counts)[which]
        return None if variances is None or np.ma.is_masked(variances) else half_of_mean(np.ma.getdata(variances))

    def in_words(self, value: float | None, half: float | None = None) -> str:
        """A value with its unit; 'unknown' where there is none."""
        told = self.written(value, half)
        return told + " %" * self.share if told else "unknown"

    def apart(self, difference: float) -> str:
        """How far two values are apart, in words."""
        return f"{100 * abs(difference):.1f} points" if self.share else f"{abs(difference):.3f}"

    def told(self, numbers: Mapping[str, Any], key: str) -> str:
        """The number of this key for people, with the ± that the number of test samples leaves it, if that is known."""
        return self.written(numbers.get(key), numbers.get(key + ROWS_HALF))

    def written(self, value: float | None, half: float | None = None) -> str:
        """A value for people, with its ±; nothing where there is none."""
        if value is None or math.isnan(value):
            return ""
        times, digits = (100, 1) if self.share else (1, 3 if abs(value) < 10 else 2 if abs(value) < 100 else 1)
        return f"{times * value:.{digits}f}" + (
            "" if half is None or math.isnan(half) else f" ± {times * half:.{digits}f}"
        )

    @property
    def look(self) -> dict[str, Any]:
        """The kind of a column of a page's table, and its decimals."""
        return {"kind": "percent"} if self.share else {"kind": "number", "digits": 3}

    @property
    def columns(self) -> list[dict[str, Any]]:
        """The columns of a page's table of clients: the value, and how sure it is."""
        value = {"key": self.id, "label": self.short + (", %" if self.share else ""), "help": self.help, **self.look}
        if self.interval is not None:
            ends = {end: f"{self.id}_{end}" for end in ("low", "high")}
            told = "its 95 % interval, from the number of rows"
            return [value, {"key": f"{self.id}_interval", "label": "95 %", "kind": "range", "help": told, **ends}]
        return [value if self.variance is None else {**value, "half": f"{self.id}_half_95"}]


def _mean_where(values: Array, here: Array) -> Array:
    means: Array = (values * here).sum(1) / np.maximum(here.sum(1), 1)
    return means


def _balanced(c: Counts) -> Array:
    return _mean_where(c.correct / np.maximum(c.support, 1), c.support > 0)


def _macro_f1(c: Counts) -> Array:
    both = c.support + c.called
    return _mean_where(2 * c.correct / np.maximum(both, 1), both > 0)


def _success(c: Counts) -> Array:
    hits, rows = np.asarray(c.sums[SUCCESS], np.float64).T
    return np.ma.masked_array(hits / np.maximum(rows, 1), rows == 0)


_KNOWN: dict[str, Metric] = {}


def register(metric: Metric) -> None:
    """Make a metric known: from now on it is computed, written and shown like all others.

    Metrics of a ``statistic`` must be known wherever clients are scored, so also in other processes and at other sites:
    make them entry points of an installed package.
    """
    if not re.fullmatch("[a-z][a-z0-9_]*", metric.id) or metric.id in _TAKEN:
        raise InputError(f"A metric cannot be called {metric.id!r}: small letters, digits and _, and none of {_TAKEN}.")
    if any(metric.id == f"{other}_{end}" for other in _KNOWN for end in _ENDS):
        raise InputError(f"A metric cannot be called {metric.id!r}, which is a number of another metric.")
    if _KNOWN.setdefault(metric.id, metric) is not metric:
        raise InputError(f"There is a metric {metric.id!r} already. Choose another id.")


for _metric in (
    Metric(
        id=PRIMARY,
        name="accuracy",
        of=lambda c: c.correct.sum(1) / c.rows,
        help="share of rows that are right",
        summaries=("pooled", "std", "worst10", "common"),
        variance=lambda c: share_variance(c.correct.sum(1), c.support.sum(1)),
        interval=lambda c: wilson(c.correct.sum(1), c.support.sum(1)),
    ),
    Metric(
        id="balanced_accuracy",
        name="balanced accuracy",
        of=_balanced,
        heading="balanced",
        help="mean over the classes that a client has of the share that is right: rare classes make ± wide",
        variance=lambda c: balanced_variance(c.correct, c.support),
        minor=True,
    ),
    Metric(
        id="macro_f1",
        name="macro F1",
        of=_macro_f1,
        help="mean over the classes that a client has or calls of 2 right / (rows + calls); ± is at most so wide",
        variance=lambda c: macro_f1_variance(c.correct, c.support, c.called),
    ),
    Metric(
        id="loss",
        name="loss",
        of=lambda c: c.loss / c.rows,
        help="mean loss per row",
        higher_is_better=False,
        share=False,
        kinds=(),
        summaries=("common",),
        shown=("report", "watch"),
    ),
    Metric(
        id=SUCCESS,
        name="attack success",
        of=_success,
        help="share of rows of other classes that the model takes for a backdoor's target, with its mark on them",
        higher_is_better=False,
        shown=("table", "report"),
        minor=True,
        brought=True,
    ),
):
    register(_metric)

_OWN_IDS = frozenset(_KNOWN)  # which stay whatever the task

_used: list[str] = []  # the ids of those that a recipe named, or a script gave
_tasks: list[Judged] = []  # the task of this recipe, if its rows are not of one class each


class Judged(Protocol):
    """What metrics know of a task (:class:`fedquilt.tasks.Task`): by what it is judged."""

    @property
    def kind(self) -> str:
        """Of its score records."""
        ...

    @property
    def known(self) -> tuple[Metric, ...]:
        """Its metrics."""
        ...

    @property
    def main(self) -> str:
        """The one that methods are compared by."""
        ...

    @property
    def trivial(self) -> str:
        """What the answer is called that needs no input."""
        ...


def use(metrics: Sequence[Metric]) -> None:
    """Make the metrics of a recipe or of a script's call known, and those of the one before unknown, with its task."""
    use_task(None)
    while _used:
        _KNOWN.pop(_used.pop(), None)
    for found in metrics:
        register(found)
        _used.append(found.id)


def use_task(task: Judged | None) -> None:
    """From here on the metrics are those of this task; of None, those of rows of one class each."""
    for known in _tasks[0].known if _tasks else ():
        if known.id not in _used and known.id not in _OWN_IDS:
            _KNOWN.pop(known.id, None)
    _tasks[:] = [] if task is None else [task]
    for found in () if task is None else task.known:
        if _KNOWN.get(found.id) is not found:
            register(found)


def task() -> Judged | None:
    """The task whose metrics these are; None for rows of one class each."""
    return _tasks[0] if _tasks else None


def main() -> Metric:
    """The metric that methods are compared by."""
    return metric(_tasks[0].main if _tasks else PRIMARY)


def best_of(values: Iterable[float]) -> float:
    """The best of values of the main metric."""
    return max(values) if main().higher_is_better else min(values)


def headline() -> str:
    """The main metric as the title of a table of its values."""
    return main().name + " in %" * main().share


def trivial() -> str:
    """What the answer is called that needs no input."""
    return _tasks[0].trivial if _tasks else "majority class"


def statistics_in_use(kind: str = "classification") -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """What metrics of a recipe or of a script add up for scores of a kind, by their ids: other processes must be told
    of it."""
    asked = (_KNOWN[id] for id in _used)
    return {m.id: m.statistic for m in asked if m.statistic is not None and (not m.kinds or kind in m.kinds)}


def unfit() -> list[str]:
    """The metrics of a recipe or of a script that cannot be computed for its task, in words."""
    kind = _tasks[0].kind if _tasks else "classification"
    odd = (m for m in (_KNOWN[id] for id in _used) if m.kinds and kind not in m.kinds)
    return [f"{m.id} is for {' and '.join(m.kinds)}, and the task is {kind}. Leave it out." for m in odd]


@cache
def _installed() -> None:
    """Register the metrics of installed packages, once, when somebody first asks for all."""
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            found = point.load()
        except (ImportError, AttributeError) as error:
            raise InputError(f"The entry point {point.name!r} of {GROUP} cannot be loaded: {error}.") from error
        if not isinstance(found, Metric):
            raise InputError(f"The entry point {point.name!r} of {GROUP} gives {found!r}, which is not a Metric.")
        register(found)


def metrics(shown: Place | None = None) -> tuple[Metric, ...]:
    """All metrics of the task in their order, or those of a place; the main one first."""
    _installed()
    kinds = {_tasks[0].kind} if _tasks else {"classification", "reconstruction"}
    found = [m for m in _KNOWN.values() if not m.kinds or kinds.intersection(m.kinds)]
    first = _tasks[0].main if _tasks else PRIMARY
    return tuple(m for m in sorted(found, key=lambda m: m.id != first) if shown is None or shown in m.shown)


def metric(id: str) -> Metric:
    """The metric of this id."""
    if id not in _KNOWN:
        _installed()
    if id not in _KNOWN:
        raise InputError(f"There is no metric {id!r}{did_you_mean(id, _KNOWN, end='.')} There are {', '.join(_KNOWN)}.")
    return _KNOWN[id]


def client_columns(shown: Place) -> list[dict[str, Any]]:
    """The columns of clients' scores at a place."""
    return [column for m in metrics(shown) for column in m.columns]


def cells(columns: Sequence[Mapping[str, Any]], row: Mapping[str, Any]) -> dict[str, Any]:
    """What these columns show of a client's row; intervals are sorted by their values."""
    keys = [c[part] for c in columns for part in ("key", "half", "low", "high") if part in c]
    return {key: row.get(key.removesuffix("_interval")) for key in keys}


def values(counts: Counts) -> dict[str, Array]:
    """Of each metric that applies its value for each client."""
    return {m.id: m.of(counts) for m in metrics() if m.applies(counts)}


def together(counts: Counts) -> dict[str, float]:
    """Of each metric that has one its value on all clients' rows together, where that is more than a mean over rows."""
    whole = counts.together()
    found = {m.id: m.pooled(whole) for m in metrics() if m.pooled is not None and m.applies(whole)}
    return {id: float(value[0]) for id, value in found.items() if not np.ma.is_masked(value)}
