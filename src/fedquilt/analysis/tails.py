"""How a run fares under a long tail, in numbers and pictures.

One protocol for every method, with and without a mask.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from torch import Tensor

from fedquilt.analysis.heads import PlayedRun
from fedquilt.core.params import Params
from fedquilt.core.plain import JSON, Row
from fedquilt.core.table import ClientId, Table
from fedquilt.data import tiers_by_count, tiers_by_share
from fedquilt.errors import InputError
from fedquilt.metrics.tails import ClassTally, by_group, collapse, halves, over_clients, tally
from fedquilt.pieces.realign import Head, Heads, Personal, Realign, lengths, local, masked, with_head
from fedquilt.results.plots import COLOURS, STYLE, save, subplots
from fedquilt.rounds.client import one_thread

ROWS = 200  # per forward pass
PERSONAL: tuple[Personal, ...] = ("readme", "code", "sum")
GROUPINGS = {"by_share": tiers_by_share, "by_count": tiers_by_count}


def groups_of(counts: Tensor) -> dict[str, dict[str, list[int]]]:
    """Head, middle and tail from training samples: by share (75 and 95 %), and by count (above 100, below 20)."""
    found = {kind: asdict(rule(counts.numpy())) for kind, rule in GROUPINGS.items()}
    return {kind: {name: list(classes) for name, classes in tiers.items()} for kind, tiers in found.items()}


@dataclass
class TailEvaluator:
    """Scores of models on tables; features are computed once for each body and table."""

    played: PlayedRun
    _last: tuple[Params, Table, Tensor] | None = field(default=None, repr=False)

    def features(self, heads: Heads, table: Table) -> Tensor:
        """What the body makes of the rows."""
        last = self._last
        if last is not None and last[1] is table and all(t is last[0][n] for n, t in heads.body.items()):
            return last[2]
        plain, whole = self.played.plain, with_head(heads.body, heads.general)
        with torch.inference_mode():
            blocks = [plain.split(whole, block).features.flatten(1) for block in table.blocks(ROWS)]
        self._last = (heads.body, table, torch.cat(blocks))
        return self._last[2]

    def scores(self, model: Params, table: Table) -> Tensor:
        """What the method predicts with a whole model."""
        predict = self.played.learned.method.predict
        with torch.inference_mode():
            return torch.cat([predict(model, block) for block in table.blocks(ROWS)])


def whole_views(heads: Heads, realign: Realign, counts: Tensor) -> dict[str, Head]:
    """The heads a new client could be given: frame, global head, realigned global head, and those of scores adjusted
    for the clients' training samples per class."""
    return {"global" if name == "plain" else name: head for name, head in realign.views(heads, counts).items()}


def own_views(general: Head, own: Head, realign: Realign) -> dict[str, Head]:
    """The heads a client could use: its own as it is, and the three personal variants."""
    return {"own": own, **{kind: replace(realign, personal=kind).own(general, own) for kind in PERSONAL}}


def labels_of(table: Table) -> Tensor:
    """The labels of a table."""
    return table.columns["y"].index_select(0, table.all_rows())


def evaluate(folder: str | Path, realign: Realign | None = None) -> Row:
    """Score a run on the common test set and on every client's own test samples, in every mode its method has; as
    ``validation`` also on validation samples of the server, if there are any.

    Modes: ``deployed`` (what the method itself uses), ``global`` and ``realigned`` (the global head, plain and
    realigned), ``universal`` (a fixed frame), ``adjusted`` and ``universal_adjusted`` (global head and frame, their
    scores adjusted for the class shares of all clients' training samples), ``own`` (a client's head as it is),
    ``readme``, ``code`` and ``sum`` (see :class:`Realign`). Local scores are told without and with the mask that leaves
    out classes of which the client has no training sample: the same for every method. Clients that were never asked use
    the realigned global head instead of a realigned one of their own; they are listed as ``fallback``.

    Example:
        >>> evaluate("runs/digits_lt-1a2b3c4d")["global"]["realigned"]["by_share"]["tail"]  # doctest: +SKIP
        0.53
    """
    with one_thread():
        return evaluated(PlayedRun.of(Path(folder)), realign)


