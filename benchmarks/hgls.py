"""What does the head search of HGLS cost, measured in local epochs? Ratios inside one run, medians of several rounds.

    python benchmarks/hgls.py [--repeats 5] [--limit 4000] [--json benchmarks/results/hgls.json]

Workload: Fashion-MNIST, 20 clients (Dirichlet 0.5), FedAvgCNN, batches of 10; without it in FEDQUILT_DATA the embedded
digits, enlarged to 28 x 28. All sums are over the 20 clients of a round; one thread.

- search: trying 20 candidates on features that are there already (at most 0.15 of an epoch).
- features: one pass over the client's samples with the new body, which the search needs first.
- exchange: the whole client update, features, search, unpacking and packing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from fedquilt.config.config import parse
from fedquilt.core.params import pick
from fedquilt.core.seed import Seed
from fedquilt.engines.local import Local
from fedquilt.errors import FedquiltError
from fedquilt.methods.personalised.hgls import HGLS
from fedquilt.methods.personalised.own_heads import as_matrix, is_head, rows_of
from fedquilt.models.registry import net
from fedquilt.pieces.optimizers import SGD
from fedquilt.records.record import unpack
from fedquilt.rounds.rounds import Rounds
from fedquilt.runs.build import federation_of

CLIENTS, TARGET = 20, 0.15


def federation(limit: int) -> tuple[Any, str]:
    """Fashion-MNIST if it is there, else the digits."""
    common = {"clients": CLIENTS, "partition": {"kind": "dirichlet", "alpha": 0.5, "minimum": 20}, "limit": limit}
    try:
        return federation_of(parse({"data": {**common, "source": "fashion_mnist"}})), "fashion_mnist"
    except FedquiltError:
        enlarged = {"source": "digits", "transforms": [{"kind": "resize", "size": 28}]}
        return federation_of(parse({"data": {**common, **enlarged}})), "digits"


def taken(rounds: Rounds, name: str) -> float:
    """Seconds of a round's client updates of one kind."""
    log = rounds.play()
    return sum(v.seconds for v in log.updates if v.exchange == name)


def search_seconds(rounds: Rounds, data: Any) -> tuple[float, float]:
    """Seconds for features and for the search alone, of all clients, from where the run is now."""
    method, state = rounds.method, rounds.state
    _, trip = method.exchanges()
    features = search = 0.0
    for client in data.ids:
        mine, sent = unpack(rounds.slots.get(client)).state, trip.down(state, client)
        model = method.base.personal_model(sent.base, mine.base)
        began = time.perf_counter()
        rows = rows_of(method.net, model, data.site(client, 0).train)
        ready = time.perf_counter()
        candidates = [as_matrix(gradient) for gradient in sent.gradients]
        found = method.search(
            as_matrix(pick(is_head, model)), as_matrix(mine.gradient), candidates, rows, rows, Seed(0)
        )
        search += time.perf_counter() - ready
        features += ready - began
        assert found.candidates == CLIENTS
    return features, search


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--limit", type=int, default=4000)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    data, source = federation(chosen.limit)
    network = net("fedavg_cnn", (1, 28, 28), 10)
    work = {"optimizer": SGD(0.01), "batch_size": 10, "epochs": 1}
    epochs = Rounds(HGLS(network, search="off", **work), data, Local(), Seed(0))
    ours = Rounds(HGLS(network, mean_head=False, **work), data, Local(), Seed(0))
    ratios: dict[str, list[float]] = {"search": [], "features": [], "trip": []}
    for repeat in range(chosen.repeats + 1):
        epoch, trip = taken(epochs, "train"), taken(ours, "search")
        features, search = search_seconds(ours, data)
        if repeat:  # the first warms up
            for name, seconds in (("search", search), ("features", features), ("trip", trip)):
                ratios[name].append(seconds / epoch)
    result = {
        "source": source,
        "rows": sum(data.size(c) for c in data.ids),
        "candidates": CLIENTS,
        **{name: statistics.median(values) for name, values in ratios.items()},
        "target_search": TARGET,
        "met": statistics.median(ratios["search"]) <= TARGET,
    }
    print(f"{source}, {result['rows']} rows, {CLIENTS} candidates; shares of one local epoch:")
    for name, values in ratios.items():
        print(f"  {name:9} {statistics.median(values):.3f}  ({min(values):.3f} to {max(values):.3f})")
    if chosen.json:
        chosen.json.parent.mkdir(parents=True, exist_ok=True)
        chosen.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
