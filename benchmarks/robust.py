"""Which aggregator holds against malicious clients, and what does it cost? Tables of docs/robust.md.

    python benchmarks/robust.py cost [--clients 100] [--numbers 1600000]  time of each rule beside the plain mean's
    python benchmarks/robust.py flower                                    beside Flower's strategies, on equal replies
    python benchmarks/robust.py study [--seeds 5] [--until HH:MM] [--only fashion_iid ...]
    python benchmarks/robust.py write                                     the tables, from docs/robust.json

The study plays recipes/attacks/*.toml as ``fedquilt robustness`` does, a seed of each federation after the other. It
needs fashion_mnist and mnist in FEDQUILT_DATA; runs that are finished are kept in the folder of results (--folder), so
it may be stopped at any time. ``--until`` (UTC) begins no further part after that. Everything goes to docs/robust.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from fedquilt.config.config import load
from fedquilt.core.exchange import Context, Reply
from fedquilt.core.params import Params, norm, sub
from fedquilt.core.seed import Seed
from fedquilt.methods.fedavg import Upload
from fedquilt.pieces import robust
from fedquilt.pieces.aggregators import mean
from fedquilt.pieces.robust.attacks import alie, gaussian, ipm, min_max, sign_flip
from fedquilt.results.breakdown import span
from fedquilt.storage.files import to_json
from fedquilt.studies.robustness import robustness

ROOT = Path(__file__).resolve().parents[1]
FOUND, PAGE = ROOT / "docs/robust.json", ROOT / "docs/robust.md"
FEDERATIONS = {
    "fashion_iid": "Fashion-MNIST, drawn at random",
    "fashion_dirichlet": "Fashion-MNIST, Dirichlet(0.3)",
    "fashion_groups": "Fashion-MNIST, three groups of classes, HCFL",
    "mnist_writers": "MNIST, by writers",
}
FLOWER = ("FedMedian", "FedTrimmedAvg")
INTRODUCED = {  # what stands above the tables of each place; a place without numbers stays empty
    "rules": """\
`recipes/attacks/fashion_*.toml` and `mnist_writers.toml`: 20 clients, softmax regression, 15 rounds, six attacks by 10,
20 and 30 % of the clients. *Cost* is what a rule costs without an attack, *lost* what it loses under one, in points of
accuracy, both against the mean without one. *Held*: of the attacks that take more than 20 points from the mean, those
against which the rule stays within 3. The recommended rule is bold. All tables are written by `benchmarks/robust.py`,
which resumes after an interruption; one seed cannot distinguish rules.""",
    "worst": "Attack by attack: what the mean and the recommended rule keep, and the best rule there.",
    "cost": """\
**Time.** 100 replies of 1.6 million numbers, one thread of a machine that others used too, each rule in turn with the
mean. What makes Krum and its kin slow are the products of each two replies, n² d; with `sample` they take n² times so
many numbers, and what is left is one pass for the lengths and one for the sum.""",
    "flower": """\
