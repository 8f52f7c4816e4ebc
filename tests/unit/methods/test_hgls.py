"""HGLS as a method: what travels, who gets what, and what it leaves alone."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from conformance.cases import NET, TOY, WORK, fedavg
from fedquilt.core.exchange import Context, fraction
from fedquilt.core.net import Net
from fedquilt.core.params import Params, under
from fedquilt.core.seed import Seed
from fedquilt.engines.local import Local
from fedquilt.errors import InputError
from fedquilt.methods.averaging.fedopt import FedAvgM
from fedquilt.methods.averaging.fedprox import FedProx
from fedquilt.methods.averaging.scaffold import Scaffold
from fedquilt.methods.compressed import Compressed
from fedquilt.methods.fedavg import FedAvg
from fedquilt.methods.personalised.ditto import Ditto
from fedquilt.methods.personalised.fedala import FedALA
from fedquilt.methods.personalised.fedbabu import FedBABU
from fedquilt.methods.personalised.fedper import FedPer
from fedquilt.methods.personalised.fedper_finetune import FedPerFineTune
from fedquilt.methods.personalised.fedrep import FedRep
from fedquilt.methods.personalised.hgls import HGLS
from fedquilt.methods.personalised.hgls_records import BIAS, WEIGHT, GradientTally
from fedquilt.models.registry import make
from fedquilt.pieces.codecs import half, hgc, on
from fedquilt.pieces.optimizers import SGD
from fedquilt.records.record import pack, unpack
from fedquilt.rounds.client import Slot, one_thread
from fedquilt.rounds.rounds import Rounds
from helpers.toy import Normed, last

HEAD = under("head")
NEVER: dict[str, Any] = {"least": 1e9}  # accepts nothing
PLAIN: dict[str, Any] = {**WORK, "optimizer": SGD(0.3)}
BASES = {
    "fedavg": FedPer(NET, **WORK),
    "fedprox": FedProx(NET, mu=0.1, parts=FedPer(NET).parts, **WORK),
    "fedrep": FedRep(NET, head_epochs=1, **WORK),
    "scaffold": HGLS(base=Scaffold(NET, **PLAIN)).base,
    "fedavgm": HGLS(base=FedAvgM(NET, **WORK)).base,
}


def played(method: Any, rounds: int = 2) -> Rounds:
    run = Rounds(method, TOY, Local(), Seed(0))
    for _ in range(rounds):
        run.play()
    return run


def clients(run: Rounds) -> dict[Any, Any]:
    found = {}
    for client in TOY.ids:
        frame = run.slots.get(client)
        slot: Slot | None = None if frame is None else unpack(frame)
        found[client] = run.method.init_client(Seed(0).fold("client", client)) if slot is None else slot.state
    return found


def equal(one: Params, other: Params) -> bool:
    return one.keys() == other.keys() and all(torch.equal(t, other[n]) for n, t in one.items())


@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("search_base", ["aggregated", "local"])
def test_a_search_that_takes_nothing_is_the_base_bit_for_bit(name: str, search_base: Any):
    plain = played(BASES[name])
    ours = played(HGLS(base=BASES[name], search_base=search_base, **NEVER))
    assert pack(ours.state.base) == pack(plain.state)
    mine, theirs = clients(ours), clients(plain)
    assert all(pack(mine[c].base) == pack(theirs[c]) for c in TOY.ids)


def test_off_is_fedavg_bit_for_bit():
    assert HGLS(NET, base="fedper", search="off", **WORK).base == FedPer(NET, **WORK)
    assert last(HGLS(NET, search="off", **WORK), TOY).digest() == last(fedavg(), TOY).digest()


def test_the_search_changes_heads_and_nothing_else():
    """After one round the body is the base's; heads differ, and never for the worse on the rows that judge."""
    base = FedPer(NET, **WORK)
    plain, ours = played(base, 1), played(HGLS(base=base), 1)
    assert equal(ours.state.base.shared, plain.state.shared)
    before, after = clients(plain), clients(ours)
    moved = 0
    for client in TOY.ids:
        rows = TOY.site(client, 0).train.whole()
        heads = before[client].private, after[client].base.private
        values = [float(F.cross_entropy(NET({**plain.state.shared, **head}, rows), rows.y)) for head in heads]
        assert values[1] <= values[0] + 1e-6
        moved += not equal(*heads)
    assert moved > 0
    assert 0 < ours.state.tally.taken <= ours.state.tally.aligned <= ours.state.tally.candidates == 16


