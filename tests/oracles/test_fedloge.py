"""FedLoGe's step, averaging and models against worked numbers (fedloge.md, O5, O7, O10)."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedquilt.core.exchange import Context, Reply
from fedquilt.core.net import Net
from fedquilt.core.params import under
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch
from fedquilt.core.train import Job
from fedquilt.data import Federation
from fedquilt.errors import InputError
from fedquilt.methods.fedavg import Download, Upload
from fedquilt.methods.long_tailed.fedloge import CountedUpload, FedLoGe, Holder
from fedquilt.methods.long_tailed.shares import ClassCounts
from fedquilt.models.registry import make
from fedquilt.models.small import MLP
from fedquilt.pieces.aggregators import class_wise, mean, uniform_mean
from fedquilt.pieces.etf import Frame
from fedquilt.pieces.objectives import prox
from fedquilt.pieces.optimizers import SGD
from fedquilt.pieces.realign import Realign
from fedquilt.records.record import pack, tensors_in
from helpers.near import close
from helpers.toy import digits, first, last

T = torch.tensor


# O5: one step


class Square(nn.Module):
    """f = relu(B x), B = I; head G."""

    def __init__(self):
        super().__init__()
        linear = nn.Linear(2, 2, bias=False)
        self.features, self.head = nn.Sequential(linear, nn.ReLU()), nn.Linear(2, 3)


S = T([[0.1, 0.0], [0.0, 0.1], [-0.1, -0.1]])
START = {
    "features.0.weight": torch.eye(2),
    "head.weight": T([[0.2, -0.1], [0.0, 0.3], [0.1, 0.1]]),
    "head.bias": torch.zeros(3),
    "own.weight": T([[0.5, 0.0], [0.0, 0.5], [0.5, 0.5]]),
    "own.bias": torch.zeros(3),
}
ROWS = {"x": T([[1.0, 2.0], [2.0, 1.0]]), "y": T([0, 1])}


def square(**options):
    return FedLoGe(Net(Square), narrow="spread", frame_steps=0, sparsity=0.0, **options)


def framed(method, vectors):
    """The method with this frame, as if it had been built so."""
    resident = method.framed.net._resident()
    resident.module.frame.vectors = vectors
    resident._as_built = resident._marks()
    return method


def test_o5_one_local_step():
    """lr .1, no momentum: losses S 1.020828, G 1.263501, L 1.680270; G and L see the features before the step."""
    method = framed(square(optimizer=SGD(0.1), batch_size=2), S)
    out = method.framed.net(START, Batch(ROWS), train=True)
    for scores, loss in ((out.universal, 1.020828), (out.logits, 1.263501), (out.own, 1.680270)):
        assert float(F.cross_entropy(scores, ROWS["y"])) == pytest.approx(loss, abs=1e-6)
    site = Federation.from_rows(ROWS, {0: {"train": [0, 1]}}, classes=3).site(0, 0)
    shared = {n: t for n, t in START.items() if not n.startswith("own")}
    private = {n: t for n, t in START.items() if n.startswith("own")}
    (train,) = method.exchanges()
    client, upload = train.work(Download(shared), Holder(private, None), site, Context(0, 0, Seed(0)))
    after = {n: t + upload.delta[n] for n, t in shared.items()}
    close(after["features.0.weight"], [[1.002839, 0.008029], [0.008029, 1.002839]])
    close(after["head.weight"], [[0.204682, -0.040636], [0.044829, 0.289658], [0.050489, 0.050978]])
    close(after["head.bias"], [0.021349, 0.011496, -0.032844])
    close(client.private["own.weight"], [[0.509964, 0.066008], [0.066008, 0.509964], [0.424028, 0.424028]])
    close(client.private["own.bias"], [0.025324, 0.025324, -0.050648])
    assert client.counts.tolist() == [1, 1, 0]


@pytest.mark.parametrize("cosine", [False, True])
def test_a_learned_temperature_by_hand(cosine):
    """One step of lr .1 from s = 3: s moves by the gradient of CE(s f S'), the body's gradient has the factor s; s
    travels with the body, and the universal model has it in its vectors."""
    method = framed(square(optimizer=SGD(0.1), batch_size=2, temperature=3.0, cosine=cosine), S)
    f = ROWS["x"] / ROWS["x"].norm(dim=1, keepdim=True) if cosine else ROWS["x"]  # B = I, and all is positive
    scores = f @ S.T
    wrong = torch.softmax(3 * scores, 1) - F.one_hot(ROWS["y"], 3)
    site = Federation.from_rows(ROWS, {0: {"train": [0, 1]}}, classes=3).site(0, 0)
    shared = {n: t for n, t in START.items() if not n.startswith("own")} | {"temperature": T(3.0)}
    private = {n: t for n, t in START.items() if n.startswith("own")}
    (train,) = method.exchanges()
    client, upload = train.work(Download(shared), Holder(private, None), site, Context(0, 0, Seed(0)))
    assert float(upload.delta["temperature"]) == pytest.approx(-0.1 * float((wrong * scores).sum(1).mean()), abs=1e-6)
    if not cosine:
        close(upload.delta["features.0.weight"], -0.1 * (3 * wrong @ S).T @ ROWS["x"] / 2)
    heads = method.heads(Download({**shared, "temperature": T(2.5)}), client)
    close(heads.fixed.weight, 2.5 * method.framed.net.full({})["frame.vectors"])


def test_a_balanced_step_by_hand():
    """Counts [1, 1] of classes 0 and 1 and none of 2: the softmax goes over classes 0 and 1 alone.

    Frame: x1 = [1, 2] scores [.1, .2], p = softmax = [.475021, .524979], wrong by [-.524979, .524979]; x2 = [2, 1] is
    its mirror image. Head: x1 scores [0, .6], p0 = .354344, p1 = .645656; x2 scores [.3, .3], p = [.5, .5]. With three
    rows of class 0 instead of one, x1's odds are tripled: p0 = 3 e^.1 / (3 e^.1 + e^.2) = .730786.
    """
    method = framed(square(optimizer=SGD(0.1), batch_size=2, frame_loss="balanced"), S)
    out = method.framed.net(START, Batch(ROWS), train=True)
    frame, head, own = method.framed.loss.terms
    even = {"pace": 1.0, "counts": T([1, 1])}
    assert float(frame(out, START, even, Batch(ROWS))) == pytest.approx(0.744397, abs=1e-6)  # -log .475021
    assert float(head(out, START, even, Batch(ROWS))) == pytest.approx((1.037488 + 0.693147) / 2, abs=1e-6)
    assert float(own(out, START, even, Batch(ROWS))) == pytest.approx(1.680270, abs=1e-6)  # as published
    first = Batch({n: t[:1] for n, t in ROWS.items()})
    lone = method.framed.net(START, first, train=True)
    more = {"pace": 1.0, "counts": T([3, 1])}
    assert float(frame(lone, START, more, first)) == pytest.approx(0.313635, abs=1e-6)  # -log .730786
    site = Federation.from_rows(ROWS, {0: {"train": [0, 1]}}, classes=3).site(0, 0)
    shared = {n: t for n, t in START.items() if not n.startswith("own")}
    private = {n: t for n, t in START.items() if n.startswith("own")}
    (train,) = method.exchanges()
    client, upload = train.work(Download(shared), Holder(private, None), site, Context(0, 0, Seed(0)))
    # d/df of x1: .524979 ([0, .1] - [.1, 0]) = [-.0524979, .0524979]; x2: the mirror image; B moves by their mean
    moved = 0.1 * 0.0524979 / 2
    close(upload.delta["features.0.weight"], [[-moved, moved], [moved, -moved]])
    # d/dG of class 0: (-.645656 x1 + .5 x2) / 2, of class 1 the opposite, of class 2 nothing
    row = [0.1 * (0.645656 * 1 - 0.5 * 2) / 2, 0.1 * (0.645656 * 2 - 0.5 * 1) / 2]
    close(upload.delta["head.weight"], [row, [-r for r in row], [0.0, 0.0]])
    close(client.private["own.weight"], [[0.509964, 0.066008], [0.066008, 0.509964], [0.424028, 0.424028]])


def by_three_optimisers(net, start, batches, momentum):
    """2.3 to the letter: three SGDs made once a round; step a, then b and c on the features computed before it."""
    params = {n: t.clone().requires_grad_() for n, t in start.items()}
    parts = [[t for n, t in params.items() if under(p)(n)] for p in ("features", "head", "own")]
    rules = [torch.optim.SGD(part, lr=0.1, momentum=momentum) for part in parts]
    vectors = net.full({})["frame.vectors"]
    for batch in batches:
        f = net._ready(params, batch, True)[0].features(batch.x)
        losses = [
            F.cross_entropy(f @ vectors.T, batch.y),
            F.cross_entropy(F.linear(f.detach(), params["head.weight"], params["head.bias"]), batch.y),
            F.cross_entropy(F.linear(f.detach(), params["own.weight"], params["own.bias"]), batch.y),
        ]
        for rule, loss in zip(rules, losses, strict=True):
            rule.zero_grad()
            loss.backward()
            rule.step()
    return {n: t.detach() for n, t in params.items()}


def test_one_loss_equals_three_optimisers_in_turn():
    """Two epochs with momentum, so that its memory counts."""
    data = digits(clients=2)
    method = FedLoGe(
        Net.of(MLP, 64, 10, hidden=(16,)), norm=1.0, optimizer=SGD(0.1, momentum=0.5), epochs=2, batch_size=16
    )
    net, site, context = method.framed.net, data.site(0, 0), Context(0, 0, Seed(3))
    start = net.init(Seed(1))
    batches = list(site.train.batches(16, 2, context.seed.fold("batches")))
    by_hand = by_three_optimisers(net, start, batches, 0.5)
    (train,) = method.exchanges()
    _, _, _, trained = train.work.run(
        Download({n: t for n, t in start.items() if not n.startswith("own")}),
        Holder({n: t for n, t in start.items() if n.startswith("own")}, None),
        site,
        context,
    )
    assert len(batches) == trained.steps > 10
    for name, tensor in by_hand.items():
        close(trained.params[name], tensor, 1e-5)


def gradients(method, params):
    params = {n: t.clone().requires_grad_() for n, t in params.items()}
    loss = method.framed.loss(params, {"pace": 1.0}, Batch(ROWS))
    return dict(zip(params, torch.autograd.grad(loss, list(params.values())), strict=True))


def test_nothing_moves_what_it_should_not():
    """The body's gradient does not depend on G and L, theirs not on S."""
    method = framed(square(), S)
    first = gradients(method, START)
    other = {n: t + 1 if n.startswith(("head", "own")) else t for n, t in START.items()}
    assert torch.equal(gradients(method, other)["features.0.weight"], first["features.0.weight"])
    moved = gradients(framed(square(), S * 3), START)
    for name in ("head.weight", "head.bias", "own.weight", "own.bias"):
        assert torch.equal(moved[name], first[name])
    assert not torch.equal(moved["features.0.weight"], first["features.0.weight"])


# O7: averaging


def test_o7_averages():
    """[1, 2] with 30 rows and [3, 6] with 10: [1.5, 3]; class by class n = 4, 4 and counts [[3, 1], [1, 3]]."""
    zero, context = {"w": torch.zeros(2)}, Context(0, None, Seed(0), 2)
    replies = [Reply(0, 30, Upload({"w": T([1.0, 2.0])})), Reply(1, 10, Upload({"w": T([3.0, 6.0])}))]
    close(mean(zero, replies, context)["w"], [1.5, 3.0])
    current = {"head.weight": torch.zeros(3, 1), "body": torch.zeros(1)}
    parts = [(1.0, T([3, 1, 0])), (5.0, T([1, 3, 0]))]
    sent = [CountedUpload({"head.weight": torch.full((3, 1), v), "body": T([v])}, c) for v, c in parts]
    found = class_wise(under("head"))(current, iter([Reply(i, 4, u) for i, u in enumerate(sent)]), context)
    close(found["head.weight"][:, 0], [0.75 * 1 + 0.25 * 5, 0.25 * 1 + 0.75 * 5, 0.0])
    close(found["body"], [3.0])
    assert class_wise(under("head"))(current, iter([]), context) is current


def test_o10_prox():
    """Difference [3, 4], mu = .01: half the square is .125 (the project's own form, unsquared, is .05)."""
    weights = {"w": T([3.0, 4.0]).requires_grad_()}
    found = prox(0.01)(torch.zeros(1, 2), weights, {"start": {"w": torch.zeros(2)}}, None)
    assert found.item() == pytest.approx(0.125)


# The method in a run


def small(**options):
    return FedLoGe(Net.of(MLP, 64, 10, hidden=(16,)), norm=1.0, optimizer=SGD(0.1), batch_size=16, **options)


def test_what_travels_and_what_stays():
    method, data = small(), digits(clients=4)
    snapshot = last(method, data, rounds=2)
    (train,) = method.exchanges()
    assert not any(n.startswith(("own", "frame")) for n in train.down(snapshot.state, 0).shared)
    client, upload = train.work(
        train.down(snapshot.state, 0), snapshot.client_state(0), data.site(0, 0), Context(2, 0, Seed(0))
    )
    assert upload.delta.keys() == snapshot.state.shared.keys()
    private = {pack({"t": t}) for t in tensors_in(client)}
    assert private.isdisjoint(pack({"t": t}) for t in tensors_in(upload))
    assert torch.equal(method.framed.net.full({})["frame.vectors"], Frame(10, 16, norm=1.0).build())
    heads = method.heads(train.down(snapshot.state, 0), snapshot.client_state(0))
    close(
        method.personal_model(train.down(snapshot.state, 0), snapshot.client_state(0))["head.weight"],
        Realign().own(heads.general, heads.own).weight,
    )


def test_rows_of_absent_classes_stay_small():
    """Nothing calls for their scores, so the norms of a local head tell which classes its client has."""
    data = digits(clients=4)
    snapshot = last(small(), data, rounds=3)
    norms = snapshot.client_state(0).private["own.weight"].norm(dim=1)
    here = T(data.label_counts()[0]) > 5
    assert float(norms[here].mean()) > float(norms[~here].mean())


def test_models_in_use():
    method, data = small(serve="universal", mask=True), digits(clients=4)
    state = last(method, data, rounds=1).state
    frame = Frame(10, 16, norm=1.0).build()
    assert torch.equal(method.global_model(state)["head.weight"], frame)
    fresh = method.init_client(Seed(0))
    assert fresh.counts is None
    assert torch.equal(method.personal_model(method.framed.down(state, 0), fresh)["head.weight"], frame)  # never asked
    known = Holder(fresh.private, T([0, 1, 0, 2, 0, 0, 0, 0, 0, 9]))
    model = method.personal_model(method.framed.down(state, 0), known)
    answers = method.predict(model, Batch({"x": torch.randn(200, 1, 8, 8, generator=Seed(0).torch())})).argmax(1)
    assert set(answers.tolist()) <= {1, 3, 9}


def test_batch_norm_travels_with_the_body():
    """Its statistics are averaged, and plain models hold them."""
    net = Net(make("resnet10", (1, 8, 8), 10, width=2, norm="batch"))
    method = FedLoGe(net, norm=1.0, optimizer=SGD(0.1), batch_size=64)
    snapshot = last(method, digits(clients=2), rounds=1)
    statistics = [n for n in snapshot.state.shared if n.endswith("running_mean")]
    assert statistics
    assert snapshot.personal_model(0).keys() == set(method.plain.names) >= set(statistics)


def test_norm_goes_down_by_equal_factors():
    method = small(warm_norm=4.0, warm_rounds=2)
    assert [method.pace(r) * method.norm for r in range(4)] == pytest.approx([4.0, 2.0, 1.0, 1.0])
    job = method.start(
        method.framed.down(method.init_server(Seed(0)), 0), method.init_client(Seed(0)), None, Context(1, 0, Seed(0))
    )
    assert isinstance(job, Job)
    assert job.fixed["pace"] == pytest.approx(2.0)


def test_one_client_is_centralised_training():
    """N = 1, everybody asked: two rounds are two plain passes over its rows."""
    data, method = digits(clients=1), small()
    alone = last(method, data, rounds=2)
    (client,) = data.ids
    now = {
        **method.init_server(Seed(0).fold("server")).shared,
        **method.init_client(Seed(0).fold("client", client)).private,
    }
    for round in range(2):
        seed = Seed(0).fold("work", "train", round, client)
        batches = list(data.site(client, round).train.batches(16, 1, seed.fold("batches")))
        now = by_three_optimisers(method.framed.net, now, batches, 0.0)
    for name, tensor in {**alone.state.shared, **alone.client_state(client).private}.items():
        close(tensor, now[name], 1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"serve": "best"}, "serve"),
        ({"serve": "adjusted"}, "send_counts = true"),
        ({"frame_loss": "focal"}, "frame_loss must be"),
        ({"prior_tau": -1.0}, "prior_tau"),
        ({"warm_norm": 2.0}, "go together"),
        ({"temperature": 0.0}, "above 0"),
        ({"temperature": float("inf")}, "finite"),
        ({"warm_norm": float("nan"), "warm_rounds": 2}, "go together"),
        ({"frame_lr": float("nan")}, "lr"),
        ({"sparsity": 1.0}, "sparsity"),
        ({"by_class": True, "aggregate": uniform_mean}, "leave aggregate out"),
    ],
)
def test_impossible_settings(options, message):
    with pytest.raises(InputError, match=message):
        small(**options)


