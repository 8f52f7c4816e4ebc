"""Where does a new client belong? Told from the folder of a run; nobody else's data are needed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from fedquilt.analysis.afterwards import config_in
from fedquilt.analysis.newcomers import LearnedRun, download_of
from fedquilt.analysis.predict import reader_of
from fedquilt.config.config import Config, Data, Kinded
from fedquilt.config.data import divided, federation_of
from fedquilt.core.columns import PerColumn
from fedquilt.core.deployed import first_state
from fedquilt.core.exchange import Context
from fedquilt.core.params import Params
from fedquilt.core.plain import Row
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId, Divided, Site, Table
from fedquilt.errors import InputError, SnapshotError, StageError
from fedquilt.metrics.scoring import score_of
from fedquilt.pieces.clustering.result import AMBIGUOUS, ClusterResult, members
from fedquilt.pieces.clustering.result import assign as by_direction
from fedquilt.records.record import unpack
from fedquilt.results.clusters import clusters_in
from fedquilt.rounds.client import one_thread
from fedquilt.runs.build import method_of
from fedquilt.runs.preparation import Prepared, kept_in
from fedquilt.storage.finished import result_of
from fedquilt.storage.folder import RunFolder, SnapshotRecord
from fedquilt.storage.slots import entries_of

NEW = "newcomer"


@dataclass(frozen=True)
class Assignment:
    """Where a client belongs.

    Args:
        cluster: Its cluster; None if all are too far, so that it should get one of its own.
        nearest: The nearest cluster, however far.
        distance: To the nearest: average-linkage cosine distance by the rule 'direction', the loss by 'loss'.
        margin: How much farther the second nearest is; infinite if there is none.
        ambiguous: Two clusters can hardly be told apart.
        rule: 'direction' compares the client's update from the model that clusters were found with; 'loss' takes the
            cluster whose model has the lowest loss on the client's samples, where a run kept no directions.
    """

    cluster: int | None
    nearest: int
    distance: float
    margin: float
    ambiguous: bool
    rule: str


def assign(folder: str | Path, data: str | Path | Site, client: ClientId = NEW) -> Assignment:
    """The cluster of a client that never took part, from a run's folder and the client's own samples.

    By direction, the client trains as it would have when clusters were found, from the same model; the run keeps both.
    Otherwise the clusters' models are compared on its rows.

    Args:
        folder: Of a run whose method makes clusters.
        data: The client's samples: an .npz (or what ``data.path`` takes) with x and y, prepared as the run's were; or a
            site.
        client: Its name, which its randomness follows from.

    Example:
        >>> assign("runs/groups-1a2b3c4d", "new.npz").cluster  # doctest: +SKIP
        2
    """
    place = Path(folder)
    found, text = clusters_in(place)
    config = config_in(place)
    site = data if isinstance(data, Site) else _site(config, place, Path(data), text["classes"])
    snapshot = _newest(config, place)
    learned = LearnedRun(
        method_of(config, cast(Divided, _Alone(site, text["classes"]))),
        snapshot.state,
        snapshot.done,
        Seed(config.seed),
    )
    if "y" not in site.train.columns and not getattr(learned.method, "reconstructs", False):
        raise InputError(
            f"The client's samples ({data if not isinstance(data, Site) else 'a site'}) have no labels; this method "
            "places a client by what it learns from them. Give the labels too: an .npz with x and y."
        )
    with one_thread():
        try:
            if found.directions is not None and hasattr(learned.method, "welcome"):
                return _by_direction(found, learned, site, client)
            return _by_loss(found, learned, site, _Members(place, snapshot, learned))
        except (StageError, RuntimeError) as error:
            cause = error.__cause__ or error
            raise InputError(
                f"The client's samples, of shape {tuple(site.train.whole().x.shape[1:])}, do not fit the run's model: "
                f"{cause}"
            ) from error


def _site(config: Config, run: Path, path: Path, classes: int) -> Site:
    """The samples in a file, prepared as the run's were."""
    if config.data.text is not None and path.suffix != ".npz":
        return _texts(config, run, path)
    return rows_of(config, path, classes, kept_in(run))


def _newest(config: Config, folder: Path) -> SnapshotRecord:
    """The last state; the run's own result says which data it was made with."""
    data = (result_of(folder) or {}).get("data")
    if data is None:
        raise SnapshotError(f"'{folder}' is not finished. Finish it first: fedquilt resume {folder}")
    found = RunFolder(folder).newest(config.identity(), data)
    if found is None:
        raise SnapshotError(f"'{folder}' has no valid snapshot.")
    return found