def by_hand(gradient: str, search_base: str) -> tuple[dict[Any, Params], int]:
    """One round in plain Python: whole forward passes for every candidate, gradients by autograd."""
    (alone,) = FedPer(NET, **WORK).exchanges()
    base, state = FedPer(NET, **WORK), FedPer(NET, **WORK).init_server(Seed(0).fold("server"))
    trained, gradients, replies = {}, {}, []
    for client in TOY.ids:
        context = Context(0, client, Seed(0).fold("work", "train", 0, client))
        mine = base.init_client(Seed(0).fold("client", client))
        _, upload, _, after = alone.work.run(alone.down(state, client), mine, TOY.site(client, 0), context)
        trained[client] = after.params
        rows = TOY.site(client, 0).train.whole()
        free = {n: t.clone().requires_grad_(HEAD(n)) for n, t in after.params.items()}
        wanted = [free[WEIGHT], free[BIAS]]
        full = torch.autograd.grad(F.cross_entropy(NET(free, rows), rows.y), wanted)
        got = full if gradient == "full" else (after.gradient[WEIGHT], after.gradient[BIAS])
        gradients[client] = {WEIGHT: got[0], BIAS: got[1]}
        replies.append((len(rows), upload.delta))
    total = sum(n for n, _ in replies)
    shared = {n: t + sum(k / total * d[n] for k, d in replies) for n, t in state.shared.items()}
    seed = Seed(0).fold("up", "train", 0).fold("peers")
    order = torch.randperm(len(TOY.ids), generator=seed.torch()).tolist()
    heads, taken = {}, 0
    for client in TOY.ids:
        rows = TOY.site(client, 0).train.whole()
        body = shared if search_base == "aggregated" else trained[client]
        head = {n: t for n, t in trained[client].items() if HEAD(n)}

        def value(head: Params, body: Params = body, rows: Any = rows) -> float:
            return float(F.cross_entropy(NET({**body, **head}, rows).double(), rows.y))

        best, own = value(head), torch.cat([gradients[client][n].flatten() for n in (WEIGHT, BIAS)]).double()
        context = Seed(0).fold("work", "search", 0, client).fold("order")
        for j in torch.randperm(len(order), generator=context.torch()).tolist():
            g = gradients[TOY.ids[order[j]]]
            flat = torch.cat([g[n].flatten() for n in (WEIGHT, BIAS)]).double()
            s = float(flat @ own)
            if s <= 0:
                continue
            alpha = s / float(flat.norm() * own.norm())
            trial = {n: t - alpha * g[n] for n, t in head.items()}
            if value(trial) < best:
                head, best, taken = trial, value(trial), taken + 1
        heads[client] = head
    return heads, taken


@pytest.mark.parametrize("gradient", ["full", "last_batch"])
@pytest.mark.parametrize("search_base", ["aggregated", "local"])
def test_a_round_by_hand(gradient: Any, search_base: Any):
    ours = played(HGLS(base=FedPer(NET, **WORK), gradient=gradient, search_base=search_base), 1)
    heads, taken = by_hand(gradient, search_base)
    assert ours.state.tally.taken == taken
    for client, mine in clients(ours).items():
        assert all(torch.allclose(mine.base.private[n], t, atol=2e-6) for n, t in heads[client].items())


def test_the_head_of_the_base_becomes_private():
    assert HGLS(base=fedavg()).base.parts.private(WEIGHT)
    nested = HGLS(base=Scaffold(NET, **PLAIN)).base
    assert nested.base.parts.private(BIAS)
    assert set(played(HGLS(base=Scaffold(NET, **PLAIN)), 1).state.base.control) == {
        "features.1.weight",
        "features.1.bias",
    }


