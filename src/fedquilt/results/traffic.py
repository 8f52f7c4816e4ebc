"""The traffic of a run: who sent what in which exchange, as it is and as it travelled."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fedquilt.core.exchange import Method
from fedquilt.core.plain import JSON, Row
from fedquilt.core.seed import Seed
from fedquilt.errors import InputError
from fedquilt.records.record import frame_bytes
from fedquilt.rounds.log import ClientUpdate
from fedquilt.storage.finished import CARRIED, MEGABYTE, in_messages
from fedquilt.storage.logs import ROUNDS, read
from fedquilt.storage.logs import TRAFFIC as TRAFFIC


def update_row(update: ClientUpdate) -> Row:
    """A client update as a row: totals of its bytes; what they are made of is in the log of traffic."""
    known = {k: v for k, v in vars(update).items() if k not in ("before", "after", "down", "up")}
    sizes = {"bytes_down": update.down.wire, "bytes_up": update.up.wire}
    return {**known, **sizes, "raw_down": update.down.raw, "raw_up": update.up.raw}


def traffic_rows(round: int, updates: Iterable[ClientUpdate]) -> list[Row]:
    """A row for each exchange, direction and kind of message of a round, with the clients whose messages were so.

    ``parts`` gives of each tensor or field the bytes as they are and as they travelled.
    """
    alike: dict[str, Row] = {}
    for update in updates:
        for direction, load in (("down", update.down), ("up", update.up)):
            row = {
                "round": round,
                "exchange": update.exchange,
                "direction": direction,
                "raw": load.raw,
                "wire": load.wire,
                "parts": load.parts,
            }
            alike.setdefault(json.dumps(row), {**row, "clients": []})["clients"].append(update.client)
    return list(alike.values())


def model_bytes(method: Method) -> int | None:
    """The frame of the whole model as it is, head included: what plain FedAvg sends each way; None without a net."""
    net = getattr(method, "net", None)
    return None if net is None else frame_bytes(net.full(net.init(Seed(0))), compact=True)


def summary(folder: Path) -> Row:
    """The traffic of a run in all: by exchange, direction and part; and what plain FedAvg would have sent."""
    if not (folder / TRAFFIC).exists():
        raise InputError(
            f"'{folder}' holds no log of traffic. Is it the folder of a run, and has a round been finished?"
        )
    rows = read(folder, TRAFFIC)
    totals = {"raw_up": 0, "wire_up": 0, "raw_down": 0, "wire_down": 0}
    parts: dict[tuple[str, str, str], list[int]] = {}
    for row in rows:
        messages = len(row["clients"])
        for kind in ("raw", "wire"):
            totals[f"{kind}_{row['direction']}"] += messages * row[kind]
        for name, (raw, wire) in row["parts"].items():
            total = parts.setdefault((row["exchange"], row["direction"], name), [0, 0, 0])
            for place, value in enumerate((messages, messages * raw, messages * wire)):
                total[place] += value
    table = [
        {"exchange": exchange, "direction": direction, "part": name, "messages": n, "raw": raw, "wire": wire}
        for (exchange, direction, name), (n, raw, wire) in parts.items()
    ]
    found = {**totals, "parts": table, "clients": by_client(rows), "fedavg": _fedavg(folder)}
    return {**found, "carried": _carried(folder)}


def _carried(folder: Path) -> dict[str, int] | None:
    """What messages to other machines held in all, and what scoring took of it; None where none travelled."""
    rows = [row for row in read(folder, ROUNDS) if CARRIED[0] in row]
    return {name: sum(row[name] for row in rows) for name in CARRIED} if rows else None


def by_client(rows: Sequence[Mapping[str, JSON]]) -> dict[str, dict[str, int]]:
    """The totals of each client."""
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        for client in row["clients"]:
            total = found.setdefault(str(client), {"raw_down": 0, "wire_down": 0, "raw_up": 0, "wire_up": 0})
            for kind in ("raw", "wire"):
                total[f"{kind}_{row['direction']}"] += row[kind]
    return found


def _fedavg(folder: Path) -> dict[str, int] | None:
    """What plain FedAvg, head included, sends each way to the same clients in the same rounds; after a run's end."""
    try:
        size = json.loads((folder / "result.json").read_text(encoding="utf-8"))["model_bytes"]
    except (OSError, ValueError, KeyError):
        return None
    if size is None:
        return None
    updates = sum(row["clients"] for row in read(folder, ROUNDS))
    return {"up": updates * size, "down": updates * size}


def drawn(folder: Path, path: Path) -> Path:
    """Accuracy by all megabytes sent so far, and by those without codecs; PNG and CSV."""
    from fedquilt.results.plots import accuracy_by_traffic

    return accuracy_by_traffic(read(folder, ROUNDS), folder.name, path)


def table(found: Mapping[str, JSON]) -> str:
    """The same for people."""
    lines = [f"{'exchange':<12} {'way':<5} {'part':<32} {'messages':>9} {'raw MB':>12} {'sent MB':>12} {'ratio':>8}"]
    for part in found["parts"]:
        lines.append(
            f"{part['exchange']:<12} {part['direction']:<5} {part['part']:<32} {part['messages']:>9} "
            f"{part['raw'] / MEGABYTE:>12.4f} {part['wire'] / MEGABYTE:>12.4f} {_ratio(part['raw'], part['wire']):>8}"
        )
    for way in ("up", "down"):
        raw, wire = found[f"raw_{way}"], found[f"wire_{way}"]
        lines.append(f"{'all ' + way:<61} {raw / MEGABYTE:>12.4f} {wire / MEGABYTE:>12.4f} {_ratio(raw, wire):>8}")
    if found["fedavg"] is not None:
        whole, sent = found["fedavg"]["up"] + found["fedavg"]["down"], found["wire_up"] + found["wire_down"]
        lines.append(f"Plain FedAvg, head included, would have sent {whole / MEGABYTE:.4f} MB: {_ratio(whole, sent)}.")
    if found["carried"] is not None:
        lines.append(f"With everything beside the exchanges, {in_messages(found['carried'])}.")
    return "\n".join(lines)


def _ratio(raw: int, wire: int) -> str:
    return f"{raw / wire:.1f}x" if wire else "-"
