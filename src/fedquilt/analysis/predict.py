"""Answers of a run's models to rows that it never saw.

The rows are read and prepared as the run's own were: files, folders of images, arrays, frames, texts.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedquilt.analysis.afterwards import config_in
from fedquilt.analysis.run_models import RunModels
from fedquilt.config.config import Config
from fedquilt.config.data import federation_of
from fedquilt.core.columns import PerColumn, blank_of, own, sums_of
from fedquilt.core.exchange import Method
from fedquilt.core.plain import Array
from fedquilt.core.table import Batch, Prepare, Table
from fedquilt.data import imports
from fedquilt.data.checks import input_column
from fedquilt.data.imports.columns import Targets, joined
from fedquilt.data.imports.columns import labels as numbered
from fedquilt.data.imports.tables import cells_of
from fedquilt.data.npz import load
from fedquilt.data.reading import Reading
from fedquilt.data.sources.formats.pictures import ENDINGS, decoded
from fedquilt.data.sources.formats.text import encoded
from fedquilt.data.tabular import stored_like
from fedquilt.errors import InputError, did_you_mean
from fedquilt.metrics.evaluation import score_row
from fedquilt.metrics.table import use_task
from fedquilt.models import tokenise
from fedquilt.rounds.client import one_thread
from fedquilt.runs.inputs import BY_RECIPE, Inputs, inputs_in
from fedquilt.runs.preparation import kept_in
from fedquilt.storage.files import write_atomic
from fedquilt.tasks import Task

GREY = np.array([0.299, 0.587, 0.114])  # weights of red, green and blue (ITU-R BT.601)
TABLES = (".csv", ".csv.gz", ".parquet")
Cells = Mapping[str, Array]


@dataclass(frozen=True)
class NewRows:
    """Rows ready for a run's models, their names (files, or numbers), and labels where they are known."""

    names: tuple[str, ...]
    table: Table
    labels: Tensor | None


