"""From checked settings to clients and their data.

Rows set aside for pretraining, so that no client ever holds an image that the backbone was trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fedquilt.config.config import Config, Data, Kinded, check_options
from fedquilt.config.options import made
from fedquilt.config.tasks import task_of
from fedquilt.config.texts import asked, columns_of_text, source_of_texts
from fedquilt.core.columns import PerColumn, blank_of
from fedquilt.core.plain import Array, Row
from fedquilt.core.seed import Seed
from fedquilt.core.task import Task
from fedquilt.data import (
    Arrays,
    Federation,
    Pixels,
    Stream,
    Transforms,
    held_out,
    imports,
    long_tailed,
    read,
    with_local_tests,
    without_labels,
)
from fedquilt.data.pairs import pair_columns
from fedquilt.data.sources.own import arrays_of_own, given
from fedquilt.data.tabular import fit, scope_of
from fedquilt.errors import ConfigError, InputError
from fedquilt.own_code import is_reference, unpinned


def rows_aside(count: int, share: float, seed: int) -> Array:
    """The row numbers, ascending, that are set aside of so many; the same for everybody who asks with this seed."""
    many = int(share * count)
    if not 0 < many < count:
        raise InputError(f"data.pretraining = {share} sets {many} of {count} rows aside; both parts need rows.")
    return np.sort(Seed(seed).fold("pretraining").numpy().permutation(count)[:many])


def set_aside(arrays: Arrays, share: float, seed: int) -> tuple[Arrays, Arrays]:
    """The training samples for pretraining, and the others, for clients. The common test set stays with the others."""
    chosen = np.zeros(len(arrays.y), np.bool_)
    chosen[rows_aside(len(arrays.y), share, seed)] = True
    return replace(_rows(arrays, chosen), x_test=None, y_test=None), _rows(arrays, ~chosen)


def _rows(arrays: Arrays, chosen: Array) -> Arrays:
    return replace(arrays, x=arrays.x[chosen], y=arrays.y[chosen], user=_of(arrays.user, chosen))


D = TypeVar("D", Federation, Stream)
_READING = ("label", "user", "features", "categories", "text", "size")  # how a file or folder of one's own is read


def federation_of(config: Config) -> Federation | Stream:
    """The clients that take part and their data: a federation, or a stream."""
    return federations_of(config)[0]


def federations_of(config: Config) -> tuple[Federation | Stream, Federation | Stream | None]:
    """The clients that take part, and the newcomers that never do (None without any)."""
    if config.script is not None:
        return config.script.made_federation(), None
    data = config.data
    if config.stream is not None and data.common_valid:
        raise InputError("data.common_valid: a stream has no validation samples at the server; leave it out.")
    if config.stream is not None:
        return _parted(data, _stream(config))
    return _parted(data, divided(data, task=task_of(config.task)))


def _parted(data: Data, whole: D) -> tuple[D, D | None]:
    """Who takes part and who never does, prepared alike."""
    part, new = held_out(whole, data.newcomers, data.seed) if data.newcomers else (whole, None)
    part, new = _fitted(part, new)
    part = without_labels(part, data.unlabelled, data.seed)
    return part, None if new is None else without_labels(new, data.unlabelled, data.seed)


def divided(
    data: Data, source: str | None = None, classes: Sequence[int] | None = None, task: Task | None = None
) -> Federation:
    """A federation by these settings: of another data set, or of some classes only, if asked for; for a ``task``."""
    if task is not None:
        _refuse_classes(data, task)
    if source is None and (whole := _come_divided(data, classes)) is not None:
        if task is not None and whole.task is None:
            raise InputError(f"{called(data)} gives a federation without a task. Give it one there: task=...")
        return _shifted(data, whole)
    arrays, held = _rows_to_divide(data, source, classes, task)
    who = {"natural": True} if data.by_user else {"partition": made("partition", data.partition, "data.partition")}
    federation = Federation.from_source(
        arrays,
        clients=data.clients,
        test=data.test,
        valid=data.valid,
        seed=data.seed,
        drop_empty=data.drop_empty,
        task=task,
        **who,
        **prepare_of(data, arrays),
    )
    if held is not None:
        table = isinstance(federation.prepare, PerColumn)
        federation = replace(federation, server_columns=pair_columns(*held, "common_valid", table, task))
    if data.local_tests:
        federation = with_local_tests(federation, data.seed)
    return _shifted(data, federation)


def _refuse_classes(data: Data, task: Task) -> None:
    """Raise for what only rows of one class each can have."""
    wrong = next((n for n in ("long_tail", "local_tests", "unlabelled", "pretraining") if getattr(data, n)), None)
    if wrong is None and data.shift is not None and data.shift.kind == "label_permutation":
        wrong = "shift"
    if wrong is not None and task.kind != "classification":
        raise InputError(f"data.{wrong} goes by the class of each row, and the task is {task.name}. Leave it out.")


def _come_divided(data: Data, classes: Sequence[int] | None) -> Federation | None:
    """The federation of data that are divided over clients already, in files or by the user's own code."""
    if data.path is not None and imports.is_split(Path(data.path)):
        return _already_divided(data, classes)
    whole = given(*_own(data.source)) if data.source and is_reference(data.source.kind) else None
    if not isinstance(whole, Federation):
        return None
    _refuse_dividing(data, classes, f"{called(data)} gives a federation, divided over clients already")
    return whole