def test_the_body_travels_once_a_round():
    """The search brings the new body; the next round does not bring it again, except to who was not there."""
    body = sum(t.numel() * 4 for n, t in NET.init(Seed(0)).items() if not HEAD(n))
    run = Rounds(HGLS(base=fedavg()), TOY, Local(), Seed(0))
    first, second = run.play(), run.play()
    assert run.state.holders == TOY.ids
    down = [
        {e: sum(v.bytes_down for v in log.updates if v.exchange == e) for e in ("train", "search")}
        for log in (first, second)
    ]
    assert down[0]["train"] > 4 * body > 8 * down[1]["train"]
    assert down[0]["search"] == down[1]["search"] > 4 * body
    kept = played(HGLS(base=fedavg(), search_base="local"), 2)
    assert kept.state.holders == ()
    assert all(mine.kept is None for mine in clients(kept).values())


def test_what_the_base_hears_may_change_what_it_sends():
    method = HGLS(base=fedavg())
    state = played(method, 1).state
    assert method.observe(state, {}) is state

    class Moody(FedAvg):
        def observe(self, state: Any, metrics: Any) -> Any:
            return replace(state, shared={n: t + 1 for n, t in state.shared.items()})

    assert HGLS(base=Moody(objective=NET)).observe(state, {}).holders == ()


def test_never_asked_clients_and_strangers_begin_with_the_mean_head():
    run = played(HGLS(base=fedavg(cohort=fraction(0.5)), mean_head=True), 1)
    (absent, *_), state, mine = [c for c in TOY.ids if c not in run.state.met], run.state, clients(run)
    met = [(TOY.size(c), c) for c in state.met]
    assert len(met) == 2
    (train, _) = run.method.exchanges()
    model = run.method.personal_model(train.down(state, absent), mine[absent])
    assert equal({n: model[n] for n in state.head}, state.head)
    assert equal(run.method.global_model(state), {**state.base.shared, **state.head})
    job = train.work.start(train.down(state, absent), mine[absent], TOY.site(absent, 1), Context(1, absent, Seed(0)))
    assert torch.equal(job.params[WEIGHT], state.head[WEIGHT])
    own = run.method.personal_model(train.down(state, state.met[0]), mine[state.met[0]])
    assert torch.equal(own[WEIGHT], mine[state.met[0]].base.private[WEIGHT])

    alone = played(HGLS(base=fedavg(cohort=fraction(0.5))), 1)
    (train, _) = alone.method.exchanges()
    fresh = alone.method.init_client(Seed(0).fold("client", absent)).base.private
    assert alone.method.global_model(alone.state) is None
    assert torch.equal(
        alone.method.personal_model(train.down(alone.state, absent), mine[absent])[WEIGHT], fresh[WEIGHT]
    )


def test_the_mean_head_is_weighed_by_samples():
    heads = {}
    run = Rounds(HGLS(base=fedavg(), mean_head=True, **NEVER), TOY, Local(), Seed(0))
    run.play()
    heads = {c: m.base.private[WEIGHT].double() for c, m in clients(run).items()}
    total = sum(TOY.size(c) for c in TOY.ids)
    assert torch.allclose(
        run.state.head[WEIGHT].double(), sum(TOY.size(c) / total * h for c, h in heads.items()), atol=1e-7
    )


@pytest.mark.parametrize(("age", "most"), [(0, 2), (1, 4)])
def test_gradients_of_those_not_asked_count_for_some_rounds(age: int, most: int):
    run = Rounds(HGLS(base=fedavg(cohort=fraction(0.5)), max_age=age), TOY, Local(), Seed(0))
    sizes = []
    for _ in range(6):
        run.play()
        sizes.append(len(run.state.peers))
        assert all(run.done - 1 - p.round <= age for p in run.state.peers)
        assert len({p.client for p in run.state.peers}) == len(run.state.peers)
    assert max(sizes) <= most
    assert max(sizes) > 2 or age == 0


