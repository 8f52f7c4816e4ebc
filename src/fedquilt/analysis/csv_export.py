"""A run as CSV files in the layout of published clustered-learning results, one row per client and scored round.

``server_metrics.csv``: round, mean_acc, std_acc (over clients, ddof 0), mean_loss. ``client_<id>/metrics.csv``, with
the published columns and no others: round, loss, accuracy_before, accuracy_after, energy_consumed (joules),
energy_ratio (joules per unit of model change); those describe the local model of a client that was scored before and
after its training (evaluate.local), and otherwise the model it would use, before = after. Energy is 0 for who was not
asked, and empty everywhere in a run that measured none. ``client_<id>/deployed.csv``: round, model (which of the two
metrics.csv describes), selected, deployed_accuracy and deployed_loss, always of the model it would use.
``cluster_metrics.csv``: round, cluster, n_clients, mean_acc, omega_phi_dist, lambda (empty where
the method has none). Accuracies are fractions, on test samples; six decimals.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fedquilt.core.plain import JSON, Row
from fedquilt.core.table import ClientId
from fedquilt.errors import InputError
from fedquilt.metrics.energy import NOT_HERE
from fedquilt.results.clusters import LOG
from fedquilt.results.plots import write_csv
from fedquilt.storage.files import file_name, storage
from fedquilt.storage.finished import result_of
from fedquilt.storage.folder import RunFolder
from fedquilt.storage.slots import client_id

SERVER = ("round", "mean_acc", "std_acc", "mean_loss")
CLIENT = ("round", "loss", "accuracy_before", "accuracy_after", "energy_consumed", "energy_ratio")
DEPLOYED = ("round", "model", "selected", "deployed_accuracy", "deployed_loss")
NOT_BY_CLIENT = "of the whole run only: the engine local tells clients apart"
Updates = dict[tuple[int, ClientId], Mapping[str, JSON]]
CLUSTER = ("round", "cluster", "n_clients", "mean_acc", "omega_phi_dist", "lambda")


def export_csv(run: str | Path, to: str | Path) -> Row:
    """Write the files of a run below the folder ``to``; tells how many clients and rounds there were."""
    source, top = RunFolder(Path(run)), Path(to)
    if any(top.glob("*")):
        raise InputError(f"'{top}' is not empty. Give a new folder, so that tables of two runs do not mix.")
    rounds = [r for r in source.rows("metrics/rounds.jsonl") if "test_accuracy" in r]
    if not rounds:
        raise InputError(
            f"'{run}' has no evaluated round with accuracies: it has not run, has no test samples, or another task "
            "than one class for each row."
        )
    names = ("round", "test_accuracy", "test_accuracy_std", "test_loss")
    _write(top / "server_metrics.csv", SERVER, _fields(rounds, names))
    updates = _updates(source.rows("metrics/client_updates.jsonl"))
    measured = any(update.get("joules") is not None for update in updates.values())
    clients = _by_client(source.rows("metrics/clients.jsonl"), updates, measured)
    for client, rows in clients.items():
        _write_client(top / f"client_{file_name(client)}", rows)
    scored = _write_clusters(top, source.rows(LOG))
    told = "in joules" if measured else _no_joules(source)
    return {"folder": str(top), "rounds": len(rounds), "clients": len(clients), "clusters": scored, "energy": told}


def _write_client(place: Path, rows: Iterable[Sequence[JSON]]) -> None:
    _write(place / "metrics.csv", CLIENT, (row[: len(CLIENT)] for row in rows))
    _write(place / "deployed.csv", DEPLOYED, ([row[0], *row[len(CLIENT) :]] for row in rows))


def _write_clusters(top: Path, log: Iterable[Row]) -> bool:
    """The scores of clusters; whether there are any."""
    rows = [c | {"round": r["round"]} for r in log for c in r.get("clusters", [])]
    keys = ("round", "cluster", "clients", "accuracy", "embedding_distance", "lambda")
    if rows:
        _write(top / "cluster_metrics.csv", CLUSTER, _fields(rows, keys))
    return bool(rows)


def _fields(rows: Iterable[Mapping[str, JSON]], names: Iterable[str]) -> list[list[JSON]]:
    return [[row.get(name) for name in names] for row in rows]


def _no_joules(source: RunFolder) -> str:
    """Why clients' joules are not known."""
    energy = (result_of(source.path) or {}).get("energy", {})
    return str(energy.get("note") or (NOT_BY_CLIENT if energy.get("joules") else NOT_HERE))


def _by_client(
    rows: Iterable[Mapping[str, JSON]], updates: Updates, measured: bool
) -> dict[ClientId, list[list[JSON]]]:
    """The lines of each client: of the model it would use, on its test samples."""
    clients: dict[ClientId, list[list[JSON]]] = {}
    for row in rows:
        if row["model"] == "deployed" and row["split"] == "test":
            client = client_id(row["client"])
            clients.setdefault(client, []).append(_client(row, updates.get((row["round"], client)), measured))
    return clients


def _updates(rows: Iterable[Mapping[str, JSON]]) -> Updates:
    """Each client's update of each round; of several the one that trained."""
    found: Updates = {}
    for row in rows:
        key = (row["round"], client_id(row["client"]))
        if key not in found or row.get("steps") is not None:
            found[key] = row
    return found


def _client(row: Mapping[str, JSON], update: Mapping[str, JSON] | None, counted: bool) -> list[JSON]:
    joules: list[JSON] = [0, 0] if counted else [None, None]  # who was not asked spent nothing
    measured = update is not None and "after" in update
    before, after = (update["before"], update["after"]) if update is not None and measured else (row, row)
    if update is not None:
        joules = [update.get("joules"), update.get("joules_per_change")]
    return [
        row["round"],
        after["loss"],
        before["accuracy"],
        after["accuracy"],
        *joules,
        "local" if measured else "deployed",
        int(update is not None),
        row["accuracy"],
        row["loss"],
    ]


def _write(path: Path, header: Iterable[str], rows: Iterable[Iterable[JSON]]) -> None:
    with storage(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_csv(path, tuple(header), [[_text(v) for v in row] for row in rows])


def _text(value: JSON) -> JSON:
    return "" if value is None else f"{value:.6f}" if isinstance(value, float) else value
