"""The scenes: which problem, which recipe answers it, and what its numbers say and show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from fedquilt.analysis.continual import FILE as PROBES
from fedquilt.analysis.tails import evaluate as by_class
from fedquilt.core.plain import Row
from fedquilt.core.table import in_order
from fedquilt.demo.telling import bars, compared, grouped, lines, listed, pairs, patches, percent, times, verdict
from fedquilt.results.clusters import clusters_in
from fedquilt.results.statistics.intervals import interval
from fedquilt.results.statistics.paired import Accuracies
from fedquilt.results.statistics.targets import MEGABYTE
from fedquilt.results.tables import by_label
from fedquilt.results.traffic import summary as traffic
from fedquilt.results.views import RunView, read_json, views_in
from fedquilt.storage.federation_file import FILE
from fedquilt.storage.slots import client_id

BASELINES = ("FedAvg", "local training")


@dataclass(frozen=True)
class PlayedComparison:
    """A comparison that was played: its table, and its runs by the names that people read."""

    summary: Row

    @cached_property
    def folder(self) -> Path:
        """Where it lies."""
        return Path(self.summary["folder"])

    @cached_property
    def runs(self) -> dict[str, list[RunView]]:
        """The finished runs of each method."""
        finished = [view for view in views_in(self.folder) if view.result]
        return {group[0].display: group for group in by_label(finished).values()}

    @cached_property
    def rows(self) -> dict[str, Row]:
        """The lines of its table."""
        return {row["display"]: row for row in self.summary["rows"]}

    @cached_property
    def scores(self) -> dict[str, Accuracies]:
        """Of each method, each client's accuracy in each seed."""
        return {name: [view.chosen for view in group] for name, group in self.runs.items()}

    def beside(self, ours: str) -> dict[str, Row]:
        """Ours minus each other method, client by client."""
        others = {name: found for name, found in self.scores.items() if name != ours}
        return pairs(self.scores[ours], others)

    def means(self) -> list[tuple[str, float, float]]:
        """Every method's accuracy, with half of its interval over seeds."""
        return [(name, row["accuracy"], row["accuracy_half_95"]) for name, row in self.rows.items()]

    def share(self, name: str) -> str:
        """A method's accuracy in words."""
        row = self.rows[name]
        return percent(row["accuracy"], row["accuracy_half_95"])


@dataclass(frozen=True)
class Told:
    """What a scene says and shows.

    Args:
        sentence: What its numbers say, and no more.
        badge: The same in a few words; ``good`` if the system gains what the scene is about.
        measure: What the values are.
        values: Each method's (name, value, half of its 95 % interval over seeds).
        facts: Other numbers of the sentence.
        pictures: SVG, each under a line of text.
    """

    sentence: str
    badge: str
    good: bool
    measure: str
    values: list[tuple[str, float, float]]
    facts: Row
    pictures: list[tuple[str, str]]


@dataclass(frozen=True)
class Scene:
    """One problem, and the system that answers it."""

    name: str
    title: str
    problem: str
    system: str
    tell: Callable[[PlayedComparison], Told] = field(repr=False)

    @property
    def recipe(self) -> str:
        """Its recipe."""
        return f"demo/{self.name}"


def badge(found: Mapping[str, Row]) -> tuple[str, bool]:
    """In a few words how a system stands to FedAvg and to local training, and whether it is above both."""
    ways = {name: verdict(found[name]) for name in BASELINES if name in found}
    above = [name for name, way in ways.items() if way == "above"]
    if above:
        return f"above {listed(above)}", len(above) == len(ways)
    return ("one seed: no test possible" if "one seed" in ways.values() else "no significant gain here"), False


def groups(played: PlayedComparison) -> Told:
    """HCFL: were the groups found, and what is that worth?"""
    found, row = played.beside("HCFL"), played.rows["HCFL"]
    planted = read_json(played.folder / FILE).get("groups") or []
    real = len({group for _, group in planted})
    k, ari = row["clusters"], row["ari"]
    met = f" It found {k:.3g} groups without knowing their number" if k is not None else " It found no groups"
    met += "" if ari is None else f" (true: {real}), with an adjusted Rand index of {ari:.2f}."
    told = f" (IFCA is given the true number, {real}.)" if "IFCA" in played.rows else ""
    words, good = badge(found)
    first, _ = clusters_in(played.runs["HCFL"][0].folder)
    names = {group: f"group {group + 1}" for group in sorted({group for _, group in planted})}
    members = {
        names[group]: [first.labels.get(c) for c in in_order([client_id(c) for c, g in planted if g == group])]
        for group in names
    }
    seed = played.runs["HCFL"][0].seed
    return Told(
        f"HCFL reaches {played.share('HCFL')}: {compared(found)}.{met}{told}",
        words,
        good,
        "test accuracy, mean over clients",
        played.means(),
        {"groups": k, "planted": real, "ari": ari},
        [
            ("Test accuracy, mean over clients", bars(played.means(), "HCFL")),
            (f"One square per client, coloured by the cluster that HCFL assigned (seed {seed})", patches(members)),
        ],
    )