def test_peers_are_the_most_aligned_and_unnamed():
    run = played(HGLS(base=fedavg(), peers=2), 1)
    assert all(len(chosen) <= 2 for chosen in run.state.chosen.values())
    assert run.state.tally.candidates <= 8
    place = {p.client: j for j, p in enumerate(run.state.peers)}
    flat = [torch.cat([p.gradient[n].flatten() for n in (WEIGHT, BIAS)]) for p in run.state.peers]
    for client, chosen in run.state.chosen.items():
        own = place[client]
        cosines = [float(F.cosine_similarity(flat[own], g, dim=0)) for g in flat]
        best = sorted(range(4), key=lambda j: -cosines[j])[:2]
        assert set(chosen) == {j for j in best if cosines[j] > 0}
        assert own in chosen
    (_, search) = run.method.exchanges()
    assert len(search.down(run.state, 0).gradients) == len(run.state.chosen[0])
    orders = {tuple(p.client for p in played(HGLS(base=fedavg()), r).state.peers) for r in (1, 2, 3)}
    assert len(orders) > 1


def test_gradients_without_bias():
    run = played(HGLS(base=fedavg(), drop_bias=True), 1)
    assert all(set(p.gradient) == {WEIGHT} for p in run.state.peers)
    before, after = clients(played(HGLS(base=fedavg(), drop_bias=True, **NEVER), 1)), clients(run)
    assert all(torch.equal(before[c].base.private[BIAS], after[c].base.private[BIAS]) for c in TOY.ids)
    assert any(not torch.equal(before[c].base.private[WEIGHT], after[c].base.private[WEIGHT]) for c in TOY.ids)


def test_heads_stay_at_home_unless_they_are_asked_for():
    """With the defaults a head is in no message; a gradient by hgc then is most of what HGLS adds to an upload."""
    for method in (HGLS(base=fedavg()), HGLS(NET, gradient_codec="hgc", **WORK)):
        log = Rounds(method, TOY, Local(), Seed(0)).play()
        assert not any(part.startswith("head") for v in log.updates for part in v.up.parts)
    asked = Rounds(HGLS(base=fedavg(), mean_head=True), TOY, Local(), Seed(0)).play()
    assert all("head.head.weight" in v.up.parts for v in asked.updates if v.exchange == "train")


def test_gradients_are_counted_as_they_were_before_the_codec():
    """hgc sends a bit for each number of a gradient that fp32 needs 32 for, and a few bytes; so the account says about
    20 times, up and down, and the same raw bytes as without a codec."""
    plain, coded = (Rounds(HGLS(NET, gradient_codec=s, **WORK), TOY, Local(), Seed(0)).play() for s in ("plain", "hgc"))
    for one, other in zip(plain.updates, coded.updates, strict=True):
        way = ("up", "down")[one.exchange == "search"]
        before, after = getattr(one, way), getattr(other, way)
        gradients = [
            [sum(p[i] for n, p in load.parts.items() if n.startswith("gradient")) for i in (0, 1)]
            for load in (before, after)
        ]
        assert gradients[0][0] == gradients[0][1] == gradients[1][0] > 0
        assert gradients[1][0] > 15 * gradients[1][1]
        assert before.raw == after.raw
        assert after.wire < after.raw


def test_the_search_tells_its_numbers():
    run = played(HGLS(base=fedavg()), 1)
    tally = run.state.tally
    told = {"search_candidates": 16, "search_aligned": tally.aligned, "search_taken": tally.taken}
    assert run.method.reported(run.state) == told


def test_a_tally_that_cannot_be_is_refused():
    """Nobody is given more gradients than there are, and nobody takes others than those: the run's numbers are sums."""
    run = played(HGLS(base=fedavg()), 1)
    check = run.exchanges["search"].check
    for tally in (GradientTally(4, 4, 4), GradientTally(4, 2, 0), GradientTally()):
        check(run.state, tally)
    for tally in (GradientTally(5, 0, 0), GradientTally(4, 1, 2), GradientTally(1, 2, 0), GradientTally(10**12, 0, 0)):
        with pytest.raises(InputError, match="of at most 4 gradients"):
            check(run.state, tally)