def test_counts_are_sent_once_and_summed():
    """In the first round everybody is asked, whoever trains; then the sums travel with the model, and nothing else."""
    data, method = digits(clients=4), small(send_counts=True, serve="adjusted", cohort=first(1))
    _, count = method.exchanges()
    start = method.init_server(Seed(0))
    assert method.plan(start, 0) == ("train", "count")
    fresh = method.init_client(Seed(0))
    client, upload = count.work(count.down(start, 0), fresh, data.site(0, 0), Context(0, 0, Seed(0)))
    assert client is fresh
    assert upload.counts.tolist() == data.label_counts("train")[0].tolist()
    snapshot = last(method, data, rounds=2)
    total = data.label_counts("train").sum(0)
    assert snapshot.state.counts.tolist() == total.tolist()
    assert method.plan(snapshot.state, 2) == ("train",)
    assert method.plan(method.init_server(Seed(0)), 1) == ("train", "count")  # nobody answered: asked again
    head = snapshot.state.shared["head.bias"]
    close(snapshot.global_model()["head.bias"], head - torch.log(T(total / total.sum())).float())
    assert torch.equal(snapshot.personal_model(3)["head.bias"], snapshot.global_model()["head.bias"])  # never trained
    modes = method.modes(snapshot.state)
    assert list(modes) == ["universal", "realigned", "plain", "universal_adjusted", "adjusted"]
    assert torch.equal(modes["universal_adjusted"]["head.weight"], modes["universal"]["head.weight"])
    assert list(small().modes(small().init_server(Seed(0)))) == ["universal", "realigned", "plain"]


