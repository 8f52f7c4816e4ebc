"""Pictures and tables of comparisons and sweeps.

Of a comparison: accuracy and loss by round, clients' accuracies at the end, rounds to a target, and the picture of
Localize-and-Stitch beside its baselines; a method's seeds are averaged round by round. Of a sweep: validation accuracy
by each setting that was varied.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedquilt.core.plain import JSON, Floats, Ints, Row
from fedquilt.core.table import ClientId
from fedquilt.metrics.table import best_of, main, metrics, task, trivial
from fedquilt.results.looks import COLOURS, Look, Looks, looks_of
from fedquilt.results.plots import STYLE, Histories, level, save, subplots, write_csv
from fedquilt.results.ranking import best_first
from fedquilt.results.statistics.spread import client_means
from fedquilt.results.statistics.targets import first_reach
from fedquilt.results.tables import by_label, scored, span, target_told
from fedquilt.results.views import RunView
from fedquilt.storage.files import to_json

Rows = Sequence[Mapping[str, JSON]]
Numbers = list[tuple[object, ...]]  # of a picture, as its file of numbers has them


def drawn(views: Sequence[RunView], clients: bool) -> tuple[dict[str, list[Rows]], dict[str, dict[ClientId, float]]]:
    """What pictures are made of: the rounds of each method all of whose runs have scores, and its clients' accuracies
    at the end; ``clients``: whether methods are compared by clients' scores."""
    able = {label: group for label, group in by_label(views).items() if all(map(_has_scores, group))}
    histories: dict[str, list[Rows]] = {label: [scored(v, clients) for v in group] for label, group in able.items()}
    return histories, {label: client_means([v.scored.last() for v in group]) for label, group in able.items()}


def _has_scores(view: RunView) -> bool:
    """Whether its logs still have what pictures are made of."""
    return bool(view.scored.rounds) and any(row.get(f"test_{main().id}") is not None for row in view.rounds)


def over_seeds(seeds: Sequence[Rows], name: str) -> tuple[Ints, Floats]:
    """The rounds at which every seed has this number, and its mean over seeds."""
    found = [{r["round"]: r[name] for r in rows if r.get(name) is not None} for rows in seeds]
    rounds = np.array(sorted(set.intersection(*(set(f) for f in found)))) if found else np.array([])
    return rounds, np.array([np.mean([f[r] for f in found]) for r in rounds])


def accuracy_curves(histories: Histories, majority: float, path: Path, looks: Looks | None = None) -> Path:
    """Mean test accuracy over clients by round, with a band of one standard deviation over clients."""
    with rc_context(STYLE):
        figure, axis = subplots(figsize=(7.5, 4.5))
        rows = draw_accuracy(axis, histories, majority, looks_of(histories, looks))
        axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        short = "acc" if task() is None else main().id
        columns = (f"mean_{short}", f"std_{short}")
        return save(figure, path, ("method", "round", *columns), rows)


def draw_accuracy(axis: Axes, histories: Histories, majority: float, looks: Looks) -> Numbers:
    """The same on axes; the numbers of the picture."""
    rows: Numbers = []
    for label, seeds in histories.items():
        rounds, mean = over_seeds(seeds, f"test_{main().id}")
        _, std = over_seeds(seeds, f"test_{main().id}_std")
        std = std if len(std) == len(mean) else np.full(len(mean), np.nan)  # a metric may have none
        _line(axis, rounds, mean, looks[label])
        band: Row = {"color": looks[label].colour, "alpha": min(0.15, 0.5 / len(histories)), "linewidth": 0}
        axis.fill_between(rounds, mean - std, mean + std, **band)
        rows += [(label, int(r), m, s) for r, m, s in zip(rounds, mean, std, strict=True)]
    level(axis, majority)
    axis.set(xlabel="round", ylabel=f"test {main().name}", title="Mean ± one standard deviation over clients")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    if main().share:
        low, high = axis.get_ylim()
        axis.set_ylim(max(low, 0.0), min(high, 1.02))
    return rows