def test_with_only_its_own_gradient_nothing_of_it_travels():
    run = played(HGLS(base=fedavg(), own_only=True), 2)
    assert (run.state.peers, run.state.tally.candidates, run.state.tally.aligned) == ((), 4, 4)


def test_gradients_travel_coded_up_and_down():
    """The server passes on what it got: fewer bytes, and candidates that are the decoded payloads."""
    codec = hgc(num_bins=16)
    plain, coded = (played(HGLS(base=fedavg(), codec=c, mean_head=False), 1) for c in (None, codec))
    sizes = [len(pack(HGLS(base=fedavg()).exchanges()[1].down(r.state, 0).gradients)) for r in (plain, coded)]
    assert sizes[1] < sizes[0] / 3
    like = {n: torch.zeros_like(plain.state.head[n]) for n in (WEIGHT, BIAS)}
    for raw, wire in zip(plain.state.peers, coded.state.peers, strict=True):
        assert raw.client == wire.client
        expected = codec.decode(codec.encode(raw.gradient, like, None, Seed(0))[0], like)
        assert equal(codec.decode(wire.gradient, like), expected)


@pytest.mark.parametrize("gradients", ["hgc", "hgc_rc", "hgc_legacy"])
def test_gradients_by_the_names_of_codecs(gradients: Any):
    run = played(HGLS(NET, gradient_codec=gradients, num_bins=32, **WORK), 1)
    assert type(run.method.coding).__name__ == gradients
    assert run.method.coding.num_bins == 32
    assert run.state.tally.candidates == 16


def test_codecs_of_the_bases_downloads_are_on_both_trips():
    run = played(HGLS(base=Compressed(base=fedavg(), download=on("shared", half()))), 2)
    train, search = run.method.exchanges()
    for exchange in (train, search):
        body = exchange.carried(exchange.down(run.state, 0), Seed(0))[0].base.shared
        assert equal(body, {n: t.half().float() for n, t in run.state.base.shared.items()})


def test_the_bases_own_codec_sees_what_was_sent():
    run = played(HGLS(base=fedavg(codec=on("delta", hgc()))), 2)
    assert run.state.holders == ()
    assert run.state.tally.taken > 0
    ahead = played(HGLS(base=fedavg()), 1).state
    assert not equal(ahead.base.shared, played(HGLS(base=fedavg(codec=on("delta", hgc()))), 1).state.base.shared)


def test_a_gradient_that_is_not_finite_or_does_not_fit_is_refused():
    method = HGLS(base=fedavg())
    (train, _) = method.exchanges()
    state = method.init_server(Seed(0))
    _, upload = train.work(train.down(state, 0), method.init_client(Seed(1)), TOY.site(0, 0), Context(0, 0, Seed(0)))
    method.check(state, upload)
    broken = {n: t / 0 * 0 for n, t in upload.gradient.items()}
    for wrong, told in ((broken, "non-finite"), ({WEIGHT: upload.gradient[WEIGHT]}, "head.bias")):
        with pytest.raises(InputError, match=told):
            method.check(state, replace(upload, gradient=wrong))
    with pytest.raises(InputError, match=r"upload\.head"):
        HGLS(base=fedavg(), mean_head=True).check(state, upload)
    with pytest.raises(InputError, match="only its own"):
        HGLS(base=fedavg(), own_only=True).check(state, upload)


def test_without_gradients_or_training_the_search_leaves_the_client_as_it_was():
    method = HGLS(base=fedavg())
    (_, search) = method.exchanges()
    state = method.init_server(Seed(0))
    mine = method.init_client(Seed(1))
    after, tally = search.work(search.down(state, 0), mine, TOY.site(0, 0), Context(0, 0, Seed(0)))
    assert equal(after.base.private, mine.base.private)
    assert tally.candidates == 0
    trained = replace(mine, gradient={n: torch.ones_like(t) for n, t in mine.base.private.items()})
    after, tally = search.work(search.down(state, 0), trained, TOY.site(0, 0), Context(0, 0, Seed(0)))
    assert equal(after.base.private, mine.base.private)