@dataclass(frozen=True)
class RunReader:
    """How a run's rows were read and prepared.

    Args:
        inputs: What the run keeps of it.
        table: How its columns are prepared, if its rows are a table.
        again: The preparer by the recipe and its data, where the run keeps none.
        task: What the run's models make of a row; None for scores of classes.
    """

    inputs: Inputs
    table: PerColumn | None
    again: Callable[[], Prepare | None]
    task: Task | None = None

    @property
    def reading(self) -> Reading:
        """What the run's numbers stand for."""
        return self.inputs.reading or Reading()

    def read(self, data: Any) -> NewRows:
        """New rows.

        Args:
            data: A folder of images (at any depth; grey or colour as the run's were), an .npz with x, and y if known, a
                table (.csv, .parquet) with the columns of the run's, a .txt with one text in each line; or in Python an
                array, a data frame, or a list of texts.
        """
        names, x, labels = self._path(Path(data)) if isinstance(data, str | Path) else self._given(data)
        if not len(x):
            raise InputError("There are no samples to predict.")
        return NewRows(names or tuple(map(str, range(len(x)))), self._prepared(x), labels)

    def _path(self, path: Path) -> tuple[tuple[str, ...], Any, Tensor | None]:
        if path.is_dir():
            return self._pictures(path)
        if not path.is_file():
            raise InputError(f"There is no '{path}'. Give an .npz, a table (.csv, .parquet), a .txt, or a folder.")
        if path.name.endswith(TABLES):
            return (), *self._cells(imports.cells(path), str(path))
        if path.suffix == ".txt":
            return (), self._texts(path.read_text(encoding="utf-8").splitlines(), str(path)), None
        found = load(path)
        if "x" not in found:
            raise InputError(f"{path} has the keys {', '.join(sorted(found)) or '(none)'}. It needs x, the rows.")
        y = found.get("y")
        return (), found["x"], None if y is None else self._labels(y, len(found["x"]), f"{path}: y")

    def _given(self, data: Any) -> tuple[tuple[str, ...], Any, Tensor | None]:
        if hasattr(data, "columns") or hasattr(data, "column_names"):  # a data frame
            where = f"The {type(data).__name__}"
            return (), *self._cells(cells_of(data, where), where)
        if isinstance(data, Sequence) and len(data) and all(isinstance(text, str) for text in data):
            return (), self._texts(data, "The list"), None
        return (), data if isinstance(data, Tensor) else np.asarray(data), None

    # Tables and texts

    def _cells(self, named: Cells, where: str) -> tuple[Any, Tensor | None]:
        x = self._of_table(named, where)
        label = self.reading.label or "label"
        known = self.columns.columns if self.columns else ()
        if self.task is not None and self.task.numeric:
            wanted = tuple(label.split(", "))
            there = all(name in named for name in wanted)
            return x, self._labels(Targets(wanted)(named, where), len(x), where) if there else None
        y = None if label in (*self.reading.text, *(c.name for c in known)) else named.get(label)
        return x, None if y is None else self._labels(y, len(x), f"{where}, column {label!r}")

    @property
    def columns(self) -> PerColumn | None:
        """The columns of a table, also of one whose numbers were taken as they are."""
        names = self.reading.columns
        return self.table or (blank_of(len(names), "none", names) if names else None)

    def _of_table(self, named: Cells, where: str) -> Any:
        if self.columns is not None:
            return stored_like(named, where, self.columns)
        if not self.reading.length:
            raise InputError(f"{where} is a table, but the run's rows were {_shown(self.inputs.stored)}: give an .npz.")
        columns = self.reading.text or ("text",)
        lacking = [n for n in columns if n not in named]
        if lacking:
            raise InputError(f"{where} has no column {lacking[0]!r}, the run's text. It has {', '.join(named)}.")
        return self._texts(joined(named, columns), where)

    def _texts(self, texts: Sequence[str], where: str) -> Array:
        reading = self.reading
        if not reading.length:
            raise InputError(
                f"{where} holds texts, but the run kept no vocabulary: its rows were {_shown(self.inputs.stored)}. "
                "Give such rows in an .npz with x."
            )
        if reading.tokeniser is not None:
            return tokenise(texts, reading.tokeniser, reading.length)
        return encoded(texts, reading.vocabulary, reading.length)

    def _labels(self, y: Array, rows: int, what: str) -> Tensor | None:
        """Class numbers (targets) of labels as they stand there; None where nobody can know them."""
        if self.task is not None:
            found = self.task.targets(y, what)
            if len(found) != rows or self.task.outputs(found) != self.inputs.classes:
                raise InputError(
                    f"{what} is of shape {tuple(found.shape)}, unlike the targets of {rows} rows of the run."
                )
            return found
        classes = self.inputs.classes
        if classes is None or (y.dtype.kind in "UO" and all(not str(v).strip() for v in y)):
            return None
        if y.shape != (rows,):
            raise InputError(f"{what} should be one label for each of {rows} rows, got the shape {y.shape}.")
        numbers, words = numbered(y, what)
        if words:
            return self._by_name(y, what)
        if not 0 <= int(numbers.min()) <= int(numbers.max()) < classes:
            raise InputError(
                f"{what} goes from {numbers.min()} to {numbers.max()}; the run knows the classes 0 to {classes - 1}."
            )
        return torch.from_numpy(numbers)

    def _by_name(self, y: Array, what: str) -> Tensor:
        names = self.reading.number_of
        odd = next((str(v) for v in y if str(v) not in names), None)
        if odd is not None:
            known = ", ".join(list(names)[:12]) or "as whole numbers only"
            raise InputError(
                f"{what} has {odd!r}{did_you_mean(odd, names, end='.')} The run knows the classes {known}."
            )
        return torch.tensor([names[str(v)] for v in y])

    # Images

    def _pictures(self, path: Path) -> tuple[tuple[str, ...], Array, Tensor | None]:
        """The images of a folder, stored as the run's were; folders named as its classes are labels."""
        channels, side = self._image_size()
        files = sorted(p for p in path.rglob("*") if p.suffix.lower() in ENDINGS and not p.name.startswith("."))
        if not files:
            raise InputError(f"{path} holds no images ({', '.join(sorted(ENDINGS))}).")
        images = decoded(files, side)
        if channels == 1:
            images = np.rint(np.tensordot(images, GREY, axes=(1, 0)))[:, None].clip(0, 255).astype(np.uint8)
        folders, names = np.array([p.parent.name for p in files]), self.reading.number_of
        labels = self._labels(folders, len(files), str(path)) if names and set(folders) <= names.keys() else None
        return tuple(str(p.relative_to(path)) for p in files), images, labels

    def _image_size(self) -> tuple[int, int]:
        """How many channels the run's images have, and how many pixels a side."""
        shape, dtype = self.inputs.stored or ((), "")
        if dtype != "uint8" or len(shape) != 3 or shape[1] != shape[2] or shape[0] not in (1, 3):
            raise InputError(
                f"The run's inputs are not square byte images but {_shown(self.inputs.stored)}; give an .npz with x."
            )
        return shape[0], shape[1]

    # Prepared

    def _prepared(self, given: Any) -> Table:
        x = input_column(given, "the new rows", table=self.table is not None)
        if self.table is not None:
            return Table({"x": x}, None, self._by_column(x, self.table))
        these = (tuple(x.shape[1:]), str(x.dtype).removeprefix("torch."))
        wanted = self.inputs.stored or (self.inputs.shape, self.inputs.dtype)
        if these != wanted:
            raise InputError(f"The rows are {_shown(these)}, those of the run were {_shown(wanted)}.")
        return Table({"x": x}, None, self.again() if self.inputs.prepare == BY_RECIPE else self.inputs.preparer)

    def _by_column(self, x: Tensor, table: PerColumn) -> PerColumn:
        """Where each client took its own numbers, those of these rows."""
        if x.dim() != 2 or x.shape[1] != len(table.columns) or not x.is_floating_point():
            raise InputError(
                f"The rows are {x.dtype!s} of shape {tuple(x.shape[1:])}, those of the run had {len(table.columns)} "
                "columns of floats."
            )
        return own(table, sums_of(x, table.columns)) if table.scope == "clients" else table