def heads(played: PlayedComparison) -> Told:
    """HGLS with its codec: what peers' gradients are worth, and what they cost."""
    found = played.beside("HGLS")
    loads = [part for view in played.runs["HGLS"] for part in traffic(view.folder)["parts"]]
    sent = [part for part in loads if part["part"] in ("gradient", "gradients")]
    raw, wire = (sum(part[kind] for part in sent) / MEGABYTE / len(played.runs["HGLS"]) for kind in ("raw", "wire"))
    words, good = badge(found)
    return Told(
        f"HGLS reaches {played.share('HGLS')}: {compared(found)}. The head gradients that clients "
        f"exchange take {wire:.2f} MB instead of {raw:.1f} MB, {times(raw, wire)} times less.",
        words,
        good,
        "test accuracy, mean over clients",
        played.means(),
        {"megabytes_raw": raw, "megabytes_sent": wire},
        [
            ("Test accuracy, mean over clients", bars(played.means(), "HGLS")),
            (
                "Head gradients in a run, MB up and down",
                bars([("uncompressed", raw, 0), ("as sent", wire, 0)], "as sent", "MB"),
            ),
        ],
    )


MODES = {"universal": "frame", "global": "head", "realigned": "realigned"}
TIERS = {"head": "frequent classes", "middle": "middle", "tail": "rarest"}


def rare(played: PlayedComparison) -> Told:
    """FedLoGe: its global models on classes of equal number, and its personal ones on clients' own samples."""
    found = {n: [by_class(v.folder) for v in played.runs[n]] for n in ("FedAvg", "FedLoGe")}
    tail: dict[str, Accuracies] = {
        n: [{"all": run["global"]["deployed"]["by_share"]["tail"]} for run in runs] for n, runs in found.items()
    }
    whole: dict[str, Accuracies] = {
        n: [{"all": run["global"]["deployed"]["accuracy"]} for run in runs] for n, runs in found.items()
    }
    rarest = pairs(tail["FedLoGe"], {"FedAvg": tail["FedAvg"]})
    every = pairs(whole["FedLoGe"], {"FedAvg": whole["FedAvg"]})
    own = played.beside("FedLoGe")
    first = found["FedAvg"][0]
    shown = {"FedAvg": _tiers(found["FedAvg"], "deployed")}
    shown["FedAvg, realigned"] = _tiers(found["FedAvg"], "realigned")
    shown |= {f"FedLoGe, {told}": _tiers(found["FedLoGe"], mode) for mode, told in MODES.items()}
    few = len(first["groups"]["by_share"]["tail"])
    anew = (_share(found["FedAvg"], "accuracy"), shown["FedAvg, realigned"][TIERS["tail"]])
    good = verdict(every["FedAvg"]) == verdict(rarest["FedAvg"]) == "above"
    mean = {n: _mean([run["all"] for run in one["FedLoGe"]]) for n, one in (("whole", whole), ("tail", tail))}
    return Told(
        f"On a balanced test set FedLoGe's global model reaches {percent(*mean['whole'])}: "
        f"{compared(every)}; on the {few} rarest of {len(first['rows'])} classes {percent(*mean['tail'])}: "
        f"{compared(rarest)}. Realigning FedAvg's head afterwards, without training, gives "
        f"{percent(anew[0])} and {percent(anew[1])}. With their "
        f"personal models, clients reach {played.share('FedLoGe')} on their own test samples: {compared(own)}.",
        "above FedAvg, on all classes and on the rare ones" if good else "rare classes: no significant gain",
        good,
        "accuracy on a balanced test set",
        [(n, *_mean([run["all"] for run in runs])) for n, runs in whole.items()],
        {"own": played.means(), "modes": shown},
        [
            ("Global models on the balanced test set, by class frequency", grouped(shown, "FedLoGe")),
            ("Personal models on clients' own test samples", bars(played.means(), "FedLoGe")),
        ],
    )


def _tiers(runs: Sequence[Row], mode: str) -> dict[str, float]:
    return {
        told: float(np.mean([run["global"][mode]["by_share"][tier] for run in runs])) for tier, told in TIERS.items()
    }


def _share(runs: Sequence[Row], name: str) -> float:
    return float(np.mean([run["global"]["realigned"][name] for run in runs]))


def _mean(values: Sequence[float]) -> tuple[float, float]:
    found = interval(values)
    return found.mean, found.half


