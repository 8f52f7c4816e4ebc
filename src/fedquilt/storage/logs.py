"""The logs of a run: lines of JSON, one row each; what a row must have, and how much of a log can be trusted.

A log may have been cut, removed or written over since the run wrote it. Readers take the rows that are sound and pass
over the rest; what a snapshot or a result vouches for is the number of bytes and their CRC-32. A finished run has its
logs as Parquet files too.
"""

from __future__ import annotations

import io
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedquilt.core.plain import JSON, Row
from fedquilt.storage.files import to_json, write_atomic

ROUNDS, CLIENTS, UPDATES = "metrics/rounds.jsonl", "metrics/clients.jsonl", "metrics/client_updates.jsonl"
CLUSTERS, TRAFFIC, PHASES = "metrics/clusters.jsonl", "metrics/traffic.jsonl", "metrics/phases.jsonl"
WITHHELD, LEDGER = "metrics/withheld.jsonl", "dropped.jsonl"
LOGS = (ROUNDS, CLIENTS, UPDATES, CLUSTERS, TRAFFIC, PHASES, WITHHELD, LEDGER)
WERE = {"metrics/visits.jsonl": UPDATES, "ledger.jsonl": LEDGER}  # logs, and fields of their rows, as 0.1 named them
_FIELDS_WERE = {"examples": "samples", "trip": "place"}
ONE_A_ROUND = (ROUNDS, CLUSTERS, WITHHELD)
_LONGEST = 10**9  # rounds
_LARGEST = 1e300
_BLOCK = 1 << 20


# Rows


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -_LARGEST <= value <= _LARGEST


def _is_id(value: object) -> bool:
    if isinstance(value, list):
        return all(_is_id(part) for part in value)
    return isinstance(value, int | str) and not isinstance(value, bool)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_pairs(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(v, list) and len(v) == 2 and _is_id(v[0]) for v in value)


def _is_parts(value: object) -> bool:
    sizes = value.values() if isinstance(value, dict) else [None]
    return all(isinstance(pair, list) and len(pair) == 2 and all(map(_is_number, pair)) for pair in sizes)


def _are(kind: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list) and all(kind(part) for part in value)


def _is_group(value: object) -> bool:
    return isinstance(value, dict) and all(v is None or _is_number(v) for v in value.values())


_NEEDED: dict[str, dict[str, Callable[[object], bool]]] = {
    ROUNDS: {"bytes_up": _is_number, "bytes_down": _is_number, "seconds": _is_number, "clients": _is_number},
    CLIENTS: {"client": _is_id, "model": _is_text, "split": _is_text},
    UPDATES: {
        "client": _is_id,
        "exchange": _is_text,
        "seconds": _is_number,
        "samples": _is_number,
        "bytes_up": _is_number,
        "bytes_down": _is_number,
    },
    CLUSTERS: {"k": _is_number},
    TRAFFIC: {
        "exchange": _is_text,
        "direction": lambda v: v in ("up", "down"),
        "raw": _is_number,
        "wire": _is_number,
        "parts": _is_parts,
        "clients": _are(_is_id),
    },
    PHASES: {"phase": _is_text, "exchange": lambda v: v is None or isinstance(v, str)},
    WITHHELD: {},
    LEDGER: {"client": _is_id, "exchange": _is_text, "reason": _is_text},
}
_OTHERS: dict[str, Callable[[object], bool]] = {  # what is no number, where it is there
    "labels": _is_pairs,
    "clusters": _are(_is_group),
    "before": _is_group,
    "after": _is_group,
    "rebuilt": lambda value: value is True,
}
_MEASURED = re.compile(r"(global_|common_)?(test|valid)_|(bytes|raw|seconds|carried|scoring|train|virtual|peak)_")
_DECODER = json.JSONDecoder(parse_constant=lambda word: None)  # NaN and its kin are no numbers in JSON


def row_in(line: str | bytes, name: str | None = None) -> Row | None:
    """The row in a line, if it is sound: an object with the number of its round and, for the log ``name``, with what
    its readers rely on; None for anything else."""
    try:
        row = _DECODER.decode(line if isinstance(line, str) else line.decode())
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or not _is_round(row.get("round")):
        return None
    if not row.keys().isdisjoint(_FIELDS_WERE):
        row = {_FIELDS_WERE.get(field, field): value for field, value in row.items()}
    return row if name is None or _sound(name, row) else None