def _shown(stored: tuple[tuple[int, ...], str] | None) -> str:
    return "at other sites" if stored is None else f"{stored[1]} of shape {stored[0]}"


ROWS = 200  # per forward pass


@dataclass(frozen=True)
class Answers:
    """What a model says of each row.

    Args:
        names: Of the rows: a file, or a number.
        probabilities: Of every class, [rows, classes].
        class_names: Of the classes; () where they are numbers alone.
        accuracy: Where labels are known.
        note: What one should know of the model; '' if nothing.
    """

    names: tuple[str, ...]
    probabilities: Tensor
    class_names: tuple[str, ...] = ()
    accuracy: float | None = None
    note: str = ""

    @property
    def classes(self) -> Tensor:
        """The most probable class of each row."""
        return self.probabilities.argmax(1)

    @property
    def confidence(self) -> Tensor:
        """Its probability."""
        return self.probabilities.max(1).values

    @property
    def labels(self) -> list[str]:
        """The name of the class of each row, or its number where classes have no names."""
        return [self.class_names[k] if self.class_names else str(k) for k in self.classes.tolist()]

    def csv(self) -> str:
        """As a table: the row, its class (also by name, where classes have names), how sure, and all probabilities."""
        text = io.StringIO()
        writer = csv.writer(text)
        known = self.class_names or tuple(map(str, range(self.probabilities.shape[1])))
        writer.writerow(
            ("row", "class", *(("name",) if self.class_names else ()), "confidence", *(f"p({n})" for n in known))
        )
        parts = (self.names, self.classes.tolist(), self.labels, self.confidence.tolist(), self.probabilities.tolist())
        for row, number, label, sure, shares in zip(*parts, strict=True):
            named = (label,) if self.class_names else ()
            writer.writerow((row, number, *named, f"{sure:.6f}", *(f"{p:.6f}" for p in shares)))
        return text.getvalue()

    def save(self, path: str | Path) -> None:
        """Write them as CSV."""
        write_atomic(Path(path), self.csv().encode())


