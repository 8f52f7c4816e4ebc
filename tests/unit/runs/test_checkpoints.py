"""Models of every round, in the named layout; and the picture of a comparison with Localize-and-Stitch."""

from __future__ import annotations

import csv
from pathlib import Path

import torch
from safetensors.torch import load_file

from fedquilt.core.net import Net
from fedquilt.core.params import weighted_mean
from fedquilt.methods.fedavg import FedAvg
from fedquilt.methods.merging.localize_stitch import LocalizeStitch
from fedquilt.models.registry import make
from fedquilt.pieces.aggregators import uniform_mean
from fedquilt.runs.runner import run
from helpers.command import SMALL, fedquilt, small
from helpers.toy import digits

NET = Net(make("logistic", (1, 8, 8), 10))


def test_the_layout(tmp_path: Path) -> None:
    """Clients' models of round t lie beside the model they began from; their mean is the next merged model."""
    method = FedAvg(objective=NET, aggregate=uniform_mean, epochs_first=4)
    *_, end = run(method, digits(clients=3), rounds=2, engine="local", folder=tmp_path, checkpoints=True)
    top = tmp_path / "checkpoints"
    found = sorted(str(p.relative_to(top)) for p in top.rglob("*.safetensors"))
    assert found == [
        "round_00/client0_ep4.safetensors",
        "round_00/client1_ep4.safetensors",
        "round_00/client2_ep4.safetensors",
        "round_01/client0_ep1.safetensors",
        "round_01/client1_ep1.safetensors",
        "round_01/client2_ep1.safetensors",
        "round_01/federated_avg.safetensors",
        "round_02/federated_avg.safetensors",
    ]
    clients = [load_file(top / f"round_01/client{c}_ep1.safetensors") for c in range(3)]
    merged = load_file(top / "round_02/federated_avg.safetensors")
    for name, tensor in weighted_mean((1.0, c) for c in clients).items():
        torch.testing.assert_close(merged[name], tensor)
        assert torch.equal(merged[name], end.state.shared[name])


def test_a_localised_client_is_what_the_server_received(tmp_path: Path) -> None:
    method = LocalizeStitch(NET, keep=0.1)
    list(run(method, digits(clients=3), rounds=1, engine="local", folder=tmp_path, checkpoints=True))
    top = tmp_path / "checkpoints"
    assert (top / "round_01/stitched.safetensors").exists()
    sent = load_file(top / "round_00/client1_ep1.safetensors")
    assert sum(int((sent[n] != t).sum()) for n, t in _start().items()) == int(0.1 * 650)


def _start() -> dict[str, torch.Tensor]:
    from fedquilt.core.seed import Seed

    return FedAvg(objective=NET).init_server(Seed(0).fold("server")).shared


def test_the_picture_of_a_comparison(tmp_path: Path) -> None:
    recipe = small(tmp_path, SMALL)
    methods = 'compare.methods=["fedavg", {kind="fedavg_noise"}, {kind="localize_stitch", k_init=0.9}]'
    done = fedquilt("compare", recipe, methods, "compare.seeds=[0]", "--json")
    assert done.code == 0, done.err
    top = Path(done.json["folder"])
    for kind in ("svg", "png", "eps"):
        assert (top / f"rounds.{kind}").stat().st_size > 1000
    with (top / "rounds.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {r["method"] for r in rows} == {"fedavg", "fedavg_noise", "localize_stitch"}
    assert len(rows) == 9
