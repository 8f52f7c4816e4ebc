"""A run as CSV files in the layout of published clustered-learning results, one row per client and scored round.

``server_metrics.csv``: round, mean_acc, std_acc (over clients, ddof 0), mean_loss. ``client_<id>/metrics.csv``: round,
loss, accuracy_before, accuracy_after, energy_consumed (joules), energy_ratio (joules per unit of model change); those
describe the local model of a client that was scored before and after its training (evaluate.local), and otherwise the
model it would use, before = after; ``model`` says which. ``deployed_accuracy`` and ``deployed_loss`` are always of the
model it would use. ``cluster_metrics.csv``: round, cluster, n_clients, mean_acc, omega_phi_dist, lambda (empty where
the method has none). Accuracies are fractions, on test rows; six decimals.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedquilt.core.errors import InputError
from fedquilt.core.table import ClientId
from fedquilt.runs.clusters import LOG
from fedquilt.runs.files import storage
from fedquilt.runs.plots import write_csv
from fedquilt.runs.storage import RunFolder

SERVER = ("round", "mean_acc", "std_acc", "mean_loss")
CLIENT = (
    "round", "loss", "accuracy_before", "accuracy_after", "energy_consumed", "energy_ratio", "model", "selected",
    "deployed_accuracy", "deployed_loss",
)  # fmt: skip
CLUSTER = ("round", "cluster", "n_clients", "mean_acc", "omega_phi_dist", "lambda")


def export_csv(run: str | Path, to: str | Path) -> dict[str, Any]:
    """Write the files of a run below the folder ``to``; tells how many clients and rounds there were."""
    source, top = RunFolder(Path(run)), Path(to)
    if top.is_dir() and any(top.iterdir()):
        raise InputError(f"'{top}' is not empty, and tables of two runs would mix there. Give a new folder.")
    rounds = [r for r in source.rows("metrics/rounds.jsonl") if "test_accuracy" in r]
    if not rounds:
        raise InputError(f"'{run}' has no scored round: it was not run, or has no test rows.")
    names = ("round", "test_accuracy", "test_accuracy_std", "test_loss")
    _write(top / "server_metrics.csv", SERVER, ([r[n] for n in names] for r in rounds))
    visits = _visits(source.rows("metrics/visits.jsonl"))
    clients: dict[ClientId, list[list[Any]]] = {}
    for row in source.rows("metrics/clients.jsonl"):
        if row["model"] == "deployed" and row["split"] == "test":
            clients.setdefault(row["client"], []).append(_client(row, visits.get((row["round"], row["client"]))))
    for client, rows in clients.items():
        _write(top / f"client_{_file(client)}" / "metrics.csv", CLIENT, rows)
    log = [c | {"round": r["round"]} for r in source.rows(LOG) for c in r.get("clusters", [])]
    if log:
        keys = ("round", "cluster", "clients", "accuracy", "embedding_distance", "lambda")
        _write(top / "cluster_metrics.csv", CLUSTER, ([c.get(k) for k in keys] for c in log))
    return {"folder": str(top), "rounds": len(rounds), "clients": len(clients), "clusters": bool(log)}


def _visits(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[int, ClientId], Mapping[str, Any]]:
    """Each client's visit of each round; of several the one that trained."""
    found: dict[tuple[int, ClientId], Mapping[str, Any]] = {}
    for row in rows:
        key = (row["round"], row["client"])
        if key not in found or row.get("steps") is not None:
            found[key] = row
    return found


def _client(row: Mapping[str, Any], visit: Mapping[str, Any] | None) -> list[Any]:
    joules: list[Any] = [0, 0]  # who was not asked spent nothing
    measured = visit is not None and "after" in visit
    before, after = (visit["before"], visit["after"]) if visit is not None and measured else (row, row)
    if visit is not None:
        joules = [visit.get("joules"), visit.get("joules_per_change")]
    return [
        row["round"], after["loss"], before["accuracy"], after["accuracy"], *joules,
        "local" if measured else "deployed", int(visit is not None), row["accuracy"], row["loss"],
    ]  # fmt: skip


def _file(client: ClientId) -> str:
    return str(client) if isinstance(client, int) else json.dumps(client).replace("/", "%2F").strip('"')


def _write(path: Path, header: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    with storage(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_csv(path, tuple(header), [[_text(v) for v in row] for row in rows])


def _text(value: Any) -> Any:
    return "" if value is None else f"{value:.6f}" if isinstance(value, float) else value