def _texts(config: Config, folder: Path, path: Path) -> Site:
    """Texts of one client, by the run's vocabulary or tokeniser."""
    rows = reader_of(folder, config).read(path)
    labels = {} if rows.labels is None else {"y": rows.labels}
    return Site(Table({**rows.table.columns, **labels}, None, rows.table.prepare))


def rows_of(config: Config, path: Path, classes: int | None, kept: Prepared | None = None) -> Site:
    """The rows of one client, prepared as the run's were."""
    data = _as_the_run(config, path, kept)
    one = divided(data)
    there = one.classes or 0
    if classes is not None and there > classes:
        raise InputError(f"'{path}' has labels up to {there - 1}; the run knows {classes} classes.")
    if kept is not None:
        kinds = one.prepare.kinds() if isinstance(one.prepare, PerColumn) else None
        if kinds != kept.prepare.kinds():
            raise InputError(f"The columns of '{path}' are not those of the run's table: {kept.prepare.kinds()}.")
        one = one.prepared(kept.prepare)
    if any(t.kind == "normalise" and "mean" not in t.options for t in data.transforms):
        one = replace(one, prepare=federation_of(config).prepare)  # its numbers are those of the run's training samples
    return one.site(one.ids[0], 0)


def _as_the_run(config: Config, path: Path, kept: Prepared | None) -> Data:
    """The settings of the run's data, for a file of one client."""
    by_itself: Row = {"text": None, "words": None, "length": None, "tokeniser": None} if path.suffix == ".npz" else {}
    if kept is not None and path.name.endswith((".csv", ".csv.gz", ".parquet")):
        columns = kept.prepare.columns
        by_itself |= {"features": [c.name for c in columns], "categories": [c.name for c in columns if c.category]}
    elif kept is not None:
        by_itself |= {"features": None, "categories": None}
    return config.data.model_copy(
        update={
            "source": None,
            "path": str(path),
            "clients": 1,
            "partition": Kinded(kind="iid"),
            "by_user": False,
            "user": None,
            "long_tail": None,
            "shift": None,
            "limit": None,
            "test": 0.0,
            "valid": 0.0,
            "local_tests": False,
            "common_test": 0.0,
            "common_valid": 0.0,
            **by_itself,
        }
    )


@dataclass(frozen=True)
class _Alone:
    """As much of a federation as it takes to build a method."""

    only: Site
    classes: int | None
    ids: tuple[ClientId, ...] = (NEW,)

    def site(self, client: ClientId, round: int) -> Site:
        return self.only


def _by_direction(found: ClusterResult, learned: LearnedRun, site: Site, client: ClientId) -> Assignment:
    method: Any = learned.method
    fresh = first_state(method, learned.seed, client)
    context = Context(learned.done, client, learned.seed.fold("newcomer", client))
    vector = method.vector(method.welcome(learned.state), fresh, site, context)
    if vector is None:
        raise InputError(f"{type(method).__name__} keeps directions, but a client alone cannot tell its own.")
    placed = by_direction(found, vector)
    return Assignment(placed.cluster, placed.nearest, placed.distance, placed.margin, placed.ambiguous, "direction")


@dataclass(frozen=True)
class _Members:
    """The models that clients would use, from the folder."""

    folder: Path
    snapshot: SnapshotRecord
    learned: LearnedRun

    def model(self, client: ClientId) -> Params:
        run = RunFolder(self.folder)
        run.slots.now = dict(entries_of(self.snapshot.slots))
        frame, method = run.slots.get(client), self.learned.method
        state = first_state(method, self.learned.seed, client) if frame is None else unpack(frame).state
        return method.personal_model(download_of(self.learned, client), state)


def _by_loss(found: ClusterResult, learned: LearnedRun, site: Site, clients: _Members) -> Assignment:
    score = score_of(learned.method)
    losses = {
        k: score(learned.method.predict, clients.model(group[0]), site.train).loss
        for k, group in enumerate(members(found))
        if group
    }
    ranked = sorted(losses, key=lambda k: (losses[k], k))
    best = ranked[0]
    margin = losses[ranked[1]] - losses[best] if len(ranked) > 1 else math.inf
    return Assignment(best, best, losses[best], margin, margin < AMBIGUOUS, "loss")