def _line(axis: Axes, rounds: Ints, mean: Floats, look: Look) -> None:
    """A method's curve; of a single round a dot."""
    axis.plot(rounds, mean, label=look.name, marker="o" if len(rounds) == 1 else None, markersize=4, **look.line)


def loss_curves(histories: Histories, path: Path, looks: Looks | None = None) -> Path:
    """Mean test loss over clients by round."""
    with rc_context(STYLE):
        figure, axis = subplots(figsize=(7.5, 4.5))
        rows = draw_loss(axis, histories, looks_of(histories, looks))
        axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        return save(figure, path, ("method", "round", "mean_loss"), rows)


def draw_loss(axis: Axes, histories: Histories, looks: Looks) -> Numbers:
    """The same on axes; the numbers of the picture."""
    rows: Numbers = []
    for label, seeds in histories.items():
        rounds, mean = over_seeds(seeds, "test_loss")
        _line(axis, rounds, mean, looks[label])
        rows += [(label, int(r), m) for r, m in zip(rounds, mean, strict=True)]
    what = "Cross-entropy" if task() is None else "Loss"
    axis.set(xlabel="round", ylabel="test loss", title=f"{what} per row, mean over clients")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    return rows


Scores = Mapping[str, Mapping[ClientId, float]]


def accuracy_boxplot(clients: Scores, majority: float, path: Path, looks: Looks | None = None) -> Path:
    """Clients' accuracies after the last round: box from the first to the third quartile, whiskers at 1.5 times its
    length, every client a dot, the mean a diamond."""
    with rc_context(STYLE):
        figure, axis = subplots(figsize=(max(5.0, 1.5 + 0.9 * len(clients)), 4.5))
        rows = draw_clients(axis, clients, majority, looks_of(clients, looks))
        axis.set(title="Clients after the last round")
        return save(figure, path, ("method", "client", main().id), rows)


def draw_clients(axis: Axes, clients: Scores, majority: float, looks: Looks) -> Numbers:
    """The same on axes; the numbers of the picture."""
    for place, (label, values) in enumerate(clients.items()):
        found, tint = np.array(list(values.values())), looks[label].colour
        if not len(found):
            continue
        axis.boxplot(
            [found],
            positions=[place],
            widths=0.6,
            showfliers=False,
            showmeans=True,
            medianprops={"color": tint, "linewidth": 2},
            boxprops={"color": tint},
            whiskerprops={"color": tint},
            capprops={"color": tint},
            meanprops={"marker": "D", "markerfacecolor": tint, "markeredgecolor": "white"},
        )
        spread = (np.arange(len(found)) * 0.618034 % 1 - 0.5) * 0.36  # even, and the same every time
        axis.scatter(place + spread, found, s=9, color=tint, alpha=0.45, linewidths=0)
    level(axis, majority)
    axis.set_xticks(range(len(clients)), [looks[label].name for label in clients], rotation=20, ha="right")
    axis.set(ylabel=f"test {main().name}")
    return [(label, c, a) for label, values in clients.items() for c, a in values.items()]


def rounds_to(seeds: Sequence[Rows], target: float) -> int | None:
    """The first round whose mean accuracy reaches the target; None if none does."""
    rounds, mean = over_seeds(seeds, f"test_{main().id}")
    place = first_reach(mean, target)
    return None if place is None else int(rounds[place])


def last_round(seeds: Sequence[Rows]) -> int:
    """The last round that was scored."""
    rounds, _ = over_seeds(seeds, f"test_{main().id}")
    return int(rounds[-1]) if len(rounds) else 0


def convergence_speed(histories: Histories, target: float, path: Path, looks: Looks | None = None) -> Path:
    """Rounds to the target accuracy; methods that never reach it have an empty bar as long as they were run."""
    with rc_context(STYLE):
        figure, axis = subplots(figsize=(7.0, 1.4 + 0.42 * len(histories)))
        rows = draw_speed(axis, histories, target, looks_of(histories, looks))
        return save(figure, path, ("method", "target", "round", "last_round"), rows)


