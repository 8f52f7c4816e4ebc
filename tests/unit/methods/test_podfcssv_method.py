"""PODFCSSV round by round: what travels, what is kept, what its options change."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from fedquilt.core.exchange import Context, Reply, fraction
from fedquilt.core.params import Params
from fedquilt.core.seed import Seed
from fedquilt.data import Federation, without_labels
from fedquilt.errors import InputError
from fedquilt.methods.self_supervised.podfcssv import PODFCSSV, FedMAE, MAEAlone
from fedquilt.methods.self_supervised.podfcssv_records import AdapterUpload
from fedquilt.pieces.optimizers import AdamW
from fedquilt.records.record import pack
from fedquilt.runs.runner import run
from fedquilt.runs.snapshot import Snapshot
from helpers.guessing import autoencoder, method, tasks
from helpers.toy import linear


@cache
def played(rounds: int = 4) -> list[Snapshot]:
    """A few rounds over both tasks."""
    return list(run(method(), tasks(), rounds=rounds, engine="local"))


def update(made: PODFCSSV, source=None, round: int = 0, state=None, client=None):
    """One client's work by hand: (its new state, its upload)."""
    source = source or tasks()
    state = made.init_server(Seed(0)) if state is None else state
    train = next(e for e in made.exchanges() if e.name == "train")
    client = made.init_client(Seed(1)) if client is None else client
    return train.work(made.down(state, 0), client, source.site(0, round), Context(round, 0, Seed(2)))


def upload(values: Params, rows: int, prototypes: torch.Tensor | None = None) -> AdapterUpload:
    own = torch.zeros(0, 16) if prototypes is None else prototypes
    return AdapterUpload(values, own, torch.ones(len(own), dtype=torch.int64), rows)


def test_only_adapters_prototypes_and_counts_are_sent():
    made = method()
    _, sent = update(made)
    assert set(vars(sent)) == {"delta", "prototypes", "counts", "rows"}
    assert set(sent.delta) == set(made.net.names)
    assert all(name.startswith("adapters.") for name in sent.delta)
    assert sent.prototypes.shape == (5, 16)
    assert int(sent.counts.sum()) == sent.rows == len(tasks().site(0, 0).train)


def test_the_backbone_is_the_same_to_the_byte_after_a_run():
    made = method()
    frozen = {n: t.clone() for n, t in made.net.full({}).items()}
    list(run(made, tasks(), rounds=2, engine="local"))
    after = made.net.full({})
    assert frozen
    assert all(torch.equal(t, after[n]) for n, t in frozen.items())
    assert not frozen.keys() & set(made.net.names)


def test_the_first_round_is_not_anchored_and_later_ones_are():
    """Also in the first round of a later task: the bank stays."""
    snapshots = list(run(method(), tasks(), rounds=1, engine="local"))
    assert {snapshots[0].client_state(c).losses[1] for c in tasks().ids} == {0.0}
    assert all(snapshots[0].client_state(c).losses[0] > 0 for c in tasks().ids)
    last = list(run(method(), tasks(), rounds=3, engine="local"))[-1]
    assert all(last.client_state(c).losses[1] > 0 for c in tasks().ids)


def test_the_bank_never_shrinks_and_grows_by_what_arrives():
    sizes = [s.metrics["bank"] for s in played()]
    assert sizes[0] > 1
    assert all(0 <= b - a <= 3 * 5 for a, b in zip([0, *sizes], sizes, strict=False))
    for s in played():
        assert torch.allclose(s.state.bank.rows.norm(dim=1), torch.ones(s.metrics["bank"]), atol=1e-5)
        assert s.metrics["prototypes_arrived"] == 15
    assert played()[-1].state.arrived == 60