def evaluated(played: PlayedRun, realign: Realign | None) -> Row:
    rule = realign or getattr(played.learned.method, "realign", None) or Realign()
    shared, evaluator = played.heads(), TailEvaluator(played)
    counts = played.counts
    found: Row = {
        "folder": str(played.folder),
        "method": played.config.method.kind,
        "rounds": played.learned.done,
        "seed": played.config.seed,
        "realign": asdict(rule),
        "rows": counts.sum(0).tolist(),
        "groups": groups_of(counts.sum(0)),
        "global": _common(played, evaluator, shared, rule, "global_test"),
        "validation": _common(played, evaluator, shared, rule, "server_valid"),
        **_local(played, evaluator, shared, rule),
    }
    if shared is not None:
        found["collapse"] = _collapsed(played, evaluator, shared, rule)
    return found


def _common(played: PlayedRun, evaluator: TailEvaluator, shared: Heads | None, rule: Realign, held: str) -> Row:
    """On rows that the federation holds in common: the test set, or the server's validation samples."""
    table: Table | None = getattr(played.federation, held, None)
    if table is None:
        return {}
    labels, groups, scored = labels_of(table), groups_of(played.counts.sum(0)), dict[str, Tensor]()
    if played.whole is not None:
        scored["deployed"] = evaluator.scores(played.whole, table)
    if shared is not None:
        features = evaluator.features(shared, table)
        views = whole_views(shared, rule, played.counts.sum(0))
        scored |= {name: head(features) for name, head in views.items()}
    return {name: _told(tally(scores, labels), groups) for name, scores in scored.items()}


def _told(found: ClassTally, groups: Mapping[str, JSON]) -> Row:
    kinds = {kind: by_group(found, tiers) for kind, tiers in groups.items()}
    return {**found.measures(), **halves([found]), **kinds, "per_class": found.recalls.tolist()}


def _local(played: PlayedRun, evaluator: TailEvaluator, shared: Heads | None, rule: Realign) -> Row:
    """On each client's own test samples."""
    tallies: dict[str, dict[str, list[ClassTally]]] = {}
    groupings: dict[str, list[Any]] = {kind: [] for kind in GROUPINGS}
    rows, fallback = list[int](), list[ClientId]()
    for client, counts in zip(played.clients, played.counts, strict=True):
        table = played.federation.evaluation(client, "test", played.learned.done - 1)
        if table is None:
            continue
        views, alone = _client_scores(played, evaluator, shared, rule, client, table)
        labels = labels_of(table)
        for (name, scores), (how, here) in product(views.items(), (("plain", None), ("masked", counts > 0))):
            tallies.setdefault(name, {}).setdefault(how, []).append(tally(masked(scores, here), labels))
        for kind, tiers in groups_of(counts).items():
            groupings[kind].append(tiers)
        rows.append(int(counts.sum()))
        if alone:
            fallback.append(client)
    if not rows:
        raise InputError(
            "No client has test samples. Give the recipe data.test, or data.local_tests and a common test set."
        )
    summed = partial(over_clients, rows=rows, groupings=groupings)
    clients = {name: {how: summed(t) for how, t in kinds.items()} for name, kinds in tallies.items()}
    return {"clients": clients, "evaluated": len(rows), "fallback": fallback}


def _client_scores(
    played: PlayedRun, evaluator: TailEvaluator, shared: Heads | None, rule: Realign, client: ClientId, table: Table
) -> tuple[dict[str, Tensor], bool]:
    """The scores of one client's samples in every mode, and whether it has no head of its own for want of a client
    update."""
    scored = {"deployed": evaluator.scores(played.personal(client), table)}
    if shared is None:
        return scored, False
    features = evaluator.features(shared, table)
    scored |= {name: head(features) for name, head in whole_views(shared, rule, played.counts.sum(0)).items()}
    heads = played.heads(client)
    if heads is not None and heads.own is not None:
        own = evaluator.features(heads, table)
        return scored | {name: head(own) for name, head in own_views(heads.general, heads.own, rule).items()}, False
    if not played.personalised:
        return scored, False
    return {**scored, "own": scored["deployed"], **dict.fromkeys(PERSONAL, scored["realigned"])}, True