@pytest.mark.parametrize("accept", ["held_out", "valid"])
def test_other_rows_may_judge(accept: Any):
    here, usual = (played(HGLS(base=fedavg(), accept=a), 1) for a in (accept, "train"))
    assert here.state.tally.taken > 0
    assert here.digest() != usual.digest()
    no_valid = replace(TOY.site(0, 0), valid=None)
    (_, search) = HGLS(base=fedavg(), accept="valid").exchanges()
    mine = clients(usual)[0]
    after, tally = search.work(search.down(usual.state, 0), mine, no_valid, Context(0, 0, Seed(0)))
    assert equal(after.base.private, mine.base.private)
    assert tally.taken == 0


class NormedParts(nn.Module):
    """BatchNorm inside ``features``."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores."""
        return self.head(self.features(x))


def test_statistics_of_batches_are_averaged_or_stay_home():
    net, work = Net(NormedParts), {**WORK, "batch_size": 17}
    shared = played(HGLS(net, **work), 2)
    assert "features.2.running_mean" in shared.state.base.shared
    assert shared.state.tally.taken > 0
    for base in ("fedrep", "fedper"):
        assert not any(
            n.startswith("features.2.") for n in HGLS(net, base=base, norms="personal").init_server(Seed(0)).base.shared
        )
    home = played(HGLS(net, norms="personal", **work), 2)
    assert not any(n.startswith("features.2.") for n in home.state.base.shared)
    assert {"features.2.running_var", WEIGHT} <= clients(home)[0].base.private.keys()
    assert home.method.global_model(home.state) is None
    with pytest.raises(InputError, match="needs a network with BatchNorm"):
        HGLS(NET, norms="personal", **WORK)


class DeepHead(nn.Module):
    """A head that is not linear."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Flatten()
        self.head = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


@pytest.mark.parametrize(
    ("base", "told"),
    [
        (lambda: FedAvg(objective=Net(partial(Normed, width=16))), r"head\(features\(x\)\)"),
        (lambda: FedAvg(objective=Net(DeepHead)), "torch.nn.Linear"),
        (lambda: FedAvg(objective=Net(make("mlp", (1, 8, 8), 10), frozen=HEAD)), "that is trained"),
        (lambda: FedBABU(NET, **WORK), "one exchange, but FedBABU has train, tune"),
        (lambda: Ditto(NET, **WORK), "cannot be combined with Ditto"),
        (lambda: FedALA(NET, **WORK), "cannot be combined with FedALA"),
        (lambda: fedavg(only=under("features")), "trains the head locally"),
    ],
)
def test_bases_that_cannot_work_are_refused_before_the_run(base: Any, told: str):
    with pytest.raises(InputError, match=told):
        HGLS(base=base())


@pytest.mark.parametrize(
    "options",
    [
        {"gradient": "half"},
        {"search_base": "none"},
        {"accept": "test"},
        {"peers": 0},
        {"max_age": -1},
        {"held_out": 1.0},
    ],
    ids=str,
)
def test_wrong_options_are_refused(options: dict[str, Any]):
    with pytest.raises(InputError, match=next(iter(options))):
        HGLS(base=fedavg(), **options)


def test_tuning_the_head_goes_on_from_the_new_body():
    """The body is FedPer's after one round; the head is trained on it, and the next round begins with it."""
    plain, tuned = played(FedPer(NET, **WORK), 1), played(FedPerFineTune(NET, **WORK), 1)
    assert equal(tuned.state.shared, plain.state.shared)
    (train,) = FedPer(NET, **WORK).exchanges()
    alone = train.training(only=HEAD, epochs=2).work
    for client, before in clients(plain).items():
        context = Context(0, client, Seed(0).fold("work", "tune", 0, client))
        with one_thread():  # as engines do
            after = alone.run(train.down(plain.state, client), before, TOY.site(client, 0), context)[3].params
        assert equal(clients(tuned)[client].private, {n: t for n, t in after.items() if HEAD(n)})
    with pytest.raises(InputError, match="at least 1"):
        FedPerFineTune(NET, tune_epochs=0)
    with pytest.raises(InputError, match="private part"):
        FedPerFineTune(base=fedavg())
