"""The method Localize-and-Stitch: schedule, reductions, what travels, and its options."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedquilt.core.exchange import Context
from fedquilt.core.net import Net
from fedquilt.core.params import Params
from fedquilt.core.seed import Seed
from fedquilt.core.select import chosen
from fedquilt.core.table import Table
from fedquilt.data import Dirichlet, Federation
from fedquilt.data.partitions.legacy import DirichletCuts
from fedquilt.engines.local import Local
from fedquilt.errors import InputError
from fedquilt.methods.averaging.centralised import SingleModel
from fedquilt.methods.averaging.scaffold import Scaffold
from fedquilt.methods.fedavg import FedAvg
from fedquilt.methods.merging.localize_stitch import LocalizeStitch, StitchOnce
from fedquilt.metrics.classify import classify
from fedquilt.models.registry import make
from fedquilt.pieces.aggregators import uniform_mean
from fedquilt.pieces.merging.marked import TrainedMask, some_of_each
from fedquilt.pieces.merging.trim import Density
from fedquilt.pieces.optimizers import SGD
from fedquilt.records.record import pack, tensors_in, unpack
from fedquilt.rounds.client import ClientSide, Task
from fedquilt.rounds.rounds import Rounds
from fedquilt.runs.runner import run
from helpers.toy import Normed, digits, last

NET = Net(make("mlp", (1, 8, 8), 10, hidden=(16,)))
WORK: dict[str, Any] = {"optimizer": SGD(0.1), "batch_size": 16}
TOY = digits(clients=4)


@pytest.mark.parametrize(
    ("mu", "accuracy", "expected"),
    [(0.035, 0.98, 0.9657), (0.035, 0.1, 0.9965), (0.01, 0.98, 0.9902), (1.0, 0.95, 0.05), (1.0, 1.0, 0.01)],
)
def test_the_schedule(mu: float, accuracy: float, expected: float) -> None:
    assert Density(mu=mu)(accuracy) == pytest.approx(expected)
    assert Density(k_init=0.9)(None) == 0.9
    assert Density(fixed=0.3)(accuracy) == 0.3
    rising = Density(k_init=0.25, dense_by=3)
    assert [rising(accuracy, merges) for merges in range(5)] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_i_density_never_rises_with_accuracy(mu: float, a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert Density(mu=mu)(high) <= Density(mu=mu)(low)


def test_percent_is_refused() -> None:
    with pytest.raises(InputError, match="a fraction"):
        Density()(98.0)
    with pytest.raises(InputError, match="mu must be"):
        Density(mu=1.5)
    with pytest.raises(InputError, match="k_min"):
        Density(k_min=0.0)
    with pytest.raises(InputError, match="dense_by is a number of rounds"):
        Density(dense_by=0)
    with pytest.raises(InputError, match="Give one of the two"):
        Density(dense_by=2, fixed=0.5)


def final(method: Any, federation: Federation = TOY, rounds: int = 2) -> Params:
    return last(method, federation, rounds=rounds).state.shared


def close(a: Params, b: Params, within: float) -> None:
    for name in a:
        torch.testing.assert_close(a[name], b[name], atol=within, rtol=0)


def test_c_keeping_everything_is_unweighted_fedavg() -> None:
    fedavg = final(FedAvg(objective=NET, aggregate=uniform_mean, **WORK))
    close(final(LocalizeStitch(NET, keep=1.0, **WORK)), fedavg, 1e-6)
    weighted = final(FedAvg(objective=NET, **WORK))
    close(final(LocalizeStitch(NET, keep=1.0, by_samples=True, **WORK)), weighted, 1e-6)
    assert not torch.allclose(weighted["head.weight"], fedavg["head.weight"], atol=1e-4)


def test_buffers_are_averaged_and_counters_stay() -> None:
    """2.8: running statistics as FedAvg's whatever K is, the batch counter as it began."""
    net = Net(partial(Normed, width=16))
    found = final(LocalizeStitch(net, keep=0.2, optimizer=SGD(1e-9), batch_size=17), rounds=1)
    plain = final(FedAvg(objective=net, aggregate=uniform_mean, optimizer=SGD(1e-9), batch_size=17), rounds=1)
    for name in ("bn.running_mean", "bn.running_var"):
        torch.testing.assert_close(found[name], plain[name])
        assert bool((found[name] != net.init(Seed(0))[name]).any())
    assert int(found["bn.num_batches_tracked"]) == 0 < int(plain["bn.num_batches_tracked"])