def _rows_to_divide(
    data: Data, source: str | None, classes: Sequence[int] | None, task: Task | None
) -> tuple[Arrays, tuple[Array, Array] | None]:
    """The rows that clients are to have, and those held back from all of them to validate the common model."""
    arrays, held = _arrays(data, source, task), None
    _check_labels(data, arrays, classes)
    if classes is not None:
        arrays = _only(arrays, classes)
    if data.common_valid:
        arrays, held = _held_back(arrays, data.common_valid, "common valid", data.seed, task)
    if data.long_tail is not None:
        arrays = long_tailed(arrays, made("long_tail", data.long_tail, "data.long_tail"), data.seed)
    return arrays, held


def _own(source: Kinded) -> tuple[str, Row]:
    """A function of the user's own that gives data, and its arguments."""
    options, problems = check_options("dataset", source.kind, source.options, "data.source")
    if problems:
        raise ConfigError(problems)
    return source.kind, options


def called(data: Data) -> str:
    """What people call the data."""
    return unpinned(data.source.kind) if data.source is not None else str(data.path)


def _check_labels(data: Data, arrays: Arrays, classes: Sequence[int] | None) -> None:
    """Raise if something is asked for that goes by labels, and there are none."""
    asked_for = ("long_tail", "common_test", "common_valid", "local_tests", "unlabelled")
    wrong = next((f"data.{name}" for name in asked_for if getattr(data, name)), None)
    if classes is not None:
        wrong = "a stream by class"
    if wrong is not None and not arrays.labelled:
        raise InputError(f"{wrong} goes by labels, and {arrays.name} has none. Leave it out.")


def _shifted(data: Data, federation: Federation) -> Federation:
    if data.shift is None:
        return federation
    shifted: Federation = made("shift", data.shift, "data.shift")(federation, data.seed)
    return shifted


def _already_divided(data: Data, classes: Sequence[int] | None) -> Federation:
    """A PFLlib folder."""
    _refuse_dividing(data, classes, f"{data.path} is divided over clients already, by PFLlib")
    return Federation.from_pfllib(str(data.path), data.valid, data.seed, drop_empty=data.drop_empty)


def _refuse_dividing(data: Data, classes: Sequence[int] | None, what: str) -> None:
    """Who has what is settled, so nothing else may settle it."""
    fixed = (
        "clients",
        "limit",
        "long_tail",
        "pretraining",
        *_READING,
        "transforms",
        "common_test",
        "common_valid",
        "local_tests",
    )
    other = [name for name in fixed if getattr(data, name)]
    if not data.by_user or other:
        wrong = f"data.{other[0]} cannot be had there: leave it out" if data.by_user else "set data.by_user = true"
        raise InputError(f"{what}; {wrong}.")
    if classes is not None:
        raise InputError(f"{what}; use stream.each = false.")


def for_pretraining(data: Data, valid: float) -> Federation:
    """The rows set aside for pretraining: one client, with a share of them for validation."""
    if data.path is not None and imports.is_split(Path(data.path)):
        raise InputError(f"{data.path} is divided over clients already: there is nothing to set aside.")
    if not data.pretraining:
        raise InputError("Which rows are for pretraining? Set the share of them, for example data.pretraining=0.5.")
    arrays, _ = set_aside(_read(data, None), data.pretraining, data.seed)
    whole = Federation.from_source(arrays, clients=1, test=0.0, valid=valid, seed=data.seed, **prepare_of(data, arrays))
    return _fitted(whole, None)[0]