def draw_speed(axis: Axes, histories: Histories, target: float, looks: Looks) -> Numbers:
    """The same on axes; the numbers of the picture."""
    rows: Numbers = []
    for place, (label, seeds) in enumerate(histories.items()):
        found, tint = rounds_to(seeds, target), looks[label].colour
        length = last_round(seeds) if found is None else found
        axis.barh(place, length, color="none" if found is None else tint, edgecolor=tint, height=0.6)
        told = f" never in {length}" if found is None else f" {found}"
        axis.annotate(told, (length, place), va="center", fontsize=9)
        rows.append((label, target, "" if found is None else found, length))
    axis.set_yticks(range(len(histories)), [looks[label].name for label in histories])
    axis.invert_yaxis()
    axis.margins(x=0.15)
    axis.set(xlabel="round", title=f"First scored round with mean {main().name} of {target_told(target)}")
    axis.grid(False, axis="y")
    return rows


def comparison_table(
    histories: Histories, clients: Mapping[str, Mapping[ClientId, float]], majority: float, target: float, path: Path
) -> Path:
    """comparison_table.csv: the published columns, then the other metrics of tables, each with half of its 95 %
    interval over seeds and test samples, and the majority baseline."""
    short = main().short.replace("accuracy", "acc")
    others = [m for m in metrics("table") if m.id != main().id]
    header = (
        "Algorithm",
        f"Final mean {short}",
        f"Final std {short}",
        f"Best mean {short}",
        "Final mean loss",
        f"Rounds to {target_told(target).replace(' ', '')}",
        f"Min client {short}",
        f"P10 client {short}",
        f"P90 client {short}",
        f"Max client {short}",
        *chain.from_iterable(_headings(m.name) for m in others),
        f"{trivial().capitalize()} {short}",
    )
    rows = []
    for label, seeds in histories.items():
        own = list(clients.get(label, {}).values()) or [math.nan]
        sure = chain.from_iterable(_sure(seeds, f"test_{m.id}") for m in others)
        rows.append([label, *_ends(seeds, target), *np.percentile(own, (0, 10, 90, 100)).tolist(), *sure, majority])
    write_csv(path, header, [[f"{v:.6f}" if isinstance(v, float) else v for v in row] for row in rows])
    return path


def _ends(seeds: Sequence[Rows], target: float) -> tuple[float | str, ...]:
    """A method's accuracy at its last round and at its best one, its loss, and when it reached the target."""
    accuracy, reached = over_seeds(seeds, f"test_{main().id}")[1], rounds_to(seeds, target)
    return (
        _last(seeds, f"test_{main().id}"),
        _last(seeds, f"test_{main().id}_std"),
        float(best_of(accuracy)) if len(accuracy) else math.nan,
        _last(seeds, "test_loss"),
        f">{last_round(seeds)}" if reached is None else reached,
    )


def _headings(metric: str) -> tuple[str, str]:
    name = f"Final {metric.replace('accuracy', 'acc')}"
    return name, f"{name} half 95 %"


def _last(seeds: Sequence[Rows], name: str) -> float:
    values = over_seeds(seeds, name)[1]
    return float(values[-1]) if len(values) else math.nan


def _sure(seeds: Sequence[Rows], name: str) -> tuple[float, float]:
    """A number at the end, and half of its 95 % interval over seeds and test samples."""
    at = over_seeds(seeds, name)[0]
    last = [row for rows in seeds for row in rows if len(at) and row["round"] == at[-1]]
    found = span(name, name, last) if last else {}
    half = found.get(f"{name}_both_half_95")
    return found.get(name, math.nan), math.nan if half is None else half


def draw_all(
    histories: Histories, clients: Scores, majority: float, target: float, top: Path, looks: Looks | None = None
) -> None:
    """All of the above, below a folder."""
    accuracy_curves(histories, majority, top / f"{main().id}_curves", looks)
    loss_curves(histories, top / "loss_curves", looks)
    accuracy_boxplot(clients, majority, top / f"{main().id}_boxplot", looks)
    convergence_speed(histories, target, top / "convergence_speed", looks)
    comparison_table(histories, clients, majority, target, top / "comparison_table.csv")


