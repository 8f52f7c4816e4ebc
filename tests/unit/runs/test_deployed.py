"""The model that a client uses: selected where nobody placed it, tuned when scored, from first values shared or not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedquilt.config.config import parse
from fedquilt.core.net import Net
from fedquilt.core.seed import Seed
from fedquilt.data import Federation
from fedquilt.engines.local import Local
from fedquilt.methods.averaging.local_only import LocalOnly
from fedquilt.methods.clustered.cfl import CFL
from fedquilt.methods.clustered.cgpfl import CGPFL, CGPFLMoreau
from fedquilt.methods.clustered.feddrift import FedDrift
from fedquilt.methods.clustered.fedgroup import FedGroup
from fedquilt.methods.clustered.fesem import FeSEM
from fedquilt.methods.clustered.flhc import FLHC
from fedquilt.methods.clustered.ifca import IFCA
from fedquilt.methods.clustered.pacfl import PACFL
from fedquilt.methods.compressed import Compressed
from fedquilt.methods.long_tailed.fedloge import FedLoGe
from fedquilt.methods.personalised.fedbabu import FedBABU
from fedquilt.methods.personalised.fedper import FedPer
from fedquilt.methods.personalised.fedproto import FedProto
from fedquilt.methods.personalised.fedrep import FedRep
from fedquilt.methods.personalised.finetune import FedAvgFineTune
from fedquilt.methods.personalised.perfedavg import PerFedAvg
from fedquilt.metrics.classify import classify
from fedquilt.models.registry import make
from fedquilt.pieces.clustering.result import ClusterResult
from fedquilt.pieces.codecs import half
from fedquilt.records.record import pack
from fedquilt.rounds.client import ClientSide
from fedquilt.rounds.rounds import Rounds
from fedquilt.runs.build import federation_of, method_of
from fedquilt.runs.runner import run
from fedquilt.runs.snapshot import personal_model
from helpers.command import SMALL, fedquilt, lines
from helpers.toy import digits, first, last, linear, points

GOOD = {"weight": torch.tensor([[-1.0, -1.0], [1.0, 1.0]]), "bias": torch.tensor([2.5, -2.5])}
BAD = {name: -tensor for name, tensor in GOOD.items()}
NOT_FIRST = np.array([False, True, True, True])
MLP = Net(make("mlp", (1, 8, 8), 10, hidden=(16,)))


def flipped() -> Federation:
    """Two classes in the plane; clients 2 and 3 call each by the other's name."""
    data = points(12, 12, 12, 12)
    parts: dict[Any, Any] = {}
    for client in data.ids:
        train, test = data.site(client, 0).train.whole(), data.evaluation(client, "test").whole()
        context = int(client > 1)
        parts[client] = {"train": (train.x, (train.y + context) % 2), "test": (test.x, (test.y + context) % 2)}
    return Federation.from_clients(parts, classes=2, standardise=None)


CLUSTERED = {
    "ifca": IFCA(linear(), n_clusters=2),
    "fesem": FeSEM(linear(), n_clusters=2),
    "cgpfl": CGPFL(linear(), n_clusters=2),
    "cgpfl_moreau": CGPFLMoreau(linear(), n_clusters=2),
    "feddrift": FedDrift(linear()),
    "cfl": CFL(linear()),
    "flhc": FLHC(linear(), initial_rounds=0),
    "fedgroup": FedGroup(linear(), n_clusters=2),
    "pacfl": PACFL(linear(), n_clusters=2),
    "compressed": Compressed(base=IFCA(linear(), n_clusters=2), codec=half()),
}


def with_two_models(method: Any, data: Federation, engine: Any) -> Rounds:
    """A run whose first model is wrong for clients 0 and 1; 0 and 2 were placed, 1 and 3 were never asked. In clusters
    with directions these are of no use: the evaluation is not a client update."""
    state = method.init_server(Seed(0).fold("server"))
    found = ClusterResult({0: 1, 2: 0}, 2, "test")
    state = replace(state, models=(BAD, GOOD), clusters=found)
    return Rounds(method, data, engine, Seed(0), state=state, done=1, score=classify)


@pytest.mark.parametrize("name", CLUSTERED)
def test_a_client_that_was_never_asked_selects_by_its_own_rows(name: str):
    """Models 0 and 1 answer the opposite of each other: with the other one a client's accuracy would be 1 - a."""
    data = flipped()
    rounds = with_two_models(CLUSTERED[name], data, Local())
    evaluations = rounds.evaluate(data.ids)
    for client, model in enumerate((GOOD, GOOD, BAD, BAD)):
        right = classify(rounds.method.predict, model, data.evaluation(client, "test"))
        assert right.accuracy > 0.8
        assert evaluations[client]["deployed"]["test"].accuracy == right.accuracy, client
        assert all(torch.equal(t, model[n]) for n, t in personal_model(rounds, client).items())


