"""Logs that are not what a snapshot vouches for: what is whole stays, what can be is rebuilt, the rest is named."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from fedquilt.core.plain import JSON, Row
from fedquilt.metrics.evaluation import MODELS, numbers_of
from fedquilt.storage.files import to_json, write_atomic
from fedquilt.storage.logs import (
    CLIENTS,
    LEDGER,
    LOGS,
    ONE_A_ROUND,
    PHASES,
    ROUNDS,
    UPDATES,
    Extent,
    extent_of,
    fault,
    in_words,
    read,
    row_in,
    rows_by_round,
    spans,
)

Missing = dict[str, dict[str, list[list[int]]]]  # for each log, spans of rounds: 'missing' and 'rebuilt'
_SUMS = ("bytes_down", "bytes_up", "raw_down", "raw_up")


def faults(folder: Path, vouched: Mapping[str, Extent]) -> dict[str, str]:
    """The logs that are not what they should be, and why."""
    return {name: why for name in LOGS if (why := fault(folder / name, vouched.get(name, Extent())))}


def cut_back(folder: Path, vouched: Mapping[str, Extent]) -> dict[str, Extent]:
    """Cut every log back to what is vouched for; returns what they are then."""
    for name in LOGS:
        path, length = folder / name, vouched.get(name, Extent()).length
        if path.exists() and path.stat().st_size > length:
            os.truncate(path, length)
    return {n: e if (e := vouched.get(n, Extent())).crc is not None else extent_of(folder / n) for n in LOGS}


def mend(
    folder: Path, vouched: Mapping[str, Extent], done: int, known: Mapping[str, JSON]
) -> tuple[Missing, list[str]]:
    """Make logs with faults whole lines again, after ``done`` rounds; what is missing, and notes in words.

    ``known`` is a run's progress, which holds the whole rows of its best and its last scored round.
    """
    missing: Missing = {}
    notes: list[str] = []
    for name, why in faults(folder, vouched).items():
        lost = _keep_whole_rows(folder / name, name, vouched[name].length, done)
        missing[name] = {"missing": spans(lost), "rebuilt": []}
        notes.append(f"{name} {why}")
    if ROUNDS in missing:
        rebuilt = _rebuild(folder, done, known, missing)
        rebuilt |= {row["round"] for row in read(folder, ROUNDS) if row.get("rebuilt")}  # now, or when last mended
        lost = {r for low, high in missing[ROUNDS]["missing"] for r in range(low, high + 1)} - rebuilt
        missing[ROUNDS] = {"missing": spans(lost), "rebuilt": spans(rebuilt)}
    return missing, [f"{note}; {told(found)}" for note, found in zip(notes, missing.values(), strict=True)]


def told(found: Mapping[str, JSON]) -> str:
    """What is missing of a log, in words."""
    parts = []
    if found["missing"]:
        parts.append(f"rows of rounds {in_words(found['missing'])} are missing")
    if found["rebuilt"]:
        parts.append(f"rounds {in_words(found['rebuilt'])} were rebuilt from the other logs")
    return ", ".join(parts) or "every round has rows, which cannot be vouched for"


def missing_of(result: Mapping[str, JSON]) -> Missing:
    """What a result.json says is missing; nothing of what cannot be understood."""
    found = result.get("missing")
    kinds = ("missing", "rebuilt")
    return {
        name: lost
        for name, lost in (found.items() if isinstance(found, dict) else ())
        if isinstance(lost, dict)
        and all(isinstance(lost.get(kind), list) for kind in kinds)
        and all(isinstance(s, list) and len(s) == 2 for kind in kinds for s in lost[kind])
    }


def joined(one: Missing, other: Missing) -> Missing:
    """What is missing by either."""
    found: Missing = {}
    for name in [*one, *(n for n in other if n not in one)]:
        both = [part.get(name, {"missing": [], "rebuilt": []}) for part in (one, other)]
        found[name] = {
            kind: spans(r for part in both for r in _rounds_in(part[kind])) for kind in ("missing", "rebuilt")
        }
    return found


def _rounds_in(spans: Iterable[Sequence[int]]) -> Iterator[int]:
    return (round for low, high in spans for round in range(low, high + 1))


def _keep_whole_rows(path: Path, name: str, length: int, done: int) -> set[int]:
    """Rewrite a log with its sound rows alone; the rounds whose rows are, or may be, gone."""
    kept: list[bytes] = []
    there: set[int] = set()
    lost: set[int] = set()
    last, gap = 0, False
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else []:
        row = row_in(line, name) if line.endswith(b"\n") else None
        if row is None or not last <= row["round"] <= done or (name in ONE_A_ROUND and row["round"] == last):
            gap = True
            continue
        if gap:  # also of the rounds on both sides, which may have lost some of their rows
            lost.update(range(max(1, last), row["round"] + 1))
        kept.append(line)
        there.add(row["round"])
        last, gap = row["round"], False
    if sum(map(len, kept)) < length:
        lost.update(range(max(1, last), done + 1))
    write_atomic(path, b"".join(kept), path.parent)
    if name == ROUNDS:
        return set(range(1, done + 1)) - there
    return lost - there if name in ONE_A_ROUND else lost


def _rebuild(folder: Path, done: int, known: Mapping[str, JSON], missing: Missing) -> set[int]:
    """Write what the other logs tell of rounds without a row; the rounds of which that is so."""
    rows = {row["round"]: row for row in read(folder, ROUNDS)}
    wanted = set(range(1, done + 1)) - rows.keys()
    made = {r: dict(row) for row in (known.get("best"), known.get("last")) if row and (r := row.get("round")) in wanted}
    made |= _from_others(folder, wanted - made.keys(), missing)
    if made:
        whole = rows | made
        content = "".join(to_json(whole[round]) + "\n" for round in sorted(whole))
        write_atomic(folder / ROUNDS, content.encode(), folder)
    return set(made)


def _from_others(folder: Path, wanted: set[int], missing: Missing) -> dict[int, Row]:
    """The rows of these rounds that the other logs tell of, if these lack nothing of them."""
    told_by = (UPDATES, LEDGER, PHASES, CLIENTS)
    gone = {r for name in told_by if name in missing for r in _rounds_in(missing[name]["missing"])}
    others = {name: rows_by_round(read(folder, name)) for name in told_by}
    told = others[UPDATES].keys() | others[LEDGER].keys()
    return {r: _row(r, {name: found.get(r, []) for name, found in others.items()}) for r in (wanted - gone) & told}


def _row(round: int, logs: Mapping[str, list[Row]]) -> Row:
    """The row of a round, as far as the others tell it."""
    updates, ledger, phases = logs[UPDATES], logs[LEDGER], logs[PHASES]
    losses = [(v["samples"], v["loss"]) for v in updates if v.get("loss") is not None]
    samples = sum(n for n, _ in losses)
    sent = {name: _sum(updates, name) + _sum(ledger, f"bytes_{name.partition('_')[2]}") for name in _SUMS}
    spent = _seconds(phases)
    whole = sum(spent.values())
    return {
        "round": round,
        "clients": len({str(v["client"]) for v in updates}),
        "updates": sum(v.get("steps") is not None for v in updates),
        "train_loss": sum(n * loss for n, loss in losses) / samples if samples else None,
        **sent,
        "quarantined": sum(not row.get("used") for row in ledger),
        **_scores(logs[CLIENTS]),
        **spent,
        "train_seconds": whole - spent.get("seconds_evaluate", 0.0),
        "seconds": whole,
        "rebuilt": True,
    }


def _seconds(phases: list[Row]) -> dict[str, float]:
    """Of each phase, by the name that a round has for it."""
    spent: dict[str, float] = defaultdict(float)
    for phase in phases:
        spent[f"seconds_{phase['phase']}"] += phase.get("seconds") or 0.0
    return dict(spent)


def _sum(rows: list[Row], name: str) -> float:
    """Of a field that some rows lack."""
    return sum(row.get(name) or 0 for row in rows)


def _scores(rows: list[Row]) -> dict[str, float]:
    found: dict[str, float] = {}
    for model in MODELS:
        for split in ("valid", "test"):
            own = [row for row in rows if (row["model"], row["split"]) == (model, split)]
            if own and all(row.get("loss") is not None for row in own):
                prefix = "" if model == "deployed" else "global_"
                found |= {f"{prefix}{split}_{name}": value for name, value in numbers_of(own).items()}
    return found