def _arrays(data: Data, source: str | None, task: Task | None = None) -> Arrays:
    """The rows, at most ``limit`` of them, and of the common test set, whose scoring would take the most time else."""
    arrays = _read(data, source, task)
    if data.pretraining:
        arrays = set_aside(arrays, data.pretraining, data.seed)[1]
    if data.limit is not None:
        arrays = _limited(arrays, data.limit, Seed(data.seed))
    return _with_test(arrays, data, task) if data.common_test else arrays


def _limited(arrays: Arrays, limit: int, seed: Seed) -> Arrays:
    """At most so many rows, drawn at random, and as many of the common test set."""
    if limit < len(arrays.y):
        arrays = _rows(arrays, np.sort(seed.fold("limit").numpy().choice(len(arrays.y), limit, replace=False)))
    x, y = arrays.x_test, arrays.y_test
    if x is None or y is None or limit >= len(y):
        return arrays
    rows = np.sort(seed.fold("limit", "test").numpy().choice(len(y), limit, replace=False))
    return replace(arrays, x_test=x[rows], y_test=y[rows], user_test=_of(arrays.user_test, rows))


def _of(users: Array | None, rows: Array) -> Array | None:
    """Whose these rows are, where that is known."""
    return None if users is None else users[rows]


def _read(data: Data, source: str | None, task: Task | None = None) -> Arrays:
    """All rows there are."""
    if source is None and data.path is not None:
        arrays = imports.open(
            Path(data.path),
            None
            if data.label is None and not _columns(data.path)
            else imports.labelled(data.label or "label", {"task": task}),
            data.user,
            data.size,
            data.features,
            columns_of_text(data),
            data.categories or (),
        )
    else:
        own = [name for name in _READING if getattr(data, name) is not None]
        if own:
            raise InputError(f"data.{own[0]} goes with data.path: it says how your own file or folder is read.")
        known = source or (data.source.kind if data.source is not None else "digits")
        if source is None and data.source is not None and is_reference(known):
            arrays = arrays_of_own(*_own(data.source))
        else:
            arrays = source_of_texts(data, known) if asked(data) else read(known)
    return arrays


def _columns(path: str) -> bool:
    """Whether a file has columns with names."""
    return path.endswith((".csv", ".csv.gz", ".parquet"))


def _with_test(arrays: Arrays, data: Data, task: Task | None) -> Arrays:
    """The same with a part of each class as a common test set, before any long tail."""
    if arrays.y_test is not None:
        raise InputError(f"{arrays.name or called(data)} has a common test set already: leave data.common_test out.")
    rest, (x, y) = _held_back(arrays, data.common_test, "common test", data.seed, task)
    return replace(rest, x_test=x, y_test=y)


def _held_back(
    arrays: Arrays, share: float, what: str, seed: int, task: Task | None
) -> tuple[Arrays, tuple[Array, Array]]:
    """The rows without a part of each class (or of like targets), and that part."""
    labels = arrays.y if task is None else task.strata(arrays.y)
    order = Seed(seed).fold(what).numpy().permutation(len(arrays.y))
    stays = np.ones(len(order), np.bool_)
    for label in np.unique(labels):
        own = order[labels[order] == label]
        stays[own[: int(share * len(own))]] = False
    kept, held = np.flatnonzero(stays), np.flatnonzero(~stays)
    if not len(held):
        raise InputError(f"data.{what.replace(' ', '_')} = {share} is less than one row of any class.")
    return _rows(arrays, kept), (arrays.x[held], arrays.y[held])


def _only(arrays: Arrays, classes: Sequence[int]) -> Arrays:
    """The rows of these classes, also in the common test set; how many classes there are stays."""
    kept = np.isin(arrays.y, list(classes))
    if not kept.any():
        raise InputError(f"There is no row of the classes {list(classes)}.")
    count = arrays.classes if arrays.classes is not None else int(arrays.y.max()) + 1
    chosen = replace(_rows(arrays, kept), classes=count)
    if arrays.x_test is None or arrays.y_test is None:
        return chosen
    there = np.isin(arrays.y_test, list(classes))
    if not there.any():
        return replace(chosen, x_test=None, y_test=None)
    whose = _of(arrays.user_test, there)
    return replace(chosen, x_test=arrays.x_test[there], y_test=arrays.y_test[there], user_test=whose)


