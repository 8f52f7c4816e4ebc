"""What does a round on real Flower nodes cost beside Flower's own FedAvg, and are the reported bytes those on the wire?

    python benchmarks/flower.py [--rounds 5] [--json benchmarks/results/flower.json]

Both sides: a SuperLink and three SuperNodes on loopback with TLS and node keys, the same network of 1.6 million
parameters, the same rows and one pass over them. Bare: Flower's strategy FedAvg and a client app that does the same
steps. The median time of a round without scoring is compared; asserted: at most 1.5 times Flower's.
Bytes: every node reaches the SuperLink through a counting relay. Asserted: all bytes that crossed it, encryption and
polling included, are within 2 % of those reported: what exchanges and the scoring after the last round sent, and also
of all that was put into messages (``carried_up``, ``carried_down``).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

LIMIT, WIRE = 1.5, 0.02
NODES = ("a", "b", "c")
ROWS, HIDDEN = 320, 2000  # 784 x 2000 + 2000 + 2000 x 10 + 10 = 1,590,010 parameters

_TASK = """
import numpy as np
import torch
from torch import nn


def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 2000), nn.ReLU(), nn.Linear(2000, 10))


def train(model, path):
    torch.set_num_threads(1)
    with np.load(path) as data:
        x, y = torch.from_numpy(data["x"]), torch.from_numpy(data["y"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for low in range(0, len(y), 32):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[low : low + 32]), y[low : low + 32]).backward()
        optimizer.step()
    return len(y)
"""
_APP = """
import json
import time
from pathlib import Path

import torch
from bare_task import network, train
from flwr.app import ArrayRecord, MetricRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

client = ClientApp()  # Flower looks for such lines without running them
server = ServerApp()


@client.train()
def _train(message, context):
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    count = train(model, context.node_config["rows"])
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": count})})
    return Message(content, reply_to=message)


class Timed(FedAvg):
    def __init__(self, **settings):
        super().__init__(**settings)
        self.ends = []

    def aggregate_train(self, server_round, replies):
        done = super().aggregate_train(server_round, replies)
        self.ends.append(time.perf_counter())
        return done


@server.main()
def _main(grid, context):
    strategy = Timed(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3)
    began = time.perf_counter()
    start = ArrayRecord(network().state_dict())
    strategy.start(grid=grid, initial_arrays=start, num_rounds=context.run_config["rounds"])
    ends = [began, *strategy.ends]
    rounds = [after - before for before, after in zip(ends, ends[1:])]
    Path(context.run_config["out"]).write_text(json.dumps(rounds))
"""
_PROJECT = """
[project]
name = "bare"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "bare"
[tool.flwr.app.components]
serverapp = "bare_app:server"
clientapp = "bare_app:client"
[tool.flwr.app.config]
rounds = 3
out = ""
"""


class Relay:
    """Passes a TCP stream on and counts its bytes, both ways."""

    def __init__(self, port: int) -> None:
        self.port, self.bytes = port, 0
        self._lock = threading.Lock()
        self._door = socket.create_server(("127.0.0.1", 0))
        self.door: int = self._door.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            inner, _ = self._door.accept()
            try:
                outer = socket.create_connection(("127.0.0.1", self.port))
            except OSError:
                inner.close()
                continue
            for pair in ((inner, outer), (outer, inner)):
                threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while chunk := source.recv(1 << 18):
                with self._lock:
                    self.bytes += len(chunk)
                target.sendall(chunk)
        except OSError:
            pass
        finally:
            for end in (source, target):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)


def rows(folder: Path) -> dict[str, Path]:
    """A file of random images for every node; what they show does not matter here."""
    draw, found = np.random.default_rng(0), {}
    for node in NODES:
        found[node] = folder / f"{node}.npz"
        x = draw.normal(size=(ROWS, 1, 28, 28)).astype(np.float32)
        np.savez(found[node], x=x, y=np.arange(ROWS) % 10)
    return found


def node_process(words: list[str], env: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    """A process in a session of its own."""
    with log.open("ab") as output:
        return subprocess.Popen(words, env=env, stdout=output, stderr=output, start_new_session=True)


def ended(processes: list[subprocess.Popen[bytes]]) -> None:
    """End the processes and what they started."""
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def ours(folder: Path, data: dict[str, Path], rounds: int) -> dict[str, Any]:
    """The library's FedAvg."""
    from fedquilt.config.config import parse
    from fedquilt.deploy.flower_command import Address, free_port
    from fedquilt.deploy.keys import Keys, make
    from fedquilt.deploy.serve import FederationServer

    make(folder / "keys", ["localhost"], NODES)
    keys, address = Keys(folder / "keys"), Address("127.0.0.1", free_port())
    relay = Relay(address.port)
    config = parse(
        {
            "name": "ours",
            "rounds": rounds,
            "method": "fedavg",
            "model": {"kind": "mlp", "hidden": [HIDDEN]},
            "train": {"batch_size": 32},
            "evaluate": {"every": 10 * rounds},
            "flower": {"nodes": len(NODES)},
        }
    )
    nodes = [
        node_process(
            [
                sys.executable,
                "-m",
                "fedquilt",
                "join",
                "--superlink",
                f"127.0.0.1:{relay.door}",
                "--ca",
                str(keys.ca),
                "--key",
                str(keys.node(node)),
                "--data",
                str(data[node]),
                "--name",
                node,
                "--classes",
                "10",
                "--test",
                "0",
                "--valid",
                "0",
                "--state",
                str(folder / f"state-{node}"),
            ],
            dict(os.environ),
            folder / f"{node}.log",
        )
        for node in NODES
    ]
    times: list[float] = []
    try:
        result = FederationServer(folder / "run", address, keys).follow(
            config, lambda number, row: times.append(row["train_seconds"]), lambda text: None
        )
    finally:
        ended(nodes)
    both = {name: result[f"{name}_up"] + result[f"{name}_down"] for name in ("bytes", "scoring", "carried")}
    return {"rounds": times, **both, "wire": relay.bytes}