def test_the_accuracy_is_the_clients_held_out_one_and_steers_the_next_density() -> None:
    method = LocalizeStitch(NET, mu=1.0, **WORK)
    orders = []
    for snapshot in run(method, TOY, rounds=2, engine="local", score=classify):
        assert snapshot.state.accuracy == snapshot.metrics["global_valid_accuracy_pooled"]
        orders.append(method.exchanges()[0].down(snapshot.state, 0).keep)
        assert orders[-1] == pytest.approx(1 - snapshot.state.accuracy)
    state = method.init_server(Seed(0))
    assert method.exchanges()[0].down(state, 0).keep == 0.95
    heard = method.observe(state, {"test_accuracy": 0.9, "global_test_accuracy_pooled": 0.9})
    assert heard.accuracy is None  # never the test set


def update(method: Any, federation: Federation = TOY, client: int = 1) -> tuple[Any, Any, Any, Any]:
    """One client update: server state, what was sent, the frame up, and what the server makes of it."""
    state = method.init_server(Seed(0).fold("server"))
    exchange = method.exchanges()[0]
    sent = exchange.down(state, client)
    side = ClientSide(method, federation, Seed(0))
    outcome = side.update(Task("train", client, 0, pack(sent), None))
    wire = unpack(outcome.upload).upload
    return state, sent, outcome.upload, exchange.codec.decode(wire, sent)


def test_l_no_data_in_any_message() -> None:
    """An upload holds one number per chosen weight and where it is; four times the rows do not make it longer."""
    keep, count = 0.1, sum(t.numel() for t in NET.init(Seed(0)).values())
    for federation in (TOY, digits(clients=1)):
        state, sent, frame, vote = update(LocalizeStitch(NET, keep=keep, **WORK), federation, federation.ids[0])
        kept = sum(int(m.sum()) for m in chosen(vote.inner.delta).values())
        assert kept == int(keep * count)
        assert len(frame) < 4 * kept + count / 8 + 700
        assert vote.inner.delta.keys() == state.shared.keys()
        assert vote.seen is None
    assert [t.shape for t in tensors_in(sent)] == [t.shape for t in state.shared.values()]


@given(st.integers(0, 50), st.integers(2, 6))
def test_k_the_split_is_a_function_of_the_seed_and_covers_everything_once(seed: int, clients: int) -> None:
    labels = torch.arange(120) % 7
    one, two = (DirichletCuts(0.15)(labels.numpy(), clients, Seed(seed).numpy()) for _ in range(2))
    assert [list(map(int, p)) for p in one] == [list(map(int, p)) for p in two]
    assert sorted(int(i) for p in one for i in p) == list(range(120))


def test_error_feedback_sends_later_what_was_not_sent() -> None:
    """What was chosen in round 1 and what is owed afterwards add up to the whole change of round 1."""
    method = LocalizeStitch(NET, keep=0.1, error_feedback=True, **WORK)
    plain = FedAvg(objective=NET, **WORK)
    side = ClientSide(method, TOY, Seed(0))
    state = method.init_server(Seed(0).fold("server"))
    exchange = method.exchanges()[0]
    sent = exchange.down(state, 1)
    outcome = side.update(Task("train", 1, 0, pack(sent), None))
    owed = unpack(outcome.slot).memory["train"].owed
    got = exchange.codec.decode(unpack(outcome.upload).upload, sent).inner.delta
    whole = update(plain)[3].delta
    close({n: got[n] + owed[n] for n in got}, whole, 1e-7)
    assert method.stitch.divide == "clients"
    with pytest.raises(InputError, match="error_feedback with unseen_classes_vote"):
        LocalizeStitch(NET, error_feedback=True, unseen_classes_vote=False, **WORK)


