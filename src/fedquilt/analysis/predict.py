"""Answers of a run's models to rows that it never saw."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedquilt.analysis.afterwards import config_in
from fedquilt.analysis.new_rows import NewRows, Reader
from fedquilt.analysis.run_models import RunModels
from fedquilt.config.config import Config
from fedquilt.config.data import federation_of
from fedquilt.core.exchange import Method
from fedquilt.core.table import Batch
from fedquilt.errors import InputError
from fedquilt.rounds.client import one_thread
from fedquilt.runs.inputs import Inputs, inputs_in
from fedquilt.runs.preparation import kept_in
from fedquilt.storage.files import write_atomic

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


def predict(folder: str | Path, data: Any, model: str = "global", *, method: Method | None = None) -> Answers:
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
            f"{run.method_name} learns features, no classes. They are made by "
            f"load_model({str(folder)!r}).embed(images)."
        )
    rows = reader_of(run.folder, run.config, run.inputs).read(data)
    try:
        return answered(rows, run.inputs, partial(run.learned.method.predict, found.params), note=run.unfinished)
    except (RuntimeError, IndexError) as error:
        raise InputError(f"The rows do not fit the run's model: {str(error).splitlines()[0]}") from error


def reader_of(folder: Path, config: Config | None = None, inputs: Inputs | None = None) -> Reader:
    """How the rows of a run were read."""
    settings, kept = config or config_in(folder), kept_in(folder)

    def data() -> Any:
        return federation_of(settings)

    table = None if kept is None else kept.prepare
    return Reader(inputs or inputs_in(folder, data), table, lambda: data().prepare)


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
