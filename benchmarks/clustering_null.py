"""Does a discovery find the groups that are there, and none where there are none? Simulated federations say.

    FEDQUILT_DATA=FOLDER python benchmarks/clustering_null.py [--federations 200] [--first 1000] [--json FILE]
    python docs/clustering_table.py          # the table of docs/methods/clusters.md from that file

Four minutes on one core. Each federation is drawn by its number: its data (MNIST and Omniglot at 14 x 14, AG News, 64
random features), its network (logistic regression, one hidden layer, the mean of word vectors), its clients, how many
samples they have, how many rounds of FedAvg come first, and what differs between its clients. Its clients really train,
all at once as one batch of networks, on each half of their samples; what they show is judged as HCFL's discovery does
(criterion 'auto', cluster_by 'auto'), and beside it as it did before (criterion 'silhouette', by the embedding, or by
all of a network that has none).

Right is: as many clusters as groups were planted, and the same clients in them (adjusted Rand index of 0.95 or more);
one cluster where nothing was planted. Nothing is planted with 'iid', with 'odd' (one client of another kind, which is
no group), and with Dirichlet mixtures of classes: these differ from client to client, but in no groups. One cluster in
spite of planted groups is counted apart ('one'): it is what FedAvg does anyway; anything else is wrong. The numbers of
federations below 1000 were used to choose the rule's limits; 1000 and above were not looked at before.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import re
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from fedquilt.core.seed import Seed
from fedquilt.methods.clustered.halves import believed, part_of
from fedquilt.pieces.clustering.agglomerative import agglomerate

DATA = Path(os.environ.get("FEDQUILT_DATA", "data"))
EPOCHS, BATCH, HIDDEN = 3, 16, 24
KINDS = ("label groups", "rotations", "other labels", "permuted inputs", "iid", "odd", "dirichlet")
ALPHAS = (0.1, 0.3, 1.0, 3.0, 10.0)
Stacked = dict[str, Tensor]  # parameters of all clients, clients first


@dataclass(frozen=True)
class Drawn:
    """What a simulated federation is like."""

    number: int
    data: str
    network: str
    kind: str
    classes: int
    clients: int
    groups: int
    samples: int
    warm_up: int
    alpha: float = 0.0
    uneven: bool = False


# Data


@lru_cache
def pool(data: str) -> tuple[Tensor, Tensor]:
    """All rows and labels of a data set."""
    if data == "mnist":
        with np.load(DATA / "mnist.npz") as held:
            x, y = torch.from_numpy(held["x_train"][:20000]).float() / 255, torch.from_numpy(held["y_train"][:20000])
        return torch.nn.functional.avg_pool2d(x[:, None], 2).flatten(1) - 0.13, y.long()
    if data == "ag_news":
        return _news()
    if data == "omniglot":
        with np.load(DATA / "omniglot_small.npz") as held:
            bits = np.unpackbits(held["x_packed"], axis=1)[:, : 105 * 105].reshape(-1, 1, 105, 105)
            x, y = torch.nn.functional.adaptive_avg_pool2d(torch.from_numpy(bits).float(), 14), held["y"]
        return 4 * x.flatten(1), torch.from_numpy(y).long()
    raise ValueError(data)


def _news(words: int = 1500) -> tuple[Tensor, Tensor]:
    with gzip.open(DATA / "ag_news_test.csv.gz", "rt", newline="") as file:
        rows = list(csv.DictReader(file))
    texts = [re.findall(r"[a-z0-9]+", (r["title"] + " " + r["description"]).lower()) for r in rows]
    common = Counter(w for text in texts for w in text).most_common(words)
    place = {w: i for i, (w, _) in enumerate(common)}
    x = torch.zeros(len(texts), words)
    for i, text in enumerate(texts):
        for w in text:
            if w in place:
                x[i, place[w]] += 1
    return x / x.sum(1, keepdim=True).clamp(min=1), torch.tensor([int(r["label"]) for r in rows])


def _random_features(classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """200 rows of each class around a centre of its own, 64 features."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(classes).repeat_interleave(max(200, 20000 // classes // 4))
    return 0.6 * torch.randn(classes, 64, generator=draw)[y] + torch.randn(len(y), 64, generator=draw), y