def test_feedback_at_full_density_is_fedavg() -> None:
    fedavg = final(FedAvg(objective=NET, aggregate=uniform_mean, **WORK))
    close(final(LocalizeStitch(NET, keep=1.0, error_feedback=True, **WORK)), fedavg, 1e-6)


def test_classes_never_seen_do_not_vote() -> None:
    """A client without a class leaves that class's row of the head to others, even at K = 1."""
    skewed = Federation.from_source("digits", partition=Dirichlet(0.05), clients=4, seed=3)
    method = LocalizeStitch(NET, keep=1.0, unseen_classes_vote=False, **WORK)
    state, _, _, vote = update(method, skewed)
    lacking = (~vote.seen).nonzero().flatten().tolist()
    assert lacking
    heard = next(method._heard([_reply(vote)], [], shares := []))
    assert 0.5 < shares[0] < 1.0
    mask = chosen(heard.upload.delta)
    for name in ("head.weight", "head.bias"):
        assert not bool(mask[name][lacking].any())
        assert bool(mask[name][vote.seen].all())
    wrong = replace(vote, seen=torch.ones(3, dtype=torch.bool))
    with pytest.raises(InputError, match="10 truth values"):
        method.exchanges()[0].check(state, wrong)


def _reply(vote: Any) -> Any:
    from fedquilt.core.exchange import Reply

    return Reply(1, 10, vote)


def test_a_client_joins_and_leaves_without_the_others() -> None:
    """Three of four clients and then the fourth are all four; all four without the fourth are the three."""
    method = LocalizeStitch(NET, keep=0.2, remember=True, **WORK)
    state = method.init_server(Seed(0).fold("server"))
    votes = [update(method, TOY, c)[3] for c in TOY.ids]
    replies = [replace(_reply(v), client=c) for c, v in zip(TOY.ids, votes, strict=True)]
    up = method.exchanges()[0].up
    context = Context(0, None, Seed(0), 4)
    three, four = up(state, replies[:3], context), up(state, replies, context)
    close(method.joined(three, votes[3].inner.delta).shared, four.shared, 1e-7)
    close(method.left(four, votes[3].inner.delta).shared, three.shared, 1e-7)
    assert unpack(pack(four)).standing is not None
    with pytest.raises(InputError, match="No merge is remembered"):
        method.joined(state, votes[0].inner.delta)
    with pytest.raises(InputError, match="masked mean"):
        LocalizeStitch(NET, remember=True, conflicts="elect", **WORK)


def test_a_trained_mask_keeps_what_the_loss_needs() -> None:
    """theta = 0, delta = (1, -1), loss = (w0 - 1)^2 / 2 + w1^2: at w = (s0, -s1) gradient times delta is s0 - 1 < 0 for
    the first number, whose S rises, and 2 s1 > 0 for the second, whose S falls. A strong penalty drops both."""
    start = {"w": torch.zeros(2)}
    delta = {"w": torch.tensor([1.0, -1.0])}
    rows = Table({"x": torch.zeros(8, 1), "y": torch.zeros(8, dtype=torch.long)})

    def loss(params: Params, batch: Any) -> torch.Tensor:
        return (params["w"][0] - 1).square() / 2 + params["w"][1].square()

    masks = TrainedMask(shots=4, epochs=50, batch_size=4, lr=300.0, l1=0.0)
    assert masks(loss, start, delta, 1.0, rows, Seed(0))["w"].tolist() == [True, False]
    strict = TrainedMask(shots=4, epochs=200, batch_size=4, lr=0.0, l1=10.0)
    assert strict(loss, start, delta, 1.0, rows, Seed(0))["w"].tolist() == [False, False]
    with pytest.raises(InputError, match="do not go with them"):
        LocalizeStitch(NET, trained_masks=True, error_feedback=True, **WORK)