def test_on_workers_too(one_worker: Any):
    data = flipped()
    near = with_two_models(CLUSTERED["fesem"], data, Local()).evaluate(data.ids)
    far = with_two_models(CLUSTERED["fesem"], data, one_worker).evaluate(data.ids)
    assert pack(far) == pack(near)


def test_placed_clients_are_told(tmp_path: Path):
    """One client is asked in one round: ARI is over it alone, and everything that tells it says so."""
    recipe = tmp_path / "groups.toml"
    settings = SMALL.replace('{ kind = "dirichlet", alpha = 1.0, minimum = 20 }', '{ kind = "class_groups" }')
    recipe.write_text(f'{settings}\n[method]\nkind = "ifca"\nn_clusters = 2\n[cohort]\ncount = 1\n')
    out = ("output.folder=" + str(tmp_path / "runs"), "rounds=1")
    said = fedquilt("run", recipe, *out)
    assert said.code == 0, said.err
    assert "1 of 4 clients placed" in said.out
    (folder,) = (tmp_path / "runs").iterdir()
    (row,) = lines(folder / "metrics/clusters.jsonl")
    assert (row["clients"], row["of"]) == (1, 4)
    looked = fedquilt("clusters", folder).out
    assert "1 of 4 placed; the others use the cluster model with the lowest training loss" in looked
    assert "true groups (1 of 4 placed): ari" in looked
    assert "1 of 4 placed; of these, ARI" in (folder / "report.html").read_text(encoding="utf-8")
    compared = fedquilt("compare", recipe, *out, "compare.methods=[{kind='ifca', n_clusters=2}, {kind='fedavg'}]").out
    assert "(1 of 4 placed)" in " ".join(compared.split())
    assert "ARI is over the clients that were placed" in " ".join(compared.split())


# Tuned when it is scored


@pytest.mark.parametrize("method", [FedBABU, FedAvgFineTune, PerFedAvg])
def test_tuning_waits_for_a_score(method: Any):
    """In rounds that nobody scores no client tunes; the second is scored, and the third is the last. What is trained
    is the same as with a score in every round."""
    made = method(MLP, **({} if method is PerFedAvg else {"tune_epochs": 2}))
    exchanges, ends = [], []
    for every in (2, 1):
        for snapshot in run(made, digits(), rounds=3, engine=Local(), evaluate_every=every):
            exchanges.append({v.exchange for v in snapshot.log.updates})
        ends.append(snapshot)
    assert exchanges == [{"train"}, {"train", "tune"}, {"train", "tune"}, *[{"train", "tune"}] * 3]
    assert ends[0].digest() == ends[1].digest()
    assert ends[0].metrics["test_accuracy"] == ends[1].metrics["test_accuracy"]


# First values


@pytest.mark.parametrize("make_method", [FedPer, FedRep, FedProto, LocalOnly, FedLoGe])
def test_private_parts_can_start_alike(make_method: Any, one_worker: Any):
    """With a shared start they are the values of the very model whose shared part the server has."""
    seed, data = Seed(3), digits(clients=2)
    for shared in (False, True):
        method = make_method(MLP, shared_start=shared)
        side = ClientSide(method, data, seed)
        firsts = [side.first_slot(client).state.private for client in data.ids]
        alike = all(torch.equal(firsts[0][n], firsts[1][n]) for n in firsts[0])
        assert alike is shared
        assert firsts[0]
    net = getattr(method, "framed", getattr(method, "base", method)).net
    server = net.init(seed.fold("server"))
    assert all(torch.equal(tensor, server[name]) for name, tensor in firsts[0].items())
    near = last(method, data, rounds=1, seed=3)
    assert last(method, data, rounds=1, seed=3, engine=one_worker).digest() == near.digest()
    assert near.digest() != last(make_method(MLP), data, rounds=1, seed=3).digest()


def test_recipes_can_ask_for_a_shared_start():
    settings = {"data": {"clients": 3, "limit": 90}, "method": {"kind": "fedper", "shared_start": True}}
    config = parse(settings, "here")
    method: Any = method_of(config, federation_of(config))
    assert method.shared_start is True
    plain: Any = method_of(parse({**settings, "method": {"kind": "fedper"}}, "here"), federation_of(config))
    assert plain.shared_start is False


# Modes on validation samples


def loge(**options: Any) -> Any:
    return FedLoGe(MLP, norm=3.0, **options)