@dataclass(frozen=True)
class TaskAnswers:
    """What a model of another task than one class label for each row makes of each row.

    Args:
        names: Of the rows: a file, or a number.
        values: In the units of targets, [rows, targets].
        target_names: Of the columns.
        metrics: Of these rows, where targets are known.
        note: What one should know of the model; '' if nothing.
    """

    names: tuple[str, ...]
    values: Tensor
    target_names: tuple[str, ...]
    metrics: Mapping[str, float]
    note: str = ""

    def csv(self) -> str:
        """As a table: the row, and its answers."""
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(("row", *self.target_names))
        for name, values in zip(self.names, self.values.tolist(), strict=True):
            writer.writerow((name, *(f"{v:.6g}" for v in values)))
        return text.getvalue()

    def save(self, path: str | Path) -> None:
        """Write them as CSV."""
        write_atomic(Path(path), self.csv().encode())


def predict(
    folder: str | Path, data: Any, model: str = "global", *, method: Method | None = None
) -> Answers | TaskAnswers:
    """Answer new rows with a model of a run, as its evaluations do.

    Rows are read and prepared as the run's were: standardised by the same numbers, encoded by the same categories and
    vocabulary, resized and normalised alike. The run's own data are not needed.

    Args:
        folder: Of the run; of one that is not over, its newest snapshot counts.
        data: A folder of images, an .npz with x (and y, for the accuracy), a table (.csv, .parquet), a .txt with one
            text in each line; an array, a data frame, or a list of texts.
        model: 'global', 'best' (the global one of the best round), 'cluster:2' or 'client:7'.
        method: That of the run, where a script began it with a network or method of its own.

    Example:
        >>> predict("runs/quick-1a2b3c4d", "new.npz", "client:7").classes  # doctest: +SKIP
        tensor([1, 0, 4])
    """
    run = RunModels.of(folder, method)
    found = run.model(model)
    if getattr(run.learned.method, "reconstructs", False):
        raise InputError(
            f"{run.method_name} learns features, not classes. Compute them with "
            f"load_model({str(folder)!r}).embed(images)."
        )
    task = getattr(getattr(run.learned.method, "net", None), "task", None)
    rows = reader_of(run.folder, run.config, run.inputs, task).read(data)
    try:
        if task is not None and task.kind != "classification":
            return _by_task(rows, run.inputs, task, partial(run.learned.method.predict, found.params), run.unfinished)
        return answered(rows, run.inputs, partial(run.learned.method.predict, found.params), note=run.unfinished)
    except (RuntimeError, IndexError) as error:
        raise InputError(f"The rows do not fit the run's model: {str(error).splitlines()[0]}") from error


def _by_task(rows: NewRows, inputs: Inputs, task: Task, score: Callable[[Batch], Tensor], note: str) -> TaskAnswers:
    """The answers of a model in the units of targets, and how good they are."""
    with one_thread(), torch.inference_mode():
        out = torch.cat([score(block) for block in rows.table.blocks(ROWS)])
    label = inputs.reading.label if inputs.reading else None
    named = () if label is None else tuple(label.split(", "))
    columns = named if len(named) == out.shape[1] else tuple(f"target {i}" for i in range(out.shape[1]))
    use_task(task)
    known = {} if rows.labels is None else score_row(task.scores(out, rows.labels))
    return TaskAnswers(rows.names, task.answers(out), columns, {n: v for n, v in known.items() if n != "rows"}, note)


def reader_of(
    folder: Path, config: Config | None = None, inputs: Inputs | None = None, task: Task | None = None
) -> RunReader:
    """How the rows of a run were read."""
    settings, kept = config or config_in(folder), kept_in(folder)

    def data() -> Any:
        return federation_of(settings)

    table = None if kept is None else kept.prepare
    return RunReader(inputs or inputs_in(folder, data), table, lambda: data().prepare, task)


def answered(
    rows: NewRows,
    inputs: Inputs,
    score: Callable[[Batch], Tensor],
    finish: Callable[[Tensor], Tensor] | None = None,
    note: str = "",
) -> Answers:
    """The answers of a model, whose scores ``finish`` may change."""
    with one_thread(), torch.inference_mode():
        scores = torch.cat([score(block) for block in rows.table.blocks(ROWS)])
        sure = (scores if finish is None else finish(scores)).softmax(1)
    right = None if rows.labels is None else float((sure.argmax(1) == rows.labels).double().mean())
    return Answers(rows.names, sure, inputs.names, right, note)