def test_a_few_rows_of_each_class() -> None:
    rows = Table({"x": torch.arange(30)[:, None], "y": torch.tensor([0] * 20 + [1] * 3 + [2] * 7)})
    few = some_of_each(rows, 5, Seed(0))
    labels = few.whole().y
    assert torch.bincount(labels).tolist() == [5, 3, 5]
    assert len(set(few.all_rows().tolist())) == 13


def test_once_is_once() -> None:
    """Later rounds ask nobody and change nothing."""
    shots = list(run(StitchOnce(NET, keep=0.3, epochs_first=2, **WORK), TOY, rounds=3, engine="local"))
    assert [len(s.log.updates) for s in shots] == [4, 0, 0]
    assert all(torch.equal(shots[0].state.shared[n], shots[2].state.shared[n]) for n in NET.names)
    assert [s.metrics["bytes_up"] > 0 for s in shots] == [True, False, False]
    alone = list(run(SingleModel(NET, epochs_first=2, **WORK), TOY, rounds=2, engine="local"))
    assert [len(s.log.updates) for s in alone] == [1, 0]


def test_more_passes_in_the_first_round() -> None:
    logs = [
        s.log.updates[0].steps
        for s in run(FedAvg(objective=NET, epochs_first=3, **WORK), TOY, rounds=2, engine="local")
    ]
    assert logs[0] == 3 * logs[1]
    with pytest.raises(InputError, match="epochs_first must be at least 1"):
        FedAvg(objective=NET, epochs_first=0, **WORK).exchanges()


def test_any_base() -> None:
    """Around SCAFFOLD at K = 1 it is SCAFFOLD with its own aggregator; private parts stay home."""
    base = Scaffold(NET, **WORK)
    found = last(LocalizeStitch(base=base, keep=1.0), TOY).state.inner
    plain = last(base, TOY).state
    close(found.shared, plain.shared, 1e-6)
    close(found.control, plain.control, 1e-6)
    with pytest.raises(InputError, match="not built on FedAvg"):
        LocalizeStitch(base=_Odd()).exchanges()


class _Odd:
    net = NET


def test_same_start_as_the_baselines() -> None:
    """Every method of one comparison begins at the same model."""
    seed = Seed(5).fold("server")
    first = FedAvg(objective=NET, **WORK).init_server(seed).shared
    for method in (LocalizeStitch(NET, **WORK), StitchOnce(NET, **WORK), SingleModel(NET, **WORK)):
        other = method.init_server(seed).shared
        assert all(torch.equal(first[n], other[n]) for n in first)


def test_the_density_that_was_asked_for_and_the_real_one_are_told() -> None:
    """K_t = 1 - mu * accuracy of the round before."""
    method = LocalizeStitch(NET, k_init=0.5, mu=1.0, **WORK)
    rounds = Rounds(method, TOY, Local(), Seed(0))
    assert method.reported(rounds.state) == {"stitch_keep": 0.5}
    rounds.play()
    told = method.reported(rounds.state)
    assert told["stitch_keep"] == 0.5
    assert told["stitch_density"] == pytest.approx(0.5, abs=0.01)
    rounds.state = method.observe(rounds.state, {"valid_accuracy_pooled": 0.8})
    rounds.play()
    told = method.reported(rounds.state)
    assert told["stitch_keep"] == pytest.approx(0.2)
    assert told["stitch_density"] == pytest.approx(0.2, abs=0.01)
    assert method.reported(rounds.state.inner) == {}  # the state of another method