**Beside Flower's strategies** (flwr 1.41), on equal replies: 20 clients with random changes that have something in
common, 6 of them malicious. How far the result is from the honest mean, in its lengths; ours / Flower's. Where both
have the same rule (mean, median, trimmed mean, Multi-Krum without near ties) they agree to 1e-6. Flower's Bulyan makes
its choice at once, ours one after the other as the paper has it.""",
}
CONTEXT = Context(0, None, Seed(0))
SAMPLE = 8_192  # numbers of each change


# What rules cost


def replies_of(clients: int, numbers: int) -> tuple[Params, list[Reply]]:
    """A model of two tensors, and random changes of it."""
    wide = numbers // 1000
    shapes = {"features.weight": (wide, 990), "head.weight": (wide, 10)}

    def change(client: int) -> Params:
        draw = Seed(0).fold("cost", client).torch()
        return {n: torch.randn(shape, generator=draw) for n, shape in shapes.items()}

    replies = [Reply(i, 100 + i, Upload(change(i))) for i in range(clients)]
    return {n: torch.zeros(shape) for n, shape in shapes.items()}, replies


def cost(clients: int, numbers: int, repeats: int = 3) -> dict[str, Any]:
    """Seconds of one thread for each rule, the least of some, in turn with the mean; and their ratio."""
    torch.set_num_threads(1)
    current, replies = replies_of(clients, numbers)
    rules: dict[str, Callable[..., Params]] = {
        "clip_norm": robust.clip_norm(),
        "clip_norm, fixed radius": robust.clip_norm(radius=1.0),
        "arc": robust.arc(byzantine=0.3),
        "nearest_mixing+geometric_median, sample=8192": robust.nearest_mixing(
            byzantine=0.3, then=robust.geometric_median(), sample=SAMPLE
        ),
        "clip_norm+nearest_mixing+geometric_median, sample=8192": robust.clip_norm(
            then=robust.nearest_mixing(byzantine=0.3, then=robust.geometric_median()), sample=SAMPLE
        ),
        "nearest_mixing+geometric_median": robust.nearest_mixing(byzantine=0.3, then=robust.geometric_median()),
        "multi_krum": robust.multi_krum(byzantine=0.3),
        "trimmed_mean": robust.trimmed_mean(byzantine=0.3),
    }
    found: dict[str, Any] = {"clients": clients, "numbers": numbers, "rules": {}}
    for name, rule in rules.items():
        spent: dict[str, list[float]] = {"mean": [], name: []}
        for _ in range(repeats if name not in ("multi_krum", "trimmed_mean") else 1):
            for which, merge in (("mean", mean), (name, rule)):
                began = time.process_time()
                merge(current, iter(replies), CONTEXT)
                spent[which].append(time.process_time() - began)
        plain, own = min(spent["mean"]), min(spent[name])
        found["rules"][name] = {"mean": plain, "seconds": own, "ratio": own / plain}
        print(f"{name:24} {own:7.2f} s   {own / plain:6.2f} times the mean ({plain:.2f} s)", flush=True)
    return found


# Beside Flower's strategies


def flower(clients: int = 20, numbers: int = 20_000, false: int = 6) -> list[dict[str, Any]]:
    """How far rules end from the honest mean, in its lengths, when some of the same replies are false."""
    sys.path.append(str(Path(__file__).parent))  # at the end: benchmarks have names that others have too
    from peers import flower_rules as theirs

    pairs = {
        "mean": (mean, theirs.FedAvg()),
        "median": (robust.median(by_samples=False), theirs.FedMedian()),
        "trimmed_mean": (robust.trimmed_mean(byzantine=0.3, by_samples=False), theirs.FedTrimmedAvg(0.3)),
        "multi_krum": (robust.multi_krum(byzantine=0.3), theirs.MultiKrum(0.3)),
        "bulyan": (robust.bulyan(byzantine=0.2, by_samples=False), theirs.Bulyan(0.2)),
        "clip_norm": (robust.clip_norm(), None),
        "geometric_median": (robust.geometric_median(), None),
        "nearest_mixing+geometric_median": (robust.nearest_mixing(byzantine=0.3, then=robust.geometric_median()), None),
    }
    current, drawn = replies_of(clients, numbers)
    common = replies_of(1, numbers)[1][0].upload.delta  # honest changes have something in common
    honest = [Reply(r.client, r.samples, Upload({n: t + common[n] for n, t in r.upload.delta.items()})) for r in drawn]
    target, rows = mean(current, honest[false:], CONTEXT), []
    for attack in (sign_flip(10.0), gaussian(), alie(), ipm(10.0), min_max()):
        own, others = ([r.upload.delta for r in part] for part in (honest[:false], honest[false:]))
        sent = attack(own, others, Seed(0))
        forged = [Reply(r.client, r.samples, Upload(d)) for r, d in zip(honest, [*sent, *others], strict=True)]
        for rule, both in pairs.items():
            made = [None if merge is None else merge(current, forged, CONTEXT) for merge in both]
            away = [None if m is None else norm(sub(m, target)) / norm(target) for m in made]
            apart = None if made[1] is None else norm(sub(made[0], made[1])) / norm(made[1])
            rows.append(
                {"attack": type(attack).__name__, "rule": rule, "ours": away[0], "flower": away[1]} | {"apart": apart}
            )
            print(rows[-1], flush=True)
    return rows


# The study


def parts(seeds: int, only: Sequence[str]) -> Iterator[tuple[str, list[int]]]:
    """A federation and the seeds that it has so far: all federations with one seed, then with two, ..."""
    for count in range(1, seeds + 1):
        for name in FEDERATIONS:
            if not only or name in only:
                yield name, list(range(count))


def study(
    folder: Path, seeds: int, until: str | None, only: Sequence[str], beside: bool, changes: Sequence[str]
) -> None:
    """Play what is left, part by part; after each docs/robust.json has what is known."""
    for name, some in parts(seeds, only):
        if until is not None and datetime.now(UTC).strftime("%H:%M") >= until:
            print(f"{until} is over; {name} with {len(some)} seeds is left", flush=True)
            return
        config = load(
            ROOT / f"recipes/attacks/{name}.toml", [f"output.folder={folder}", "meters.energy=false", *changes]
        )
        rules = list(config.robustness.rules)
        if beside:
            rules += [{"kind": f"{ROOT}/benchmarks/peers/flower_rules.py:{rule}"} for rule in FLOWER]
        plan = config.robustness.model_copy(update={"rules": rules, "seeds": some})
        began = time.monotonic()
        summary = robustness(config.model_copy(update={"robustness": plan}))
        keep(name, {**compact(summary), "clients": config.data.clients, "seeds": len(some)})
        print(
            f"{name}, {len(some)} seeds: {time.monotonic() - began:.0f} s, {len(summary['failed'])} failed", flush=True
        )


def compact(summary: Mapping[str, Any]) -> dict[str, Any]:
    """What the tables need."""
    kept = ("method", "rounds", "chance", "rules", "recommended", "helpless")
    numbers = ("rule", "attack", "share", "accuracy", "half_95", "lost", "lost_half_95", "ended_early")
    return {n: summary[n] for n in kept} | {"cells": [{n: c[n] for n in numbers} for c in summary["cells"]]}


def known() -> dict[str, Any]:
    """What was measured so far."""
    return dict(json.loads(FOUND.read_text())) if FOUND.exists() else {}


def keep(name: str, value: object) -> None:
    """Write it beside the rest."""
    FOUND.write_text(to_json({**known(), name: value}, indent=1) + "\n")


# The tables


def tables(found: Mapping[str, Any]) -> dict[str, str]:
    """The text of each marked place of the page."""
    there = {name: found[name] for name in FEDERATIONS if name in found}
    text = {"rules": rules_table(there), "worst": shares_table(there)} if there else {}
    if "cost" in found:
        text["cost"] = cost_table(found["cost"])
    if "flower" in found:
        text["flower"] = flower_table(found["flower"])
    return text


def rules_table(found: Mapping[str, Any]) -> str:
    """What each rule costs, and what it loses."""
    lines = []
    for name, one in found.items():
        seeds = f"{one['seeds']} seed{'s' * (one['seeds'] > 1)}"
        lines += [f"**{FEDERATIONS[name]}** ({seeds}; {one['rounds']} rounds)", ""]
        lines += [
            "| rule | no attack, % | cost | lost, mean | lost, worst | under | held |",
            "|---|---|---|---|---|---|---|",
        ]
        clean = {c["rule"]: c for c in one["cells"] if c["attack"] is None}
        for row in one["rules"]:
            cells = [f"{100 * row[n]:.1f}" for n in ("cost", "lost", "worst")]
            mark = "**" if row["rule"] == one["recommended"]["rule"] else ""
            held = f"{row['held']} of {row['spoilt']}"
            told = [f"{mark}{row['rule']}{mark}", span(clean[row["rule"]]), *cells, row["worst_attack"], held]
            lines.append(f"| {' | '.join(told)} |")
        lines.append("")
        for where in one["helpless"]:
            lines.append(
                f"- no rule holds against {where['attack']} by {100 * where['share']:g} %: the best, {where['best']}, "
                f"loses {100 * where['lost']:.1f} points"
            )
        lines += [""] if one["helpless"] else []
    return "\n".join(lines).rstrip()


def shares_table(found: Mapping[str, Any]) -> str:
    """Of each attack and share: what the mean keeps, what the recommended rule keeps, and the best rule there."""
    lines = []
    for name, one in found.items():
        chosen = one["recommended"]["rule"]
        lines += [
            f"**{FEDERATIONS[name]}**",
            "",
            f"| attack | share | mean | {chosen} | best | its accuracy |",
            "|---|---|---|---|---|---|",
        ]
        cells = {(c["rule"], c["attack"], c["share"]): c for c in one["cells"]}
        for attack, share in dict.fromkeys((c["attack"], c["share"]) for c in one["cells"] if c["attack"]):
            here = {rule: cells[rule, attack, share] for rule in (r["rule"] for r in one["rules"])}
            best = max(here, key=lambda rule: here[rule]["accuracy"])
            told = [f"{100 * share:g} %", span(here["mean"]), span(here[chosen]), best, span(here[best])]
            lines.append(f"| {attack} | {' | '.join(told)} |")
        lines.append("")
    return "\n".join(lines).rstrip()


def cost_table(found: Mapping[str, Any]) -> str:
    """Seconds, and times the mean."""
    lines = ["| rule | seconds | times the mean |", "|---|---|---|"]
    for name, row in found["rules"].items():
        lines.append(f"| {name} | {row['seconds']:.2f} | {row['ratio']:.2f} |")
    return "\n".join(lines)


def flower_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """How far each ends from the honest mean."""
    attacks = list(dict.fromkeys(row["attack"] for row in rows))
    lines = [f"| rule | {' | '.join(attacks)} |", "|---|" + "---|" * len(attacks)]
    for rule in dict.fromkeys(row["rule"] for row in rows):
        mine = {row["attack"]: row for row in rows if row["rule"] == rule}
        told = [
            f"{mine[a]['ours']:.2f}" + ("" if mine[a]["flower"] is None else f" / {mine[a]['flower']:.2f}")
            for a in attacks
        ]
        lines.append(f"| {rule} | {' | '.join(told)} |")
    return "\n".join(lines)


def written(page: str, found: Mapping[str, Any]) -> str:
    """The page with the tables of what was measured, each with what it is about."""
    there = tables(found)
    for name, introduced in INTRODUCED.items():
        before, begin, rest = page.partition(f"<!-- {name}: benchmarks/robust.py write -->\n")
        _, end, after = rest.partition(f"<!-- end of {name} -->")
        if begin:
            text = f"\n{introduced}\n\n{there[name]}\n\n" if name in there else "\n"
            page = f"{before}{begin}{text}{end}{after}"
    return page


def main() -> None:
    """One of the four."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("cost", "flower", "study", "write"))
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--numbers", type=int, default=1_600_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--until")
    parser.add_argument("--only", nargs="*", default=())
    parser.add_argument("--folder", type=Path, default=Path("runs/robust"))
    parser.add_argument("--no-flower", action="store_true", help="Without Flower's strategies among the rules.")
    parser.add_argument("--set", nargs="*", default=(), metavar="KEY=VALUE")
    asked = parser.parse_args()
    if asked.what == "cost":
        keep("cost", cost(asked.clients, asked.numbers))
    elif asked.what == "flower":
        keep("flower", flower())
    elif asked.what == "study":
        study(asked.folder, asked.seeds, asked.until, asked.only, not asked.no_flower, asked.set)
    PAGE.write_text(written(PAGE.read_text(), known()))


if __name__ == "__main__":
    main()