def bare(folder: Path, data: dict[str, Path], rounds: int) -> dict[str, Any]:
    """Flower's own FedAvg."""
    from fedquilt.deploy.flower_command import Address, call, environment, free_port, program, start, stop, wait_for
    from fedquilt.deploy.keys import Keys, make

    make(folder / "keys", ["localhost"], NODES)
    keys, port, home = Keys(folder / "keys"), free_port(), folder / "home"
    app, out = folder / "app", folder / "rounds.json"
    app.mkdir(parents=True)
    for name, text in {"pyproject.toml": _PROJECT, "bare_app.py": _APP, "bare_task.py": _TASK}.items():
        (app / name).write_text(text)
    home.mkdir(parents=True)
    (home / "config.toml").write_text(
        f'[superlink.bare]\naddress = "127.0.0.1:{port}"\nroot-certificates = "{keys.ca}"\n'
    )
    link = start(
        [
            "flower-superlink",
            "--port",
            str(port),
            "--ssl-ca-certfile",
            str(keys.ca),
            "--ssl-certfile",
            str(keys.server[0]),
            "--ssl-keyfile",
            str(keys.server[1]),
            "--enable-supernode-auth",
            "--disable-runtime-dependency-installation",
        ],
        home,
        folder / "superlink.log",
    )
    nodes: list[subprocess.Popen[bytes]] = []
    try:
        wait_for(Address("127.0.0.1", port), link, folder / "superlink.log")
        for node in NODES:
            call(["flwr", "supernode", "register", f"{keys.node(node)}.pub", "bare"], home)
            words = [
                program("flower-supernode"),
                "--superlink",
                f"127.0.0.1:{port}",
                "--port",
                str(free_port()),
                "--root-certificates",
                str(keys.ca),
                "--auth-supernode-private-key",
                str(keys.node(node)),
                "--node-config",
                f'rows="{data[node]}"',
            ]
            nodes.append(node_process(words, environment(folder / f"home-{node}"), folder / f"{node}.log"))
        call(["flwr", "run", str(app), "bare", "-c", f'rounds={rounds} out="{out}"'], home)
        end = time.monotonic() + 600
        while not out.exists() and time.monotonic() < end:
            time.sleep(0.5)
        return {"rounds": json.loads(out.read_text())}
    finally:
        ended(nodes)
        stop(link)


def main() -> None:
    """Measure, print, write, assert."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/flower.json"))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        data = rows(folder)
        for name in ("ours", "bare"):
            (folder / name).mkdir()
        found = {"ours": ours(folder / "ours", data, asked.rounds), "bare": bare(folder / "bare", data, asked.rounds)}
    # the first round of each also starts processes and moves the app
    medians = {name: statistics.median(side["rounds"][1:]) for name, side in found.items()}
    ratio = medians["ours"] / medians["bare"]
    mine = found["ours"]
    wires = {
        "exchanges and scoring": mine["wire"] / (mine["bytes"] + mine["scoring"]),
        "all messages": mine["wire"] / mine["carried"],
    }
    print(
        f"a round on three nodes, 1.59 million parameters: ours {medians['ours']:.2f} s, Flower {medians['bare']:.2f} s"
    )
    print(f"ratio {ratio:.2f} (at most {LIMIT})")
    for name, wire in wires.items():
        print(f"bytes on the wire / reported of {name}: {wire:.4f} (within {WIRE:.0%} of 1)")
    asked.json.parent.mkdir(parents=True, exist_ok=True)
    asked.json.write_text(json.dumps({**found, "medians": medians, "ratio": ratio, "wire_ratios": wires}, indent=1))
    if ratio > LIMIT or any(abs(wire - 1) > WIRE for wire in wires.values()):
        sys.exit("A bound was missed.")


if __name__ == "__main__":
    main()