def _is_round(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _LONGEST


def _sound(name: str, row: Mapping[str, JSON]) -> bool:
    needed = _NEEDED[name]
    if not all(field in row and check(row[field]) for field, check in needed.items()):
        return False
    rest = ((field, value) for field, value in row.items() if field not in needed)
    return all(value is None or _is_number(value) or _may_be_other(name, field, value) for field, value in rest)


def _may_be_other(name: str, field: str, value: object) -> bool:
    """Whether what is no number may stand there; rounds also hold what a method tells of itself, of any kind."""
    if field in _OTHERS:
        return _OTHERS[field](value)
    return isinstance(value, bool) or (name == ROUNDS and not _MEASURED.match(field))


def rows_in(lines: Iterable[bytes], name: str) -> Iterator[Row | None]:
    """For each whole line its row, or None."""
    for line in lines:
        if line.endswith(b"\n"):
            yield row_in(line, name)


def where(folder: Path, name: str) -> Path:
    """Where a log is: under its own name, or under the one that 0.1 gave it."""
    olds = [folder / old for old, new in WERE.items() if new == name and not (folder / name).exists()]
    return next((old for old in olds if old.exists()), folder / name)


def read(folder: Path, name: str) -> list[Row]:
    """The sound rows of a log; none if there is no such log."""
    try:
        content = where(folder, name).read_bytes()
    except OSError:
        return []
    return [row for row in rows_in(content.splitlines(keepends=True), name) if row is not None]


def rows_by_round(rows: Iterable[Row]) -> dict[int, list[Row]]:
    """The rows of each round."""
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(row["round"], []).append(row)
    return found


# How much of a log can be trusted


@dataclass(frozen=True)
class Extent:
    """So many bytes of a log, and their CRC-32; None where only the length is known."""

    length: int = 0
    crc: int | None = 0

    def grown(self, content: bytes) -> Extent:
        """With more bytes at its end."""
        return Extent(self.length + len(content), None if self.crc is None else zlib.crc32(content, self.crc))

    @classmethod
    def of(cls, value: JSON) -> Extent:
        """As a snapshot or a result has it: [length, crc], or a length alone as snapshots had it once."""
        if isinstance(value, int):
            return cls(value, None)
        length, crc = value
        return cls(int(length), int(crc))

    @property
    def plain(self) -> tuple[int, int | None]:
        """As a snapshot has it."""
        return self.length, self.crc


def extent_of(path: Path, length: int | None = None) -> Extent:
    """Of a file as it is now, or of its first bytes; nothing if there is no file."""
    found = Extent()
    try:
        size = path.stat().st_size
        left = size if length is None else min(size, length)
        with open(path, "rb") as file:
            while block := file.read(min(_BLOCK, left)):
                found, left = found.grown(block), left - len(block)
    except OSError:
        return Extent()
    return found


def fault(path: Path, vouched: Extent) -> str:
    """What is wrong with a log that should begin with these bytes, in words; nothing if all is well."""
    if not vouched.length:
        return ""
    if not path.exists():
        return "is gone"
    found = extent_of(path, vouched.length)
    if found.length < vouched.length:
        return f"has {found.length} bytes of {vouched.length}"
    if vouched.crc is None:
        return "" if _ends_a_line(path, vouched.length) else "was cut or changed: it does not end with a line"
    return "" if found.crc == vouched.crc else "was changed: its checksum differs"


def _ends_a_line(path: Path, length: int) -> bool:
    with open(path, "rb") as file:
        file.seek(length - 1)
        return file.read(1) == b"\n"


def spans(rounds: Iterable[int]) -> list[list[int]]:
    """Rounds as [first, last] of those that follow each other."""
    found: list[list[int]] = []
    for round in sorted(set(rounds)):
        if found and round == found[-1][1] + 1:
            found[-1][1] = round
        else:
            found.append([round, round])
    return found


def gaps(there: Iterable[int], last: int) -> list[list[int]]:
    """The spans of rounds from the first to ``last`` that are not there."""
    found, next_ = [], 1
    for round in sorted({*there, last + 1}):
        if round > next_ and next_ <= last:
            found.append([next_, min(round - 1, last)])
        next_ = max(next_, round + 1)
    return found


def vouched_in(result: Mapping[str, JSON]) -> dict[str, Extent]:
    """What a result.json vouches for of each log; nothing of what cannot be understood."""
    found = {}
    logs = result.get("logs")
    for name, value in logs.items() if isinstance(logs, dict) else ():
        name = WERE.get(name, name)
        if name in LOGS and isinstance(value, list) and len(value) == 2 and all(map(_is_number, value)):
            found[name] = Extent.of(value)
    return found


def in_words(parts: Sequence[Sequence[int]], most: int = 12) -> str:
    """Spans as text: 3 to 5, 9."""
    told = [str(low) if low == high else f"{low} to {high}" for low, high in parts[:most]]
    return ", ".join(told) + (f" and {len(parts) - most} more gaps" if len(parts) > most else "")


# Parquet


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