def links(played: PlayedComparison) -> Told:
    """Localize-and-Stitch: the accuracy that is left when far less is sent."""
    ours, found = "Localize-and-Stitch", played.beside("Localize-and-Stitch")
    up = {name: row["megabytes_up"] for name, row in played.rows.items()}
    fewer, pair = times(up["FedAvg"], up[ours]), found["FedAvg"]
    way = verdict(pair)
    lost = 100 * (pair["half"] - pair["difference"])
    doubt = f" A loss of up to {lost:.1f} points cannot be excluded." if way == "level" and lost > 0 else ""
    words = {
        "level": "accuracy not significantly different from FedAvg",
        "above": "above FedAvg",
        "below": "below FedAvg",
    }
    return Told(
        f"Clients send {up[ours]:.1f} MB up instead of {up['FedAvg']:.1f} MB, {fewer} times less, and reach "
        f"{played.share(ours)}: {compared(found)}.{doubt}",
        f"{fewer}x fewer bytes up; {words.get(way, 'one seed: accuracy not compared')}",
        way in ("level", "above"),
        "test accuracy, mean over clients",
        played.means(),
        {"megabytes_up": up},
        [
            (
                "Accuracy against MB sent up",
                lines(_curves(played), ours, "MB sent up (log scale)", "accuracy, %", log=True),
            ),
            ("Test accuracy, mean over clients", bars(played.means(), ours)),
        ],
    )


def _curves(played: PlayedComparison) -> dict[str, list[tuple[float, float]]]:
    """By megabytes up so far, the mean accuracy over seeds; of methods that send something."""
    found = {}
    for name, runs in played.runs.items():
        sent = np.mean([np.cumsum([row["bytes_up"] for row in view.rounds]) for view in runs], 0) / MEGABYTE
        rounds = [i for i, row in enumerate(runs[0].rounds) if row.get("test_accuracy") is not None]
        if sent[-1] > 0.1:
            found[name] = [
                (float(sent[i]), float(np.mean([v.rounds[i]["test_accuracy"] for v in runs]))) for i in rounds
            ]
    return found


def tasks(played: PlayedComparison) -> Told:
    """PODFCSSV: what is known of all tasks after the last one."""
    measure = played.summary["measure"].removesuffix("_average")
    probes = {n: [read_json(v.folder / PROBES)["measures"][measure] for v in runs] for n, runs in played.runs.items()}
    scores: dict[str, Accuracies] = {n: [{"all": float(one["average"])} for one in runs] for n, runs in probes.items()}
    found = pairs(scores["PODFCSSV"], {n: s for n, s in scores.items() if n != "PODFCSSV"})
    start = float(np.mean([one["before"] for one in probes["PODFCSSV"]]))
    words, good = badge(found)
    values = [(n, *_mean([s["all"] for s in runs])) for n, runs in scores.items()]
    right = next(percent(value, half) for name, value, half in values if name == "PODFCSSV")
    lost = {n: interval([one["forgetting"] for one in runs]) for n, runs in probes.items()}
    curves = {n: _after(runs) for n, runs in probes.items()}
    return Told(
        f"After the last task, a linear probe on PODFCSSV's features reaches {right} over all tasks: "
        f"{compared(found)}. An untrained network gives {percent(start)}. On earlier tasks PODFCSSV "
        f"{_forgot(lost['PODFCSSV'].mean)} after they were learned, FedAvg {_forgot(lost['FedAvg'].mean)}.",
        words,
        good,
        f"{played.summary['probe']}, after the last task",
        values,
        {"untrained": start, "forgotten": {n: one.mean for n, one in lost.items()}},
        [
            (
                "Accuracy of a linear probe over all tasks, after each task",
                lines(curves, "PODFCSSV", "tasks learned", "accuracy, %"),
            )
        ],
    )


def _forgot(points: float) -> str:
    return f"{'lost' if points >= 0 else 'gained'} {abs(100 * points):.1f} points"


def _after(runs: Sequence[Row]) -> list[tuple[float, float]]:
    """By tasks learned, the mean over all tasks and seeds."""
    stages = np.mean([[one["before"], *one["matrix"]] for one in runs], axis=(0, 2))
    return [(float(place), float(value)) for place, value in enumerate(stages)]


SCENES = {
    scene.name: scene
    for scene in (
        Scene(
            "groups",
            "Hidden groups",
            "My clients fall into groups, but I do not know which, or how many.",
            "HCFL",
            groups,
        ),
        Scene(
            "heads",
            "Personal heads",
            "Each client has few samples and its own class distribution. Can it benefit from the others?",
            "HGLS",
            heads,
        ),
        Scene("rare", "Rare classes", "Some classes are rare, and the model ignores them.", "FedLoGe", rare),
        Scene("links", "Slow links", "My clients' uplinks are slow.", "Localize-and-Stitch", links),
        Scene(
            "tasks", "New tasks without labels", "New kinds of data keep arriving, without labels.", "PODFCSSV", tasks
        ),
    )
}
