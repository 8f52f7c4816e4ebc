"""Newcomers, for every method: what each mode gives them, or why it cannot."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedquilt
from conformance.cases import CASES, NET, WORK, Case, fedavg
from fedquilt.analysis.newcomers import MODES, evaluate_newcomers
from fedquilt.core.exchange import Context
from fedquilt.core.params import Params
from fedquilt.core.seed import Seed
from fedquilt.core.table import Site
from fedquilt.data import Federation, held_out
from fedquilt.errors import InputError
from fedquilt.methods.clustered.ifca import IFCA
from fedquilt.methods.personalised.fedper import FedPer
from fedquilt.metrics.classify import classify
from fedquilt.rounds.client import one_thread
from fedquilt.runs.runner import Snapshot
from helpers.command import SMALL, small
from helpers.command import fedquilt as command
from helpers.toy import last

# No global model: heads (fedper, fedrep), BatchNorm (fedbn) or everything (local-only) stay at home; one model for each
# client (fedamp); no model on the server at all (fedproto).
ALONE = {
    "fedavg-private-head",
    "local-only",
    "fedper",
    "fedper-shared-start",
    "fedper-finetune",
    "fedrep",
    "fedbn",
    "fedamp",
    "fedproto",
    "hgls",
    "hgls-hgc",
    "hgls-coded",
    "hgls-joint",
    "hgls-scaffold",
    "codecs-chained",
    "codecs-batchnorm",
}

# Newcomers find their cluster by their update or their loss; fedrod-hyper makes their head from their class shares.
CHOOSE = {
    "ifca",
    "ifca-never-asked",
    "ifca-heads",
    "ifca-updates",
    "ifca-gradient",
    "fesem",
    "fesem-memory",
    "fesem-batchnorm",
    "cgpfl",
    "cgpfl-moreau",
    "cgpfl-cosine",
    "lcfed",
    "fedsoft",
    "feddrift",
    "flhc",
    "flhc-retest",
    "hcfl",
    "hcfl-global-start",
    "hcfl-halves",
    "fedgroup",
    "fedgroup-cold",
    "fedgroup-params",
    "cfl",
    "pacfl",
    "fedper-grouped",
    "fedrod-hyper",
}


def trained(case: Case) -> tuple[Snapshot, Federation]:
    part, new = held_out(case.federation, 1)
    return last(case.method, part, rounds=1), new


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_method_serves_newcomers_or_says_why_not(case: Case):
    snapshot, new = trained(case)
    if getattr(case.method, "reconstructs", False):
        with pytest.raises(InputError, match="is not a classifier, so new clients cannot be scored"):
            evaluate_newcomers(snapshot, new, "none")
        return
    found: dict[str, Any] = {}
    for mode in MODES:
        if mode == "none" and case.name in ALONE:
            with pytest.raises(InputError, match=r"has no global model: .* mode 'fine_tune' or 'head'"):
                evaluate_newcomers(snapshot, new, mode)
        elif mode == "head" and case.name == "fedproto":
            with pytest.raises(InputError, match="does not depend on the part to tune"):
                evaluate_newcomers(snapshot, new, mode, epochs=1)
        else:
            found[mode] = evaluate_newcomers(snapshot, new, mode, epochs=3)
            own = "own choice" if case.name in CHOOSE else "global model"
            assert found[mode].start == ("fresh client" if case.name in ALONE else own)
            assert [row["client"] for row in found[mode].clients] == list(new.ids)
            assert np.isfinite(found[mode].clients[0]["loss"])
    assert found["fine_tune"].mean > 1.3 * found["fine_tune"].majority  # so it did learn
    assert evaluate_newcomers(snapshot, new, "fine_tune", epochs=3) == found["fine_tune"]


def test_none_is_the_global_model_on_the_newcomers_test_rows():
    snapshot, new = trained(CASES[0])
    found = evaluate_newcomers(snapshot, new, "none")
    (client,) = new.ids
    with one_thread():
        expected = classify(snapshot.method.predict, snapshot.global_model(), new.evaluation(client, "test"))
    assert (found.mean, found.clients[0]["loss"]) == (expected.accuracy, expected.loss)
    assert found.epochs == 0
    train, test = new.labels(client).numpy(), new.labels(client, "test").numpy()
    assert found.majority == (test == np.bincount(train).argmax()).mean()


def test_fine_tuning_is_local_training_from_the_global_model():
    snapshot, new = trained(CASES[0])
    (client,) = new.ids
    (train,) = fedavg().exchanges()
    context = Context(1, client, Seed(0).fold("newcomer", client))
    with one_thread():
        _, _, _, after = train.training(epochs=2).work.run(
            train.down(snapshot.state, client), fedavg().init_client(Seed(0)), new.site(client, 0), context
        )
        expected = classify(snapshot.method.predict, after.params, new.evaluation(client, "test"))
    found = evaluate_newcomers(snapshot, new, "fine_tune", epochs=2)
    assert found.clients[0]["loss"] == expected.loss


def test_without_a_global_model_a_newcomer_gets_the_shared_part_and_a_fresh_head():
    method = FedPer(NET, **WORK)
    part, new = held_out(CASES[0].federation, 1)
    snapshot = last(method, part, rounds=1)
    seen: list[Params] = []

    @dataclass(frozen=True)
    class Watching:
        method: Any

        def __getattr__(self, name: str) -> Any:
            return getattr(self.method, name)

        def newcomer_model(self, download: Any, client: Any, site: Site, context: Context) -> Params:
            seen.append(self.method.personal_model(download, client))
            return seen[-1]

    found = evaluate_newcomers(Watching(method), new, "head", state=snapshot.state)
    assert found.start == "own choice"
    assert found.clients == evaluate_newcomers(snapshot, new, "head").clients
    fresh = method.init_client(Seed(0).fold("client", new.ids[0])).private
    assert all(torch.equal(seen[0][n], t) for n, t in fresh.items())
    assert all(torch.equal(seen[0][n], t) for n, t in snapshot.state.shared.items())


def test_a_method_may_choose_for_its_newcomers():
    part, new = held_out(CASES[0].federation, 1)
    method = IFCA(NET, n_clusters=2, **WORK)
    snapshot = last(method, part, rounds=1)
    found = evaluate_newcomers(snapshot, new, "none")
    train = new.site(new.ids[0], 0).train
    with one_thread():
        best = min(snapshot.state.models, key=lambda m: classify(method.predict, m, train).loss)
        assert found.mean == classify(method.predict, best, new.evaluation(new.ids[0], "test")).accuracy


def test_wrong_questions_are_refused():
    snapshot, new = trained(CASES[0])
    with pytest.raises(InputError, match="mode must be one of none, fine_tune, head, got 'all'"):
        evaluate_newcomers(snapshot, new, "all")
    with pytest.raises(InputError, match="epochs must be at least 1"):
        evaluate_newcomers(snapshot, new, epochs=0)
    with pytest.raises(InputError, match="give the server state too"):
        evaluate_newcomers(fedavg(), new)
    with pytest.raises(InputError, match="Give the federation of the newcomers"):
        evaluate_newcomers(snapshot)


def test_from_the_command(tmp_path: Path):
    recipe = small(tmp_path, SMALL.replace("clients = 4", "clients = 6\nnewcomers = 2"))
    said = command("run", recipe, "--json")
    assert said.code == 0, said
    folder = Path(said.json["folder"])
    modes = said.json["newcomers"]["modes"]
    assert [len(modes[m]["clients"]) for m in MODES] == [2, 2, 2]
    again = command("newcomers", folder, "--json")
    assert again.json == said.json["newcomers"]
    tuned = fedquilt.evaluate_newcomers(folder, mode="fine_tune")
    assert tuned.mean == modes["fine_tune"]["mean"]
    longer = command("newcomers", folder, "--epochs", 9, "--json").json
    assert longer["modes"]["fine_tune"]["epochs"] == 9
    assert longer["modes"]["none"] == modes["none"]
    words = command("newcomers", folder).out
    assert "2 newcomers" in words
    assert "majority class" in words
    alone = command("run", recipe, "method=local_only", "--json").json
    assert "no global model" in alone["newcomers"]["modes"]["none"]["refused"]
    assert "before its first client update" in command("newcomers", alone["folder"]).out
    plain = command("run", recipe, "data.newcomers=0", "--json")
    assert "newcomers" not in plain.json
    assert command("newcomers", plain.json["folder"]).code == 2
