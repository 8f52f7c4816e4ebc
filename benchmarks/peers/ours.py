"""fedquilt's FedAvg on the engine of the first argument: local, workers (two processes), or lanes."""

import os
import sys

from work import BATCH, WORKS, asked, network, now, start_of, told

from fedquilt import FedAvg, Federation, Net, at_random, everyone, run
from fedquilt.engines.lanes import Lanes
from fedquilt.pieces.optimizers import SGD


def started():
    """The network with the weights all systems start from."""
    module = network(WORKS[os.environ["PEERS_WORK"]])
    module.load_state_dict(start_of(os.environ["PEERS_DATA"]))
    return module


def main() -> None:
    """Play the rounds."""
    engine = sys.argv[1]
    work, data, rounds = asked()
    rows = {c: {"train": range(c * work.rows, (c + 1) * work.rows)} for c in range(work.clients)}
    federation = Federation.from_rows({"x": data.x, "y": data.y}, rows)
    cohort = everyone if work.cohort == work.clients else at_random(work.cohort)
    method = FedAvg(objective=Net(started), optimizer=SGD(work.lr), batch_size=BATCH, cohort=cohort)
    ends, model = [now()], {}
    count = 2 if engine == "workers" else None
    used = Lanes(work.cohort) if engine == "lanes" else engine
    for snapshot in run(method, federation, rounds=rounds, engine=used, processes=count, score=None):
        ends.append(now())
        model = snapshot.state.shared
    module = data.network()
    module.load_state_dict(model)
    told(ends, data.accuracy(module))


if __name__ == "__main__":
    main()