def test_the_most_accurate_mode_on_validation_rows_is_served():
    data = digits()
    snapshot = last(loge(cohort=first(2)), data, rounds=3, score=classify)
    told = snapshot.metrics
    valid = {mode: told[f"global_valid_accuracy_{mode}"] for mode in ("universal", "realigned", "plain")}
    assert len(set(valid.values())) > 1
    best = max(valid, key=lambda mode: valid[mode])
    assert told["served"] == snapshot.state.serve == best
    assert told["global_valid_accuracy"] == valid[best]
    assert told["global_test_accuracy"] == told[f"global_test_accuracy_{best}"]
    fresh = snapshot.personal_model(3)  # never asked: what the global model is
    assert all(torch.equal(t, snapshot.global_model()[n]) for n, t in fresh.items())
    modes = snapshot.method.modes(snapshot.state)
    evaluation = {
        mode: classify(snapshot.method.predict, m, data.evaluation(0, "test")).accuracy for mode, m in modes.items()
    }
    assert {m: snapshot.evaluations[0][f"global.{m}"]["test"].accuracy for m in modes} == evaluation


def test_modes_without_validation_rows_and_by_name():
    """Test rows choose nothing: without validation samples it is the frame, and a mode that is named stays."""
    bare = Federation.from_source("digits", clients=3, test=0.2, valid=0.0, seed=0)
    assert last(loge(), bare, score=classify).metrics["served"] == "universal"
    named = last(loge(serve="plain"), digits(), score=classify)
    assert named.metrics["served"] == "plain"
    assert named.metrics["global_test_accuracy"] == named.metrics["global_test_accuracy_plain"]
    assert "serve" not in vars(named.state)


def test_adjusted_modes_are_scored_and_may_be_served():
    """With the clients' class counts, five modes; on every split the scores are those of the method's own modes."""
    data = digits()
    snapshot = last(loge(send_counts=True), data, rounds=2, score=classify)
    told, modes = snapshot.metrics, snapshot.method.modes(snapshot.state)
    assert list(modes) == ["universal", "realigned", "plain", "universal_adjusted", "adjusted"]
    valid = {mode: told[f"global_valid_accuracy_{mode}"] for mode in modes}
    assert told["served"] == max(valid, key=lambda mode: valid[mode])
    for mode, model in modes.items():
        score = classify(snapshot.method.predict, model, data.evaluation(0, "test")).accuracy
        assert snapshot.evaluations[0][f"global.{mode}"]["test"].accuracy == score
    heard = {f"common_valid_accuracy_{mode}": 0.1 for mode in modes} | {"common_valid_accuracy_adjusted": 0.2}
    chosen = snapshot.method.observe(snapshot.state, heard)
    assert chosen.serve == "adjusted"
    assert torch.equal(chosen.counts, snapshot.state.counts)


def test_all_modes_are_printed(tmp_path: Path):
    recipe = tmp_path / "loge.toml"
    recipe.write_text(
        SMALL.replace('kind = "logistic"', 'kind = "mlp"\nhidden = [16]') + '[method]\nkind = "fedloge"\nnorm = 3.0\n'
    )
    out = ("output.folder=" + str(tmp_path / "runs"), "rounds=1")
    told = fedquilt("run", recipe, *out).out
    assert "global model in all modes" in " ".join(told.split())
    rows = [line.split() for line in told.split("\n")]
    assert ["mode", "valid", "test"] in rows
    best = json.loads(next((tmp_path / "runs").glob("*/result.json")).read_text())["best"]
    for mode in ("universal", "realigned", "plain"):
        scores = (best[f"global_{split}_accuracy_{mode}"] for split in ("valid", "test"))
        assert [mode, *(f"{100 * score:.1f}" for score in scores)] in rows
    assert f"\nglobal model: {best['served']}\n" in told
    counted = fedquilt("run", recipe, *out, "method.send_counts=true", "name=counted").out
    assert "\n universal_adjusted " in counted
    assert "\n adjusted " in counted
    bare = " ".join(fedquilt("run", recipe, *out, "data.valid=0", "name=bare").out.split())
    assert "global model: universal; there are no validation samples to choose a mode on" in bare


def test_a_client_without_rows_does_not_decide_for_others():
    """It has nothing to select by, and uses model 0; who comes after it selects all the same."""
    data = flipped()
    keep = replace(data, ids=data.ids[1:], train=data.train.keep(NOT_FIRST), valid=data.valid.keep(NOT_FIRST))
    rounds = with_two_models(CLUSTERED["ifca"], keep, Local())
    rounds.state = replace(rounds.state, clusters=ClusterResult({2: 0}, 2, "test"))
    evaluations = rounds.evaluate(keep.evaluated)
    told = [evaluations[client]["deployed"]["test"].accuracy for client in (0, 1)]
    assert told[0] < 0.2
    assert told[1] > 0.8
