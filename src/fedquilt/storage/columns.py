"""The logs of a finished run as Parquet files beside the lines of JSON they are made of."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from fedquilt.core.plain import JSON
from fedquilt.storage.files import to_json, write_atomic
from fedquilt.storage.logs import LOGS, row_in


def write_tables(folder: Path) -> list[str]:
    """Write ``metrics/NAME.parquet`` of every ``metrics/NAME.jsonl`` that has a row; returns what could not be written,
    in words: the lines of JSON are there, and a run is worth more than their copy.

    Columns are typed as Arrow reads them. A column of mixed types (client ids that are numbers and names, say) holds
    JSON texts.
    """
    from pyarrow import ArrowException, parquet  # only at the end of a run: importing it takes a while

    problems = []
    for name in LOGS:
        log = folder / name
        if log.parent != folder and log.exists() and log.stat().st_size:
            file = io.BytesIO()
            try:
                parquet.write_table(_read(folder, name), file)
            except ArrowException as error:
                problems.append(f"{name} could not be written as Parquet: {error}")
                continue
            write_atomic(log.with_suffix(".parquet"), file.getvalue(), folder)
    return problems


def _read(folder: Path, name: str) -> Any:
    """A log as an Arrow table."""
    import pyarrow
    from pyarrow import json as lines

    try:
        found = lines.read_json(folder / name, lines.ReadOptions(use_threads=False, block_size=1 << 24))
        if not any(_empty(field.type) for field in found.schema):
            return found
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError):
        pass
    rows = [row for line in (folder / name).read_bytes().splitlines() if (row := row_in(line)) is not None]
    names = dict.fromkeys(name for row in rows for name in row)
    return pyarrow.table({name: _column([row.get(name) for row in rows]) for name in names})


def _empty(kind: object) -> bool:
    """Whether a type is a record without fields, which Parquet cannot hold."""
    return str(kind) == "struct<>"


def _column(values: list[JSON]) -> Any:
    import pyarrow

    try:
        found = pyarrow.array(values)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError):
        found = None
    if found is None or "struct<" in str(found.type):
        return pyarrow.array([None if value is None else to_json(value) for value in values])
    return found
