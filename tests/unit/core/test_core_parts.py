"""What methods build on: trainings in turn, networks in two parts, parts by name."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedquilt.core.exchange import Context, Exchange, unmoved
from fedquilt.core.net import Net, logits_of
from fedquilt.core.objective import Objective, scores_and_features
from fedquilt.core.params import at_home, under
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch
from fedquilt.core.train import Job, Train, in_turn
from fedquilt.errors import InputError
from fedquilt.models.small import MLP
from fedquilt.pieces.objectives import cross_entropy, tilt
from fedquilt.pieces.optimizers import SGD
from helpers.toy import Normed, OneWeight, give_back, site_of, squared_error, start_from, weight_itself

NET = Net.of(MLP, features=4, classes=3, hidden=(5,))
ROWS = Batch({"x": torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), "y": torch.arange(6) % 3})
SITE = site_of(x=[1.0, 1.0], y=[2.0, 2.0])
STEP = Train(start_from, Objective(Net(OneWeight), (squared_error,)), give_back, SGD(0.5))


def from_state(download, client, site, context):
    return Job(params=client)


def keep(job, trained, client, site, context):
    return trained.params, None


def test_trainings_in_turn_hand_the_state_on_and_one_uploads():
    """Twice from the state: 0 -> 1 -> 1.5 (halfway to 2 each); the upload is that of the download: 4 -> 3."""
    own = replace(STEP, start=from_state, finish=keep)
    client, upload = in_turn(STEP, own, own)({"w": torch.tensor(4.0)}, {"w": torch.tensor(0.0)}, SITE, context())
    assert (float(client["w"]), float(upload["w"])) == (1.5, 3.0)


def test_the_first_training_does_what_it_does_alone_and_the_others_draw_anew():
    seeds = []

    def note(download, client, site, context):
        seeds.append(context.seed.value)
        return Job(params=download)

    in_turn(replace(STEP, start=note), replace(STEP, start=note, finish=keep))(
        {"w": torch.tensor(4.0)}, {}, SITE, context()
    )
    assert seeds[0] == Seed(0).value != seeds[1]


@pytest.mark.parametrize("works", [(STEP, STEP), (replace(STEP, finish=keep),)])
def test_exactly_one_training_must_upload(works):
    with pytest.raises(InputError, match="exactly one must upload"):
        in_turn(*works)({"w": torch.tensor(4.0)}, {}, SITE, context())


def context():
    return Context(0, 0, Seed(0))


def test_split_gives_the_scores_of_a_call_and_the_features_of_the_head():
    params = NET.init(Seed(0))
    out = NET.split(params, ROWS)
    assert torch.equal(out.logits, NET(params, ROWS))
    assert torch.equal(out.features @ params["head.weight"].T + params["head.bias"], out.logits)
    assert logits_of(out) is out.logits
    loss, both = (
        Objective(NET, (cross_entropy,), f) for f in (lambda n, p, b: n(p, b, train=True), scores_and_features)
    )
    assert torch.equal(loss(params, {}, ROWS), both(params, {}, ROWS))
    with pytest.raises(InputError, match="Linear is not in two parts"):
        Net.of(nn.Linear, 4, 3).split(Net.of(nn.Linear, 4, 3).init(Seed(0)), ROWS)


def test_parts_by_name():
    assert Net(Normed).norms == ("bn",)
    assert NET.norms == ()
    assert NET.under("head") == under("head")
    with pytest.raises(InputError, match="no part 'top'; its parts are features, head"):
        NET.under("head", "top")
    parts = at_home(under("head"))
    parts.check(NET.names)
    assert parts.private("head.bias")
    assert parts.shared("features.1.bias")


def test_training_changes_the_work_of_an_exchange():
    exchange = Exchange("train", lambda s, c: s, STEP, unmoved)
    other = exchange.training(epochs=3)
    assert (other.work.epochs, exchange.work.epochs, other.name) == (3, 1, "train")
    assert unmoved("state", iter(()), context()) == "state"


def test_tilt_adds_a_constant_to_the_gradient():
    """loss = w + 3 w: gradient 4."""
    w = torch.tensor(2.0, requires_grad=True)
    value = Objective(Net(OneWeight), (weight_itself, tilt))(
        {"w": w}, {"tilt": {"w": torch.tensor(3.0)}}, Batch({"x": torch.ones(1)})
    )
    assert float(torch.autograd.grad(value, w)[0]) == 4.0
