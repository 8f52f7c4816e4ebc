"""Pictures of a run on a stream; numbers are written beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from torch import Tensor
from torch.nn.functional import normalize

from fedquilt.analysis.continual import NAMES, Recalled
from fedquilt.core.plain import JSON, Row
from fedquilt.core.seed import Seed
from fedquilt.core.table import Table
from fedquilt.models.masked import masking
from fedquilt.results.plots import COLOURS, STYLE, save, subplots
from fedquilt.rounds.client import one_thread

ROWS, SHOWN, NEAR = 300, 10, 6  # rows of a task on the map; prototypes shown; images of each


def pictures(run: Recalled, found: Mapping[str, JSON], to: Path) -> list[Path]:
    """Matrices, growth of the bank, prototypes as their nearest images, reconstructions, and a map of features."""
    with one_thread(), rc_context(STYLE):
        made = [_matrices(found, to / "matrix"), _reconstructions(run, to / "reconstructions")]
        if any("bank" in row for row in found["by_round"]):
            made.append(_growth(found, to / "bank"))
        made.append(_map(run, to / "map"))
        if len(_bank(run)[0]):
            made.append(_nearest(run, to / "prototypes"))
    return made


def _matrices(found: Mapping[str, JSON], path: Path) -> Path:
    """Scores by stage and task; what is right of the diagonal was not yet met."""
    names = [n for n in ("probe", "neighbours", "probe_all", "loss") if n in found["measures"]]
    figure, axes = subplots(1, len(names), figsize=(4.1 * len(names), 4.2))
    rows, stages = [], ["start", *(f"round {r}" for r in found["rounds"])]
    for axis, name in zip(np.atleast_1d(axes), names, strict=True):
        row = found["measures"][name]
        values = np.array([row["before"], *row["matrix"]])
        axis.imshow(values, cmap="viridis_r" if name == "loss" else "viridis", aspect="auto")
        axis.grid(False)
        middle = (values.max() + values.min()) / 2
        for (t, i), value in np.ndenumerate(values):
            dark = (value < middle) != (name == "loss")
            axis.text(i, t, _short(value, name), ha="center", va="center", color="white" if dark else "black", size=8)
            rows.append((name, stages[t], found["tasks"][i], value))
        for t in range(len(found["tasks"])):
            frame = Rectangle((t - 0.5, t + 0.5), 1, 1, fill=False, edgecolor="#D55E00", linewidth=1.5)
            axis.add_patch(frame)
        axis.set(xlabel="task", title=NAMES[name], xticks=range(len(found["tasks"])), xticklabels=found["tasks"])
        axis.set_yticks(range(len(stages)), stages)
    return save(figure, path, ("measure", "after", "task", "score"), rows)


def _short(value: float, name: str) -> str:
    return f"{value:.3f}" if name == "loss" else f"{100 * value:.1f}"


def _growth(found: Mapping[str, JSON], path: Path) -> Path:
    """Rows of the bank and what became of the prototypes that came, by round."""
    rows = [row for row in found["by_round"] if "bank" in row]
    figure, (left, right) = subplots(1, 2, figsize=(10, 3.6))
    _draw_bank(left, rows)
    _draw_cosines(right, rows)
    for axis in (left, right):
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.legend(ncols=3)
        for end in found["rounds"][:-1]:
            axis.axvline(end + 0.5, color="#777777", linestyle=":", linewidth=1)
    names = [n for n in rows[0] if n == "bank" or n.startswith("prototypes_")]
    return save(figure, path, ("round", *names), [(row["round"], *(row[n] for n in names)) for row in rows])


def _draw_bank(axis: Axes, rows: Sequence[Row]) -> None:
    """The rows of the bank, and what became of the prototypes that came."""
    rounds, sizes = [row["round"] for row in rows], [row["bank"] for row in rows]
    axis.plot(rounds, sizes, color=COLOURS[0], marker="o", markersize=3, label="rows of the bank")
    below = np.zeros(len(rows))
    for colour, kind in zip(COLOURS[1:], ("merged", "added", "dropped", "evicted"), strict=False):
        counts = np.array([row[f"prototypes_{kind}"] for row in rows])
        if counts.any():
            axis.bar(rounds, counts, bottom=below, color=colour, alpha=0.5, label=kind)
            below += counts
    most = max(*sizes, *below)
    axis.set(xlabel="round", ylabel="prototypes", title="The bank, and what came to it", ylim=(0, 1.4 * most))


def _draw_cosines(axis: Axes, rows: Sequence[Row]) -> None:
    """The largest, the mean and the least cosine between the prototypes of each round."""
    rounds = [row["round"] for row in rows]
    for colour, kind in zip(COLOURS, ("max", "mean", "min"), strict=False):
        values = [row[f"prototypes_cos_{kind}"] for row in rows]
        axis.plot(rounds, values, color=colour, marker="o", markersize=3, label=kind)
    axis.set(xlabel="round", ylabel="cosine", title="Cosines between the prototypes of a round", ylim=(-1.02, 1.02))


def _reconstructions(run: Recalled, path: Path) -> Path:
    """Some test images of each task, with hidden patches as the models before and after all rounds guess them."""
    net = run.evaluator.net
    x = _images([pair[1] for pair in run.evaluator.tables.values()], 2)
    tasks = [task for task, pair in run.evaluator.tables.items() for _ in range(min(2, len(pair[1])))]
    noise = torch.rand(len(x), net.trait("patches"), generator=Seed(0).fold("pictures").torch())
    models = run.start, run.models(run.stages[-1])[0]
    how = net.trait("patch"), net.trait("norm_pixels")
    before, after = (masking.pictures(net.ask(m, "forward", x, noise), x, *how) for m in models)
    lines = {"image": before.original, "visible": before.visible, "before": before.completed, "after": after.completed}
    figure, axes = subplots(4, len(x), figsize=(1.1 * len(x), 4.6), squeeze=False)
    rows = []
    for axis_row, (label, images) in zip(axes, lines.items(), strict=True):
        for i, (axis, image) in enumerate(zip(axis_row, images, strict=True)):
            _show(axis, image, x[i])
            error = float((image - x[i]).square().mean())
            rows.append((label, tasks[i], i, error))
        axis_row[0].set_ylabel(label, size=9)
    for axis, task in zip(axes[0], tasks, strict=True):
        axis.set_title(f"task {task}", size=9)
    return save(figure, path, ("line", "task", "image", "mean squared error"), rows)


def _nearest(run: Recalled, path: Path) -> Path:
    """The prototypes behind most rows, each as the training images nearest to it."""
    bank, centre, counts = _bank(run)
    model, tables = run.models(run.stages[-1])[0], run.evaluator.tables
    drawn = {task: _some(pair[0]) for task, pair in tables.items()}
    z = torch.cat([run.evaluator.features(model, table)[0] for table in drawn.values()])
    images = torch.cat([table.whole().x for table in drawn.values()])
    origin = [task for task, table in drawn.items() for _ in range(len(table))]
    shown = counts.argsort(descending=True, stable=True)[:SHOWN]
    cosines, who = (normalize(bank[shown], dim=1) @ normalize(z - centre, dim=1).T).topk(min(NEAR, len(z)), dim=1)
    size = (1.1 * who.shape[1] + 1, 1.15 * len(shown))
    figure, axes = subplots(*who.shape, figsize=size, squeeze=False)
    rows = []
    for axis_row, row, near, line in zip(axes, shown.tolist(), cosines.tolist(), who.tolist(), strict=True):
        for axis, cosine, i in zip(axis_row, near, line, strict=True):
            _show(axis, images[i], images[i])
            axis.set_title(f"{cosine:.2f}, task {origin[i]}", size=7)
            rows.append((row, int(counts[row]), cosine, origin[i]))
        axis_row[0].set_ylabel(f"{row}\n{int(counts[row])} rows", size=8)
    return save(figure, path, ("prototype", "rows behind it", "cosine", "task"), rows)


def _map(run: Recalled, path: Path) -> Path:
    """Test features of all tasks on the two directions in which they differ most, before and after, with the bank."""
    bank, centre, _ = _bank(run)
    tables = {task: _some(pair[1]) for task, pair in run.evaluator.tables.items()}
    figure, axes = subplots(1, 2, figsize=(10, 4.6))
    rows = []
    models = {"before": run.start, "after": run.models(run.stages[-1])[0]}
    for axis, (when, model) in zip(axes, models.items(), strict=True):
        raw = [run.evaluator.features(model, table)[0] for table in tables.values()]
        origin = centre if when == "after" else torch.cat(raw).mean(0) * bool(centre.any())
        z = [normalize(part - origin, dim=1) for part in raw]
        mean = torch.cat(z).mean(0)
        ways = torch.linalg.svd((torch.cat(z) - mean).double(), full_matrices=False).Vh[:2].float()
        ways = ways * torch.where(ways.gather(1, ways.abs().argmax(1, keepdim=True)) < 0, -1.0, 1.0)
        for colour, task, points in zip(COLOURS * len(tables), tables, z, strict=False):
            flat = (points - mean) @ ways.T
            axis.scatter(flat[:, 0], flat[:, 1], s=6, color=colour, alpha=0.5, linewidths=0, label=f"task {task}")
            rows += [(when, f"task {task}", *point) for point in flat.tolist()]
        if len(bank) and when == "after":
            flat = (bank - mean) @ ways.T
            axis.scatter(flat[:, 0], flat[:, 1], s=40, color="black", marker="+", label="bank")
            rows += [(when, "bank", *point) for point in flat.tolist()]
        axis.set(title=f"Features {when} training, two principal directions", xlabel="first", ylabel="second")
    axes[1].legend(markerscale=1.5, fontsize=8)
    return save(figure, path, ("when", "what", "first", "second"), rows)


def _bank(run: Recalled) -> tuple[Tensor, Tensor, Tensor]:
    """(rows, the mean they were centred by, data rows behind each) at the end."""
    state = run.stages[-1].state
    return state.bank.rows, state.centre.mean, state.bank.counts


def _some(table: Table) -> Table:
    return Table(table.columns, table.all_rows()[:ROWS], table.prepare)


def _images(tables: Sequence[Table], each: int) -> Tensor:
    return torch.cat([table.rows(table.all_rows()[:each]).x for table in tables])


def _show(axis: Axes, image: Tensor, like: Tensor) -> None:
    """An image without axes; grey levels and colours are stretched to those of ``like``."""
    low, high = float(like.min()), float(like.max())
    pixels = ((image - low) / max(high - low, 1e-6)).clamp(0, 1).permute(1, 2, 0).numpy()
    axis.imshow(pixels[..., 0] if pixels.shape[2] == 1 else pixels, cmap="gray", vmin=0, vmax=1)
    axis.set(xticks=[], yticks=[])
    axis.grid(False)
    for side in axis.spines.values():
        side.set_visible(False)