def test_optimiser_and_own_prototypes_are_kept_across_tasks():
    end = list(run(method(), tasks(), rounds=3, engine="local"))[-1]
    for client in tasks().ids:
        steps = [-(-len(tasks().site(client, r).train) // 64) for r in range(3)]
        kept = end.client_state(client)
        assert kept.memory.steps == sum(steps)
        assert kept.prototypes.shape == (5, 16)
        assert kept.followed > 0


def test_server_ema_and_weights():
    """[1, 2] and [3, 6] from zero: their mean is [2, 4], by 30 and 10 rows [1.5, 3]; 0.3 of [2, 4] onto [1, 2] is
    [1.3, 2.6], but not in the first round."""
    name = autoencoder().names[0]

    def one(made: PODFCSSV, start: list[float], round: int) -> list[float]:
        state = made.init_server(Seed(0))
        shape = state.shared[name].shape
        shared = {n: torch.zeros_like(t) for n, t in state.shared.items()}
        shared[name] = torch.tensor(start).repeat_interleave(shape.numel() // 2).view(shape)
        state = type(state)(shared, state.bank, state.centre, state.arrivals)
        replies = []
        for client, (rows, wanted) in enumerate(((30, [1.0, 2.0]), (10, [3.0, 6.0]))):
            ends = torch.tensor(wanted).repeat_interleave(shape.numel() // 2).view(shape)
            delta = {n: torch.zeros_like(t) for n, t in shared.items()} | {name: ends - shared[name]}
            replies.append(Reply(client, 1, upload(delta, rows)))
        found = made.up(state, iter(replies), Context(round, None, Seed(0), 2)).shared[name].flatten()
        return [float(found[0]), float(found[-1])]

    assert one(method(), [0.0, 0.0], 1) == pytest.approx([2.0, 4.0])
    assert one(method(weighting="samples"), [0.0, 0.0], 1) == pytest.approx([1.5, 3.0])
    assert one(method(server_ema=0.3), [1.0, 2.0], 1) == pytest.approx([1.3, 2.6])
    assert one(method(server_ema=0.3), [1.0, 2.0], 0) == pytest.approx([2.0, 4.0])


def test_without_weight_the_bank_changes_nothing_that_is_learned():
    """lambda_proto = 0 gives the very adapters of plain averaging."""
    work = {"optimizer": AdamW(1e-3), "batch_size": 64}
    ends = [
        list(run(m, tasks(), rounds=3, engine="local"))[-1].state.shared
        for m in (FedMAE(autoencoder(), **work), method(lambda_proto=0.0), method(lambda_proto=1.0))
    ]
    assert pack(ends[0]) == pack(ends[1])
    assert pack(ends[0]) != pack(ends[2])


def test_alone_nothing_travels_and_everybody_differs():
    work = {"optimizer": AdamW(1e-3), "batch_size": 64}
    end = list(run(MAEAlone(autoencoder(), **work), tasks(), rounds=2, engine="local"))[-1]
    models = [end.personal_model(c) for c in tasks().ids]
    assert pack(models[0]) != pack(models[1])
    assert end.state.shared == {}
    assert end.metrics["bytes_up"] < 300


def test_new_data_can_be_looked_at_before_they_are_trained_on():
    made = method(bootstrap_every=2)
    assert [made.plan(None, r) for r in range(3)] == [("look", "train"), ("train",), ("look", "train")]
    first = next(iter(run(made, tasks(), rounds=1, engine="local")))
    assert all(first.client_state(c).losses[1] > 0 for c in tasks().ids)


def test_live_prototypes_are_those_that_followed():
    again, _ = update(method(center=False))
    made = method(center=False, live_prototypes=True, client_local_ema_alpha=0.0)
    kept, sent = update(made, round=1, client=again)
    assert torch.equal(sent.prototypes, kept.prototypes)
    assert torch.allclose(kept.prototypes, again.prototypes, atol=1e-6)


def test_small_clusters_stay_at_home_and_noise_hides_the_rest():
    _, plain = update(method(k_init_prototypes=40, center=False))
    _, few = update(method(k_init_prototypes=40, center=False, min_cluster=4))
    assert int(plain.counts.min()) < 4 <= int(few.counts.min())
    assert 0 < len(few.prototypes) < len(plain.prototypes)
    _, noisy = update(method(k_init_prototypes=40, center=False, prototype_noise=0.1))
    gaps = (noisy.prototypes - plain.prototypes).flatten()
    assert float(gaps.std()) == pytest.approx(0.1, rel=0.15)


def test_new_kinds_of_rows_become_prototypes():
    """With routing, a client's samples that are near nothing are collected until there are enough."""
    first, _ = update(method(center=False))
    made = method(center=True, novelty_size=40, novelty_k=4, client_local_update_threshold=0.99, live_prototypes=True)
    kept, _ = update(made, round=2, client=first)
    assert len(kept.prototypes) > 5
    assert len(kept.novel) < 40


def test_rows_without_labels_are_trained_on():
    whole = Federation.from_source("digits", clients=3, seed=0)
    half = without_labels(whole, 0.5)
    _, sent = update(method(), half)
    assert sent.rows == len(whole.site(0, 0).train) > len(half.site(0, 0).train)


def test_only_some_clients_are_asked():
    end = list(run(method(cohort=fraction(0.4)), tasks(), rounds=2, engine="local"))[-1]
    assert end.metrics["clients"] == 1
    assert end.metrics["prototypes_arrived"] == 5


def test_half_precision_models_keep_the_bank_in_single_precision():
    made = PODFCSSV(autoencoder(dtype="bfloat16"), center=True, optimizer=AdamW(1e-3), batch_size=64)
    end = list(run(made, tasks(), rounds=2, engine="local"))[-1]
    assert {t.dtype for t in end.state.shared.values()} == {torch.bfloat16}
    assert end.state.bank.rows.dtype == end.state.centre.mean.dtype == torch.float32
    assert end.metrics["bank"] > 1


def test_collapse_is_told_once():
    made = method(center=False, merge_threshold=-1.0)
    with pytest.warns(UserWarning, match="holds 1 row although 15 prototypes arrived") as said:
        list(run(made, tasks(), rounds=2, engine="local"))
    assert len(said) == 1


def test_uploads_that_cannot_be_are_refused():
    made = method()
    state = made.init_server(Seed(0))
    zeros = {n: torch.zeros_like(t) for n, t in state.shared.items()}
    made.check(state, upload(zeros, 3, torch.ones(2, 16)))
    for bad, why in (
        (upload(zeros, 3, torch.ones(2, 15)), "width 16"),
        (upload(zeros, 3, torch.zeros(2, 16)), "length zero"),
        (upload(zeros, 0, torch.ones(2, 16)), "0 rows"),
        (upload({}, 3, torch.ones(2, 16)), "upload"),
    ):
        with pytest.raises(InputError, match=why):
            made.check(state, bad)


def test_a_network_that_reconstructs_nothing_is_refused():
    with pytest.raises(InputError, match="Linear has no 'patches'"):
        PODFCSSV(linear())


@pytest.mark.parametrize(
    "bad",
    [
        {"lambda_proto": -1},
        {"weighting": "rows"},
        {"server_ema": 0},
        {"bootstrap_every": 0},
        {"kmeans_init": "best"},
        {"k_init_prototypes": -1},
        {"max_prototypes": 0},
        {"merge_threshold": 2},
        {"novelty_size": 4},
        {"center_keep": 2},
        {"client_local_ema_alpha": 2},
    ],
    ids=lambda b: next(iter(b)),
)
def test_senseless_options_are_refused(bad):
    with pytest.raises(InputError):
        method(**bad)
