"""Steps from a captured step are those of autograd, to the last bit; what a captured step could get wrong is not
recorded."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedquilt.core.capture.steps import EAGER, TRIALS, CapturedSteps
from fedquilt.core.net import Net
from fedquilt.core.objective import Objective
from fedquilt.core.seed import Seed
from fedquilt.kernels import CannotRecord, CapturedStep, Recorder
from fedquilt.models import MLP, FedAvgCNN
from fedquilt.pieces.objectives import cross_entropy, prox
from helpers.toy import site_of, trained

SEED = Seed(0)


def images(rows: int = 96, shape: tuple[int, ...] = (1, 28, 28)):
    draw = torch.Generator().manual_seed(3)
    return site_of(x=torch.randn(rows, *shape, generator=draw), y=torch.arange(rows) % 10)


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(784, 20), nn.ReLU(), nn.Dropout(0.5), nn.Linear(20, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def both(net: Net, *terms: Any, **settings: Any) -> tuple[Any, Any, CapturedSteps]:
    """The same training from a captured step and by autograd alone, after a client update in which steps were
    recorded."""
    objective = Objective(net, (cross_entropy, *terms))
    start = net.init(SEED)
    for _ in range(3):
        played = trained(objective, start, images(), batch_size=10, **settings)
    with net.captured_steps.off():
        bare = trained(objective, start, images(), batch_size=10, **settings)
    return played, bare, net.captured_steps


@pytest.mark.parametrize(
    "net",
    [
        lambda: Net.of(MLP, features=784, classes=10, hidden=(16,)),
        lambda: Net.of(FedAvgCNN, hidden=32),
        lambda: replace(Net.of(FedAvgCNN, hidden=32), channels_last=False),
        lambda: replace(Net.of(FedAvgCNN, hidden=32), fast_kernels=False),
        lambda: Net(Dropped),
    ],
    ids=["mlp", "cnn", "contiguous", "ordinary", "dropout"],
)
@pytest.mark.parametrize("terms", [(), (prox(0.1),)], ids=["plain", "prox"])
def test_a_captured_gives_what_autograd_gives(net: Callable[[], Net], terms: tuple[Any, ...]):
    played, bare, captured_steps = both(net(), *terms)
    assert any(known.captured is not None and known.trials >= TRIALS for known in captured_steps.known.values())
    assert not any(known.refused for known in captured_steps.known.values())
    assert played.loss == bare.loss
    for name, value in bare.params.items():
        assert torch.equal(played.params[name], value)
        assert torch.equal(played.gradient[name], bare.gradient[name])


def test_networks_that_learn_statistics_are_not_recorded():
    net = Net(lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 10), nn.BatchNorm1d(10)))
    played, bare, captured_steps = both(net)
    assert not captured_steps.known
    assert all(torch.equal(played.params[n], bare.params[n]) for n in bare.params)


def looks(out: Tensor, *_: Any) -> Tensor:
    return out.sum() if float(out.detach().sum()) > 0 else -out.sum()


def masks(out: Tensor, *_: Any) -> Tensor:
    return out[out.detach() > 0].mean()


def draws(out: Tensor, *_: Any) -> Tensor:
    return (out * torch.rand(out.shape, generator=torch.Generator().manual_seed(0))).mean()


@pytest.mark.parametrize("term", [looks, masks, draws], ids=["numbers", "shapes", "generator"])
def test_what_depends_on_values_is_refused_and_still_right(term: Callable[..., Tensor]):
    net = replace(Net.of(MLP, features=784, classes=10, hidden=(8,)), capture=True)
    played, bare, captured_steps = both(net, term)
    assert captured_steps.known
    assert all(known.refused for known in captured_steps.known.values() if known.seen > EAGER)
    assert all(torch.equal(played.params[n], bare.params[n]) for n in bare.params)


COUNTED = {"calls": 0}


def impure(out: Tensor, *_: Any) -> Tensor:
    COUNTED["calls"] += 1
    return out.mean() * COUNTED["calls"]


def test_a_captured_that_disagrees_is_thrown_away():
    net = replace(Net.of(MLP, features=784, classes=10, hidden=(8,)), capture=True)
    objective = Objective(net, (impure,))
    for _ in range(2):
        trained(objective, net.init(SEED), images(100), batch_size=10)
    (known,) = net.captured_steps.known.values()
    assert known.refused
    assert known.captured is None


def recorded(step: Callable[..., Tensor], *given: Tensor) -> CapturedStep:
    with Recorder() as recorder:
        out = step(*given)
    return CapturedStep(recorder, given[:1], given[1:], [out])


def test_a_captured_takes_new_values_and_keeps_views_of_what_is_stable():
    weight, x = torch.randn(3, 4), torch.randn(2, 4)
    captured = recorded(lambda w, rows: (rows @ w.t()).relu_(), weight, x)
    play = captured.bound([weight])
    weight.mul_(2.0)  # as an optimiser does
    other = torch.randn(2, 4)
    assert torch.equal(play(other)[0], (other @ weight.t()).relu())
    elsewhere = torch.randn(3, 4)
    assert torch.equal(captured.bound([elsewhere])(other)[0], (other @ elsewhere.t()).relu())


@pytest.mark.parametrize(
    "step",
    [lambda w, x: w.add_(1.0) @ x, lambda w, x: x.t()[0].mul_(2.0).sum() + w.sum(), lambda w, x: w],
    ids=["weights", "a view of the batch", "an input as result"],
)
def test_writing_into_what_was_given_is_refused(step: Callable[..., Tensor]):
    with pytest.raises(CannotRecord):
        recorded(step, torch.randn(3, 3), torch.randn(3, 3))


def test_fixed_values_that_cannot_be_seen_are_not_recorded():
    captured_steps, weight = CapturedSteps(), torch.ones(2)
    assert captured_steps.update(captured_steps, [weight], {"mu": 0.1}).key is not None
    assert (
        captured_steps.update(captured_steps, [weight], {"mu": 0.1}).key
        != captured_steps.update(captured_steps, [weight], {"mu": 0.2}).key
    )
    assert captured_steps.update(captured_steps, [weight], {"hidden": object()}).key is None


def test_captured_are_bounded():
    captured_steps = CapturedSteps()
    for number in range(200):
        captured_steps.of(number, captured_steps)
    assert len(captured_steps.known) <= 64


def test_first_values_are_drawn_from_a_captured_and_are_what_the_module_draws():
    net, anew = (Net.of(FedAvgCNN, hidden=32) for _ in range(2))
    for number in range(10):
        drawn = net.init(Seed(number))
        with Seed(number).fold("init").ambient():
            expected = dict(zip(anew.names, anew._born(), strict=True))
        assert all(torch.equal(drawn[n], expected[n]) for n in expected)
    (known,) = net._cell["births"].captured_steps.known.values()
    assert known.captured is not None


def test_two_places_that_were_one_tensor_when_recorded_are_two_where_they_are_two():
    """The gradient of w a + b by w is a: 2 where a = b = 2, and still 2 where b alone is 5; the value is not."""
    captured_steps, weight = CapturedSteps(), torch.ones(3, requires_grad=True)

    def step(a: Tensor, b: Tensor) -> list[Tensor]:
        def eager() -> list[Tensor]:
            loss = (weight * a + b).sum()
            return [loss.detach().clone(), *torch.autograd.grad(loss, (weight,))]

        return captured_steps.update(captured_steps, [weight, a, b]).step({}, eager)

    one = torch.full((3,), 2.0)
    for _ in range(2 * EAGER):
        assert float(step(one, one)[0]) == 12.0
    for _ in range(2 * EAGER):
        assert float(step(one, torch.full((3,), 5.0))[0]) == 21.0


def taped(step: Callable[..., list[Tensor]], *moving: Tensor) -> CapturedStep:
    with Recorder() as recorder:
        outputs = step(*moving)
    return CapturedStep(recorder, [], moving, outputs)


def chain(x: Tensor) -> list[Tensor]:
    """Products whose results are needed at different times, with views that begin in the middle of one."""
    one = torch.mm(x, x)
    two = torch.relu(one)
    three = torch.mm(two, one)
    part = three.as_strided((4, 6), (6, 1), 12)
    four = torch.mm(part, two).clone()
    five = torch.tanh(torch.mm(four, three))
    return [torch.sum(five + torch.mm(four, one), [0]), torch.mm(four, two)]


def test_what_a_step_makes_is_at_places_that_others_take_over():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(6, 6, generator=draw)
    captured = taped(chain, x)
    play = captured.bound([])
    for _ in range(3):
        other = torch.randn(6, 6, generator=draw)
        assert all(torch.equal(a, b) for a, b in zip(play(other), chain(other), strict=True))
    made = 5 * 6 * 6 + 4 * 4 * 6  # numbers that are made on the way
    assert 0 < captured._size < 4 * made


def test_what_a_step_gives_stays_when_others_are_played():
    x, y = torch.randn(2, 6, 6, generator=torch.Generator().manual_seed(1))
    play, wanted = taped(chain, x).bound([]), chain(x)
    found = play(x)
    play(y)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_what_is_reshaped_in_place_keeps_its_own_memory():
    def step(x: Tensor) -> list[Tensor]:
        row = torch.mm(x, x).squeeze_()
        return [torch.tanh(row) * 2]

    x = torch.full((1, 1), 0.5)
    assert torch.equal(taped(step, x).bound([])(x)[0], step(x)[0])


def test_threads_do_not_work_in_the_same_memory():
    draw = torch.Generator().manual_seed(2)
    inputs = [torch.randn(6, 6, generator=draw) for _ in range(4)]
    captured, wanted = taped(chain, inputs[0]), [chain(x) for x in inputs]
    wrong: list[int] = []

    def work(place: int) -> None:
        play = captured.bound([])
        for _ in range(300):
            found = play(inputs[place])
            if not all(torch.equal(a, b) for a, b in zip(found, wanted[place], strict=True)):
                wrong.append(place)

    threads = [threading.Thread(target=work, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_is_bound_in_one_thread_is_not_played_in_another():
    """A net's first values are drawn from a captured step that lives as long as the net, in whatever thread asks for
    them."""
    net = Net.of(MLP, features=784, classes=10, hidden=(64,))
    for _ in range(EAGER + TRIALS + 2):
        wanted = net.init(SEED)
    x = torch.randn(6, 6, generator=torch.Generator().manual_seed(4))
    play, numbers = taped(chain, x).bound([]), chain(x)
    wrong: list[str] = []
    ended = threading.Event()

    def draw() -> None:
        for _ in range(60):
            found = net.init(SEED)
            if not all(torch.equal(value, wanted[name]) for name, value in found.items()):
                wrong.append("first values")
        ended.set()

    thread = threading.Thread(target=draw)
    thread.start()
    while not ended.is_set():
        if not all(torch.equal(a, b) for a, b in zip(play(x), numbers, strict=True)):
            wrong.append("a step")
    thread.join()
    assert not wrong


def test_tensors_that_have_no_places_are_left_to_autograd():
    def step() -> list[Tensor]:
        return [torch.eye(3).to_sparse().to_dense().sum()]

    update = CapturedSteps().update(step, [])
    for _ in range(EAGER + TRIALS + 3):
        assert float(update.step({}, step)[0]) == 3.0


def test_results_that_last_are_written_again_and_others_are_not():
    x, y = torch.randn(2, 6, 6, generator=torch.Generator().manual_seed(5))
    with Recorder() as recorder:
        outputs = chain(x)
    play = CapturedStep(recorder, [], [x], outputs, fresh=1).bound([])
    one, two = play(x), chain(x)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    after = play(y)
    assert all(torch.equal(a, b) for a, b in zip(after, chain(y), strict=True))
    assert torch.equal(one[0], two[0])
    assert one[1] is after[1]


def test_an_update_does_not_write_into_what_another_left():
    net = Net.of(FedAvgCNN, hidden=32)
    objective, start = Objective(net, (cross_entropy,)), net.init(SEED)
    found = [trained(objective, start, images(), batch_size=10) for _ in range(4)]
    kept = {name: value.clone() for name, value in found[-1].gradient.items()}
    trained(objective, net.init(Seed(1)), images(), batch_size=10)
    assert all(torch.equal(found[-1].gradient[name], value) for name, value in kept.items())