def measures() -> tuple[str, ...]:
    """The numbers of :func:`rounds_plot`, the best first."""
    first = main().id
    return f"common_test_{first}", f"global_test_{first}_pooled", f"test_{first}_pooled"


def rounds_plot(histories: Histories, title: str, path: Path, looks: Looks | None = None) -> Path:
    """SVG, PNG and EPS, and the numbers as CSV; mean over seeds.

    The measure is the best that all methods have: the common test set, or else all clients' test samples together, or
    else those of the models that clients would use.
    """
    known = measures()
    measure = next(m for m in known if all(len(over_seeds(s, m)[0]) for s in histories.values()) or m == known[-1])
    rows: Numbers = []
    shown = looks_of(histories, looks)
    with rc_context(STYLE):
        figure, axis = subplots(figsize=(7.0, 4.8))
        for label, seeds in histories.items():
            rounds, mean = over_seeds(seeds, measure)
            axis.plot(rounds, mean, label=shown[label].name, marker="o", markersize=3, **shown[label].line)
            rows += [(label, int(r), f"{m:.6f}") for r, m in zip(rounds, mean, strict=True)]
        axis.set(xlabel="communication round", ylabel=main().name, title=title)
        if main().share:
            axis.set(ylim=(0, 1), yticks=np.arange(0, 1.01, 0.1))
        if histories:  # there may be no method to draw
            figure.legend(loc="outside lower center", ncols=2)
        return save(figure, path, ("method", "round", measure), rows).with_suffix(".svg")


COLUMNS = ("valid", "valid_half_95", "seeds", "rounds", "megabytes", "seconds", "best")


def as_csv(rows: Rows) -> str:
    """One line for each point, best first; of test numbers there are none."""
    text = io.StringIO()
    names = list(rows[0]["values"]) if rows else []
    writer = csv.writer(text)
    writer.writerow(["point", *names, *(f"valid_{main().id}" if c == "valid" else c for c in COLUMNS)])
    for row in best_first([dict(r) for r in rows]):
        writer.writerow([row["point"], *(plain(row["values"][n]) for n in names), *(row[c] for c in COLUMNS)])
    return text.getvalue()


def plain(value: JSON) -> JSON:
    """A value as one cell."""
    return value if isinstance(value, int | float | str) else to_json(value)


def numeric(values: Sequence[JSON]) -> bool:
    """Whether all of them are numbers."""
    return all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)


def _draw_setting(axis: Axes, scored: Rows, name: str) -> None:
    """The points by one setting."""
    values = [row["values"][name] for row in scored]
    shown = values if numeric(values) else [str(plain(v)) for v in values]
    axis.scatter(shown, [row["valid"] for row in scored], color=COLOURS[0], s=22, alpha=0.8)
    for row, value in zip(scored, shown, strict=True):
        if row["best"]:
            axis.scatter([value], [row["valid"]], color=COLOURS[1], s=70, marker="*", zorder=3, label="best")
    if numeric(values) and 0 < 20 * min(values) <= max(values):
        axis.set_xscale("log")
    axis.set(xlabel=name)


def draw(rows: Rows, names: Sequence[str], path: Path) -> Path:
    """Validation accuracy by each setting that was varied, as files."""
    with rc_context(STYLE):
        told = [(row["point"], *(plain(row["values"][n]) for n in names), row["valid"]) for row in _scored(rows)]
        return save(by_setting(rows, names), path, ("point", *names, f"valid_{main().id}"), told)


def by_setting(rows: Rows, names: Sequence[str]) -> Figure:
    """Validation accuracy by each setting that was varied; the best point stands out."""
    with rc_context(STYLE):
        figure, axes = subplots(1, len(names), figsize=(1.5 + 3.0 * len(names), 3.4), sharey=True, squeeze=False)
        for axis, name in zip(axes[0], names, strict=True):
            _draw_setting(axis, _scored(rows), name)
        axes[0][0].set(ylabel=f"validation {main().name}")
        axes[0][-1].legend(loc="best")
        return figure


def _scored(rows: Rows) -> Rows:
    return [row for row in rows if row["valid"] is not None]