def drawn(number: int) -> Drawn:
    """The federation of this number."""
    rng = np.random.default_rng(number)
    kind = KINDS[number % len(KINDS)]
    data = str(rng.choice(["mnist", "mnist", "features", "ag_news", "omniglot"]))
    if kind == "rotations":
        data = "mnist"
    classes = {"mnist": 10, "ag_news": 4, "omniglot": 50}.get(data) or int(rng.choice([4, 10, 20, 50, 100]))
    network = "words" if data == "ag_news" else str(rng.choice(["logistic", "hidden"]))
    clients = int(rng.choice([10, 20, 30, 50, 100] if data != "omniglot" else [10, 20]))
    most = 2 if data == "ag_news" and kind == "label groups" else min(5, clients // 4)
    return Drawn(
        number,
        data,
        network,
        kind,
        classes,
        clients,
        groups=1 if kind in ("iid", "odd", "dirichlet") else int(rng.integers(2, most + 1)),
        samples=int(rng.choice([40, 80, 160])),
        warm_up=int(rng.choice([0, 1, 3])),
        alpha=float(rng.choice(ALPHAS)) if kind == "dirichlet" else 0.0,
        uneven=bool(rng.integers(2)),
    )


def rows(fed: Drawn) -> tuple[Tensor, Tensor, Tensor, np.ndarray]:
    """Inputs [clients, samples, d], labels, which of them count, and the group of each client."""
    x, y = _random_features(fed.classes, fed.number) if fed.data == "features" else pool(fed.data)
    x, y = x[y < fed.classes], y[y < fed.classes]
    rng = np.random.default_rng(10_000 + fed.number)
    group = np.sort(np.arange(fed.clients) % fed.groups)
    if fed.kind == "odd":
        group[-1] = 1
    by_class = [np.flatnonzero(y.numpy() == c) for c in range(fed.classes)]
    among = [by_class[c] for c in rng.permutation(fed.classes)]
    parts = np.array_split(np.arange(fed.classes), max(fed.groups, 2 if fed.kind == "odd" else 1))
    chosen = np.zeros((fed.clients, fed.samples), np.int64)
    for i in range(fed.clients):
        share = np.ones(fed.classes)
        if fed.kind == "dirichlet":
            share = rng.dirichlet(np.full(fed.classes, fed.alpha))
        elif fed.kind in ("label groups", "odd"):
            share = np.isin(np.arange(fed.classes), parts[group[i]]).astype(float)
        which = rng.choice(fed.classes, fed.samples, p=share / share.sum())
        chosen[i] = [rng.choice(among[c]) for c in which]
    xs, ys = x[torch.from_numpy(chosen)], y[torch.from_numpy(chosen)]
    turn = np.random.default_rng(20_000 + fed.number)
    for g in range(1, fed.groups):
        mine = torch.from_numpy(group == g)
        if fed.kind == "rotations":
            pictures = xs[mine].unflatten(-1, (14, 14))
            xs[mine] = (pictures.rot90(g, (-2, -1)) if g < 4 else pictures.flip(-1)).flatten(-2)
        elif fed.kind == "other labels":
            ys[mine] = torch.from_numpy(turn.permutation(fed.classes))[ys[mine]]
        elif fed.kind == "permuted inputs":
            xs[mine] = xs[mine][..., torch.from_numpy(turn.permutation(xs.shape[-1]))]
    sizes = rng.integers(fed.samples // 3, fed.samples + 1, fed.clients) if fed.uneven else [fed.samples] * fed.clients
    counts = torch.arange(fed.samples) < torch.as_tensor(sizes)[:, None]
    return xs, ys, counts, group


# Networks and their training, all clients side by side


def first_model(fed: Drawn, width: int) -> Stacked:
    """The network's first weights."""
    draw = torch.Generator().manual_seed(fed.number)

    def linear(name: str, wide: int, high: int) -> Stacked:
        bound = wide**-0.5
        return {
            f"{name}.weight": (2 * torch.rand(wide, high, generator=draw) - 1) * bound,
            f"{name}.bias": (2 * torch.rand(high, generator=draw) - 1) * bound,
        }

    if fed.network == "logistic":
        return linear("head", width, fed.classes)
    if fed.network == "hidden":
        return linear("body", width, HIDDEN) | linear("head", HIDDEN, fed.classes)
    return {"body.words": torch.randn(width, HIDDEN, generator=draw)} | linear("head", HIDDEN, fed.classes)


def scores(p: Stacked, x: Tensor) -> Tensor:
    """[clients, rows, classes]."""
    if "body.weight" in p:
        x = torch.relu(torch.baddbmm(p["body.bias"][:, None], x, p["body.weight"]))
    elif "body.words" in p:
        x = torch.bmm(x, p["body.words"])
    return torch.baddbmm(p["head.bias"][:, None], x, p["head.weight"])


def trained(fed: Drawn, start: Stacked, x: Tensor, y: Tensor, counts: Tensor, seed: int) -> Stacked:
    """The models of all clients after local training from one start."""
    n, draw = len(x), torch.Generator().manual_seed(seed)
    lr = {"words": 1.0}.get(fed.network, 0.1)
    p = {name: w.expand(n, *w.shape).clone().requires_grad_() for name, w in start.items()}
    clients = torch.arange(n)[:, None]
    for _ in range(EPOCHS):
        order = torch.rand(counts.shape, generator=draw).masked_fill(~counts, 2.0).argsort(1)  # those that count first
        for low in range(0, x.shape[1], BATCH):
            at = order[:, low : low + BATCH]
            keep = counts[clients, at].float()
            loss = torch.nn.functional.cross_entropy(
                scores(p, x[clients, at]).flatten(0, 1), y[clients, at].flatten(), reduction="none"
            ).view_as(keep)
            total = (loss * keep).sum(1) / keep.sum(1).clamp(min=1)
            grads = torch.autograd.grad(total.sum(), list(p.values()))
            with torch.no_grad():
                for w, g in zip(p.values(), grads, strict=True):
                    w -= lr * g
    return {name: w.detach() for name, w in p.items()}


def halves(counts: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Each client's samples in two halves."""
    order = torch.rand(counts.shape, generator=torch.Generator().manual_seed(seed)).masked_fill(~counts, 2.0).argsort(1)
    rank = order.argsort(1)
    first = counts & (rank < counts.sum(1, keepdim=True) // 2)
    return first, counts & ~first


def shown(fed: Drawn) -> tuple[dict[str, tuple[Tensor, Tensor]], np.ndarray]:
    """What the clients show at the discovery, [clients, numbers] of each half, by part of the network; their groups."""
    x, y, counts, group = rows(fed)
    model = first_model(fed, x.shape[-1])
    for t in range(fed.warm_up):
        after = trained(fed, model, x, y, counts, fed.number + t)
        weight = counts.sum(1).float() / counts.sum()
        model = {name: torch.tensordot(weight, w, 1) for name, w in after.items()}
    both = [trained(fed, model, x, y, half, fed.number + 100 + i) for i, half in enumerate(halves(counts, fed.number))]
    parts = {
        part: [n for n in model if n.startswith(begin)] for part, begin in (("embedding", "body"), ("head", "head"))
    }
    parts |= {"bias": [n for n in model if n.endswith("bias")], "all": list(model)}
    if not parts["embedding"]:
        del parts["embedding"], parts["head"]  # that is all
    update = {
        part: tuple(torch.cat([(m[n] - model[n]).flatten(1) for n in names], 1) for m in both)
        for part, names in parts.items()
    }
    return update, group


def played(number: int) -> dict[str, Any]:
    """What was found in the federation of this number."""
    fed, began = drawn(number), time.perf_counter()
    parts, group = shown(fed)
    trained_in, busy = time.perf_counter() - began, time.process_time()
    found = believed(
        {
            part: agglomerate(dict(enumerate(a)), again=dict(enumerate(b)), auto=True, seed=Seed(number))
            for part, (a, b) in parts.items()
        }
    )
    seconds = time.process_time() - busy
    first, second = parts.get("embedding", parts["all"])
    before = agglomerate(dict(enumerate(first + second)), silhouette=True, seed=Seed(number))
    told: dict[str, Any] = {
        **asdict(fed),
        "seconds_training": round(trained_in, 2),
        "seconds_of_cpu": round(seconds, 2),
    }
    for name, result in (("auto", found), ("silhouette", before)):
        labels = [result.labels[i] for i in range(fed.clients)]
        planted = np.zeros_like(group) if fed.groups == 1 else group
        met = adjusted_rand_score(planted, labels)
        verdict = "right" if met >= 0.95 else "one" if result.k == 1 else "wrong"
        told[name] = {"k": result.k, "ari": round(float(met), 3), "verdict": verdict}
    return told | {"part": part_of(found) if found.k > 1 else ""}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--federations", type=int, default=200)
    parser.add_argument("--first", type=int, default=1000, help="the number of the first federation")
    parser.add_argument("--json", type=Path, default=Path("docs/clustering_null.json"))
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    told = []
    for number in range(chosen.first, chosen.first + chosen.federations):
        told.append(played(number))
        row = told[-1]
        if row["auto"]["verdict"] == "wrong":
            print(json.dumps(row), flush=True)
    for kind in (*KINDS, "all"):
        some = [row for row in told if kind in (row["kind"], "all")]
        counts = {rule: Counter(row[rule]["verdict"] for row in some) for rule in ("auto", "silhouette")}
        print(f"{kind:16} {len(some):4}", {rule: dict(c) for rule, c in counts.items()})
    print("slowest decision", max(row["seconds_of_cpu"] for row in told), "s of CPU")
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    chosen.json.write_text("[\n" + ",\n".join(json.dumps(row) for row in told) + "\n]\n")
    good = sum(row["auto"]["verdict"] != "wrong" for row in told)
    return 0 if good >= 0.95 * len(told) else 1


if __name__ == "__main__":
    sys.exit(main())