def _collapsed(played: PlayedRun, evaluator: TailEvaluator, shared: Heads, rule: Realign) -> Row:
    """Neural collapse of the training samples' features, and norms of the heads' rows."""
    tables = [played.federation.site(c, played.learned.done - 1).train for c in played.clients]
    features = torch.cat([*map(partial(evaluator.features, shared), tables)])
    labels = torch.cat([*map(labels_of, tables)])
    frame = None if shared.fixed is None else shared.fixed.weight
    measures = asdict(collapse(features, labels, played.counts.shape[1], frame))
    norms = {"global": shared.general, "realigned": rule.whole(shared.general)}
    rows = {name: lengths(head)[:, 0].tolist() for name, head in norms.items()}
    owned = [(h.general, h.own) for c in played.clients if (h := played.heads(c)) is not None and h.own is not None]
    if owned:
        rows["own"] = torch.stack([lengths(own)[:, 0] for _, own in owned]).mean(0).tolist()
        rows["own realigned"] = torch.stack([lengths(local(*pair))[:, 0] for pair in owned]).mean(0).tolist()
    return {**measures, "row_norms": rows}


def pictures(found: Mapping[str, JSON], to: Path) -> list[Path]:
    """Accuracy by class, and neural collapse: classes are ordered by their training samples, the most frequent
    first."""
    order = np.argsort(-np.asarray(found["rows"]), kind="stable").tolist()
    made = []
    if found["global"]:
        modes = {name: row["per_class"] for name, row in found["global"].items() if name != "deployed"}
        made.append(_by_rank(modes or _only_deployed(found), order, found["rows"], "share right", to / "classes"))
    if "collapse" in found:
        made.append(collapse_picture(found["collapse"], order, found["rows"], to / "collapse"))
    return made


def _only_deployed(found: Mapping[str, JSON]) -> Row:
    return {"deployed": found["global"]["deployed"]["per_class"]}


def _by_rank(
    lines: Mapping[str, Sequence[float]], order: Sequence[int], rows: Sequence[int], what: str, path: Path
) -> Path:
    with rc_context(STYLE):
        figure, (top, bottom) = subplots(2, 1, figsize=(8, 4.6), sharex=True, height_ratios=(3, 1))
        draw_lines(top, lines, order)
        top.set(ylabel=what, ylim=(0, 1.02), title="Common test set, by class")
        top.legend(loc="lower left")
        bottom.bar(range(len(order)), [rows[c] for c in order], color="#999999")
        bottom.set(yscale="log", ylabel="training samples", xlabel="class, most frequent first")
        return save(figure, path, ("class", "training samples", *lines), _by_class(lines, order, rows))


def collapse_picture(found: Mapping[str, JSON], order: Sequence[int], rows: Sequence[int], path: Path) -> Path:
    """Norms of the heads' rows and of class means, and the angle of class means to the frame."""
    means = {"class means": found["norms"]}
    angles = {} if found["to_frame"] is None else {"to the frame": found["to_frame"]}
    with rc_context(STYLE):
        figure, axes = subplots(1, 3, figsize=(13, 3.8))
        draw_lines(axes[0], found["row_norms"], order)
        axes[0].set(title="norm of head rows", ylim=(0, None))
        axes[0].legend()
        draw_lines(axes[1], means, order)
        axes[1].set(title=f"norm of class means (within / between {found['within']:.2f})", ylim=(0, None))
        draw_lines(axes[2], angles, order)
        axes[2].set(title="angle of class means to the frame, degrees", ylim=(0, 120))
        if not angles:
            axes[2].set_visible(False)
        for axis in axes:
            axis.set_xlabel("class, most frequent first")
        lines = {**{f"norm of {n}": v for n, v in found["row_norms"].items()}, **means, **angles}
        return save(figure, path, ("class", "training samples", *lines), _by_class(lines, order, rows))


def draw_lines(axis: Axes, lines: Mapping[str, Sequence[float]], order: Sequence[int]) -> None:
    """Each line by rank of class."""
    for colour, (name, values) in zip(COLOURS * (1 + len(lines)), lines.items(), strict=False):
        axis.plot(range(len(order)), [values[c] for c in order], color=colour, label=name, marker="o", markersize=3)


def _by_class(
    lines: Mapping[str, Sequence[float]], order: Sequence[int], rows: Sequence[int]
) -> list[list[int | float | str]]:
    """The numbers of a picture, a row per class; empty where there is none."""
    return [[c, rows[c], *("" if math.isnan(v[c]) else v[c] for v in lines.values())] for c in order]