def prepare_of(data: Data, arrays: Arrays) -> dict[str, Any]:
    """How rows are prepared, as an option of a federation; nothing when they stay as they are."""
    mean, std = (tuple(v) if isinstance(v, list) else v for v in (data.mean, data.std))
    images, name = arrays.x.dtype.name == "uint8", arrays.name or called(data)
    if not images and (mean, std) != (0.0, 1.0):
        raise InputError(f"data.mean and data.std are for images stored as bytes; {name} holds {arrays.x.dtype}.")
    pixels, odd = Pixels(mean, std), _no_numbers(arrays)
    if data.transforms:
        if odd:
            raise InputError(
                f"data.transforms takes numbers, and {name} has {odd}. Leave data.transforms out: tables are "
                "standardised, encoded and filled in without."
            )
        return {"prepare": Transforms(_steps(data), pixels)}
    table = _blank_table(data, arrays, bool(odd))
    if table is not None:
        return {"prepare": table}
    return {"prepare": pixels} if images else {"standardise": None}


def _blank_table(data: Data, arrays: Arrays, odd: bool) -> PerColumn | None:
    """How a table's columns are prepared, without its numbers, which come when it is settled who takes part; None for
    rows that stay as they are, and are no ``odd`` ones: those must be prepared."""
    scope = None if arrays.ready else scope_of(data.standardise)
    if not _is_table(arrays) or scope is None or (scope == "none" and not odd):
        return None
    return blank_of(arrays.x.shape[1], scope) if arrays.table is None else replace(arrays.table, scope=scope)


def _steps(data: Data) -> tuple[Any, ...]:
    return tuple(made("transform", t, f"data.transforms.{i}") for i, t in enumerate(data.transforms))


def _is_table(arrays: Arrays) -> bool:
    return arrays.x.ndim == 2 and arrays.x.dtype.kind == "f"


def _no_numbers(arrays: Arrays) -> str:
    """What a table has beside numbers, in words; '' where there is nothing else."""
    if arrays.table is not None and any(c.category for c in arrays.table.columns):
        return "categories"
    columns = [x for x in (arrays.x, arrays.x_test) if x is not None] if _is_table(arrays) else []
    return "missing cells" if any(bool(np.isnan(x).any()) for x in columns) else ""


def _stream(config: Config) -> Stream:
    choice = config.stream
    if choice is None:
        raise AssertionError("asked for a stream that is not there")
    shift = choice.shift
    change = None if shift is None else made("shift", shift, "stream.shift")
    stream: Stream = made("stream", choice, "stream")(
        partial(divided, config.data, task=task_of(config.task)),
        None if change is None else lambda before: change(before, config.data.seed),
    )
    return stream


def _fitted(part: D, new: D | None) -> tuple[D, D | None]:
    """With the numbers that a normalisation takes from the training samples of those that take part."""
    tasks = part.tasks if isinstance(part, Stream) else (part,)
    if isinstance(part.prepare, PerColumn):
        if part.prepare.scope == "clients" and isinstance(part, Stream):
            raise InputError("data.standardise = 'clients': in a stream, rows are standardised by 'federation' only.")
        numbers = fit(tasks, part.prepare)
        return _standardised(part, numbers), None if new is None else _standardised(new, numbers)
    if not isinstance(part.prepare, Transforms):
        return part, new
    prepare = part.prepare.fitted([task.site(client, 0).train for task in tasks for client in task.ids])
    return _prepared(part, prepare), None if new is None else _prepared(new, prepare)


def _standardised(data: D, numbers: PerColumn) -> D:
    if isinstance(data, Stream):
        return replace(data, tasks=tuple(task.prepared(numbers) for task in data.tasks))
    return data.prepared(numbers)


def _prepared(data: D, prepare: Transforms) -> D:
    if isinstance(data, Stream):
        return replace(data, tasks=tuple(replace(task, prepare=prepare) for task in data.tasks))
    return replace(data, prepare=prepare)