def test_counts_beyond_a_clients_rows_are_refused():
    method = small(send_counts=True)
    _, count = method.exchanges()
    state = method.init_server(Seed(0))
    counts = torch.full((10,), 2, dtype=torch.int64)
    heard = count.up(state, iter([Reply(i, 20, ClassCounts(counts)) for i in range(3)]), Context(0, None, Seed(0), 3))
    assert heard.counts.tolist() == [6] * 10
    assert heard.shared is state.shared
    with pytest.raises(InputError, match="counts of 20 rows, of a client that has 19"):
        count.up(state, iter([Reply(0, 19, ClassCounts(counts))]), Context(0, None, Seed(0), 3))
    with pytest.raises(InputError, match="10 whole numbers"):
        count.check(state, ClassCounts(counts[:9]))


def test_bad_counts_are_refused():
    method = small(by_class=True)
    state = method.init_server(Seed(0))
    zeros = {n: torch.zeros_like(t) for n, t in state.shared.items()}
    method.check(state, CountedUpload(zeros, torch.ones(10, dtype=torch.int64)))
    for counts in (torch.ones(9, dtype=torch.int64), torch.ones(10), -torch.ones(10, dtype=torch.int64)):
        with pytest.raises(InputError, match="counts"):
            method.check(state, CountedUpload(zeros, counts))
    with pytest.raises(InputError, match="CountedUpload"):
        method.check(state, Upload(zeros))
