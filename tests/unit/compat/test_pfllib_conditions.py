"""Joining at random, lost uploads, slow clients and slow lines; and folders written in PFLlib's layout."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from fedquilt.compat import write_folder
from fedquilt.compat.play import DELAY, Practical, joining, some
from fedquilt.core.exchange import Context, at_random
from fedquilt.core.net import Net
from fedquilt.core.seed import Seed
from fedquilt.data import Federation
from fedquilt.errors import InputError
from fedquilt.methods.fedavg import FedAvg
from fedquilt.methods.personalised.ditto import Ditto
from fedquilt.methods.personalised.fedrep import FedRep
from fedquilt.models import MLP
from fedquilt.runs.runner import run
from helpers.command import small
from helpers.toy import digits, fedavg, last, points

SIZES = (8, 12, 16, 20)


def test_joining():
    """From 3 up to all 10, each number now and then, nobody twice."""
    asked = [joining(3)(None, tuple(range(10)), Seed(i)) for i in range(300)]
    assert {len(who) for who in asked} == set(range(3, 11))
    assert all(len(set(who)) == len(who) for who in asked)


def test_some():
    assert len(some(0.5, range(5), Seed(0))) == 2
    assert some(0.0, range(5), Seed(0)) == ()
    assert set(some(1.0, range(5), Seed(0))) == set(range(5))


def test_only_the_joining_rule_is_replaced():
    hard = Practical(base=fedavg(cohort=at_random(2)), join=2)
    assert [e.cohort for e in hard.exchanges()] == [joining(2)]
    assert [e.cohort for e in Practical(base=fedavg(), join=2).exchanges()] != [joining(2)]


def updates(method, rounds=1, **options):
    return [
        v
        for s in run(method, points(*SIZES), rounds=rounds, engine="local", score=None, **options)
        for v in s.log.updates
    ]


def test_lost_uploads():
    """int((1 - 0.5) * 4) = 2 of 4 uploads count: the server's step is the mean of two clients' steps."""
    federation, base = points(*SIZES), fedavg()
    begin = base.init_server(Seed(0).fold("server")).shared
    deltas = {}
    for client in federation.ids:
        only = FedAvg(
            objective=base.objective,
            optimizer=base.optimizer,
            batch_size=8,
            cohort=lambda state, ids, seed, client=client: (client,),
        )
        after = last(only, federation, rounds=1).state.shared
        deltas[client] = {n: after[n] - begin[n] for n in begin}
    hard = last(Practical(base=base, drop_rate=0.5), federation, rounds=1).state.shared
    pairs = []
    for a in federation.ids:
        for b in (c for c in federation.ids if c > a):
            m, n = SIZES[a], SIZES[b]
            mean = {k: begin[k] + (m * deltas[a][k] + n * deltas[b][k]) / (m + n) for k in begin}
            pairs.append(all(torch.allclose(mean[k], hard[k], atol=1e-6) for k in begin))
    assert pairs.count(True) == 1
    assert len(updates(Practical(base=base, drop_rate=0.5))) == 4  # all have worked


@pytest.mark.parametrize(("epochs", "most"), [(1, 1), (2, 1), (3, 1), (6, 3)])
def test_slow_clients_do_fewer_epochs(epochs, most):
    """From 1 to half of them; with 2 epochs PFLlib draws from an empty range."""
    found = updates(Practical(base=fedavg(epochs=epochs, batch_size=4), slow=(1, 2)), rounds=12)
    passes = {c: {v.steps / (SIZES[c] / 4) for v in found if v.client == c} for c in range(4)}
    assert passes[0] == passes[3] == {epochs}
    assert passes[1] | passes[2] == set(range(1, most + 1))


def test_slow_clients_of_methods_with_two_trainings():
    net = Net.of(MLP, 64, 10)
    for base in (FedRep(net, head_epochs=4, epochs=4), Ditto(net, epochs=4)):
        slow = last(Practical(base=base, slow=tuple(digits().ids)), digits(), rounds=1)
        assert slow.digest() != last(base, digits(), rounds=1).digest()


def test_slow_lines():
    """Mean of two messages a round, each up to DELAY seconds; who takes longer than the patience is left out."""
    hard = Practical(base=fedavg(), late=(0, 1, 2, 3), patience=0.0)
    context = Context(5, None, Seed(0), 4)
    assert all(0 < hard.seconds(c, context) < 2 * DELAY for c in range(4))
    assert hard.seconds(9, context) == 0
    far = hard.seconds(2, Context(2000, None, Seed(0), 4))
    assert far == pytest.approx(DELAY, rel=0.05)
    start = fedavg().init_server(Seed(0).fold("server")).shared
    nobody = last(hard, points(*SIZES), rounds=1).state.shared
    assert all(torch.equal(nobody[n], start[n]) for n in start)
    patient = Practical(base=fedavg(), late=(0, 1, 2, 3))
    assert last(patient, points(*SIZES), rounds=1).digest() == last(fedavg(), points(*SIZES), rounds=1).digest()


def test_folders_are_read_again(tmp_path, capsys):
    recipe, folder = small(tmp_path), tmp_path / "dataset" / "Digits"
    write_folder.run([str(recipe), "data.clients=3", "--to", str(folder)])
    assert "3 clients, 10 classes" in capsys.readouterr().out
    data = Federation.from_pfllib(folder, valid=0)
    assert (data.ids, data.classes) == ((0, 1, 2), 10)
    told = json.loads((folder / "config.json").read_text())["Size of samples for labels in clients"]
    for client in data.ids:
        labels = np.concatenate([data.labels(client, part) for part in ("train", "test")])
        assert told[client] == [[int(v), int((labels == v).sum())] for v in np.unique(labels)]
    log = (folder / "data_log").read_text()
    assert f"Client 0\t Size of data: {sum(n for _, n in told[0])}\t Labels:  [" in log
    assert f"The number of test samples: {[len(data.labels(c, 'test')) for c in data.ids]}" in log
    with pytest.raises(InputError, match="holds a division already"):
        write_folder.run([str(recipe), "--to", str(folder)])
    with pytest.raises(InputError, match="has no test samples"):
        write_folder.run([str(recipe), "data.test=0", "--to", str(tmp_path / "none")])


def test_pfllib_reads_our_texts(tmp_path, monkeypatch):
    """As ``process_text`` of the same file, which it takes for folders with "News" in their name."""
    x, y = np.arange(1, 241, dtype=np.int32).reshape(40, 6), np.arange(40) % 4
    np.savez(tmp_path / "texts.npz", x=x, y=y)
    folder = tmp_path / "dataset" / "AGNews"
    recipe = tmp_path / "texts.toml"
    recipe.write_text('[data]\npath = "texts.npz"\nclients = 2\npartition = { kind = "iid" }\n')
    monkeypatch.chdir(tmp_path)
    write_folder.run([str(recipe), "--to", str(folder)])
    data = Federation.from_pfllib(folder, valid=0)
    for client in data.ids:
        with open(folder / "train" / f"{client}.npz", "rb") as file:
            ids, lengths = zip(*np.load(file, allow_pickle=True)["data"].tolist()["x"], strict=True)
        assert torch.equal(torch.Tensor(ids).long(), data.site(client, 0).train.whole().x.long())
        assert set(lengths) == {6}


def read_as_pfllib_does(folder, client, part):
    """As ``read_client_data`` of PFLlib's system/utils/data_utils.py: a dict in an array of objects, then tensors."""
    with open(folder / part / f"{client}.npz", "rb") as file:
        data = np.load(file, allow_pickle=True)["data"].tolist()
    x, y = torch.Tensor(data["x"]).type(torch.float32), torch.Tensor(data["y"]).type(torch.int64)
    return list(zip(x, y, strict=True))


def test_pfllib_reads_our_folders(tmp_path):
    recipe, folder = small(tmp_path), tmp_path / "dataset" / "Digits"
    write_folder.run([str(recipe), "data.clients=3", "--to", str(folder)])
    data = Federation.from_pfllib(folder, valid=0)
    for client in data.ids:
        for part, batch in (
            ("train", data.site(client, 0).train.whole()),
            ("test", data.evaluation(client, "test").whole()),
        ):
            rows = read_as_pfllib_does(folder, client, part)
            assert torch.equal(torch.stack([x for x, _ in rows]), batch.x)
            assert torch.equal(torch.stack([y for _, y in rows]), batch.y)
    told = json.loads((folder / "config.json").read_text())
    known = {name: told[name] for name in ("num_clients", "non_iid", "balance", "partition", "alpha", "batch_size")}
    assert known == {
        "num_clients": 3,
        "non_iid": True,
        "balance": False,
        "partition": "dirichlet",
        "alpha": 1.0,
        "batch_size": 20,
    }
