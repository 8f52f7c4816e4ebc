"""Networks for token ids and for signals: sizes by hand, what they compute, what they refuse."""

from __future__ import annotations

import sys

import pytest
import torch

from fedquilt.core.net import Net
from fedquilt.core.seed import Seed
from fedquilt.core.table import Batch
from fedquilt.errors import InputError
from fedquilt.models import CharRNN, SignalCNN, TextCNN, make, tokenise
from fedquilt.models.registry import bare


def size(builder):
    return sum(p.numel() for p in bare(builder).parameters())


def drawn(high, *shape):
    return torch.randint(high, shape, generator=Seed(0).torch())


@pytest.mark.parametrize(
    ("builder", "parameters"),
    [
        # 25,000 vectors of 128; 100 maps over 3 + 4 + 5 tokens of 128, 300 biases; 300 x 4 + 4
        (make("text_cnn", (128,), 4), 25_000 * 128 + 128 * 100 * 12 + 300 + 1204),
        (make("text_cnn", (64,), 2, vocab=50, width=8, maps=3, spans=[2]), 50 * 8 + 8 * 3 * 2 + 3 + 8),
        # 80 vectors of 8; four gates of 256 from 8 + 256 and from 256 + 256 numbers with two biases; 256 x 80 + 80
        (make("char_lstm", (80,), 80), 640 + 1024 * (264 + 2) + 1024 * (512 + 2) + 20_560),
        (make("char_gru", (80,), 80), 640 + 768 * (264 + 2) + 768 * (512 + 2) + 20_560),  # three gates
        (make("char_lstm", (5,), 3, vocab=7, width=2, hidden=4, layers=1), 14 + 16 * (6 + 2) + 15),
        # nine channels: 9*9*32 + 32; 32*9*64 + 64; (128 - 8) / 2 = 60, (60 - 8) / 2 = 26 steps of 64 maps
        (make("signal_cnn", (9, 128), 6), 2624 + 18_496 + 26 * 64 * 128 + 128 + 128 * 6 + 6),
        (make("signal_cnn", (6, 128), 12), 1760 + 18_496 + 26 * 64 * 128 + 128 + 128 * 12 + 12),
    ],
)
def test_sizes(builder, parameters):
    assert size(builder) == parameters
    assert {n.split(".")[0] for n, _ in bare(builder).named_parameters()} == {"features", "head"}


def test_published_sizes():
    assert size(make("text_cnn", (128,), 4)) == 3_355_104  # studies of clustered federations, AG News
    assert size(make("char_lstm", (80,), 80)) == 819_920


def test_the_text_network_takes_the_maximum_over_time():
    with Seed(0).ambient():
        made = TextCNN(length=6, classes=2, vocab=9, width=4, maps=3, spans=(2, 3)).eval()
    ids = drawn(9, 2, 6)
    embedded = made.features.embedding(ids)
    found = []
    for conv in made.features.convs:
        span = conv.weight.shape[2]
        steps = [
            (embedded[:, t : t + span].transpose(1, 2)[:, None] * conv.weight).sum((2, 3)) for t in range(7 - span)
        ]
        found.append((torch.stack(steps) + conv.bias).clamp(min=0).max(0).values)
    torch.testing.assert_close(made.features(ids), torch.cat(found, 1))


def test_padding_is_zero_and_stays_so():
    net = Net(make("text_cnn", (6,), 2, vocab=9, width=4, maps=3))
    params = net.own(net.init(Seed(0)))
    table = params["features.embedding.weight"].requires_grad_()
    assert torch.equal(table[0], torch.zeros(4))
    batch = Batch({"x": torch.tensor([[0, 0, 3, 4, 0, 5]])})
    (gradient,) = torch.autograd.grad(net(params, batch).square().sum(), table)
    assert torch.equal(gradient[0], torch.zeros(4))
    assert gradient[[3, 4, 5]].abs().sum() > 0


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_the_feature_is_the_last_position(cell):
    with Seed(0).ambient():
        made = CharRNN(length=5, classes=7, hidden=6, cell=cell)
    ids = drawn(7, 3, 5)
    out, _ = made.features.rnn(made.features.embedding(ids))
    assert torch.equal(made.features(ids), out[:, -1])
    changed = ids.clone()
    changed[:, 0] = (changed[:, 0] + 1) % 7
    assert not torch.allclose(made(ids), made(changed))  # the first character matters to the last


@pytest.mark.parametrize("name", ["text_cnn", "char_lstm", "char_gru"])
def test_ids_are_checked(name):
    made = make(name, (6,), 5, vocab=5)().eval()
    assert made(drawn(5, 2, 6)).shape == (2, 5)
    assert made(drawn(5, 2, 6).int()).shape == (2, 5)
    with pytest.raises(InputError, match=r"takes token ids of type int64 or int32, got float32\. Tokenise"):
        made(torch.zeros(2, 6))
    with pytest.raises(InputError, match=r"takes rows of shape \(6,\), got rows of shape \(7,\)"):
        made(drawn(5, 2, 7))
    with pytest.raises(InputError, match=r"from 0 to 4 \(vocab is 5\), got ids from 1 to 5"):
        made(torch.tensor([[1, 2, 3, 4, 5, 1]]))
    with pytest.raises(InputError, match="got ids from -1 to 4"):
        made.features(torch.tensor([[-1, 2, 3, 4, 4, 1]]))  # also without the head, as methods call it


@pytest.mark.parametrize(
    ("make_one", "message"),
    [
        (lambda: TextCNN(length=4), "at least 5 tokens, got length 4"),
        (lambda: TextCNN(spans=()), r"spans must be .* like \(3, 4, 5\), got \(\)"),
        (lambda: TextCNN(spans=(3, 0)), r"spans\[1\] must be a whole number"),
        (lambda: TextCNN(vocab=0), "vocab must be a whole number of at least 1, got 0"),
        (lambda: CharRNN(cell="rnn"), "cell must be one of 'lstm', 'gru', got 'rnn'"),
        (lambda: SignalCNN(length=27), "span 9 takes windows of at least 28 samples, got 27"),
        (lambda: SignalCNN(length=12, span=4), "span 4 takes windows of at least 13 samples, got 12"),
        (lambda: make("text_cnn", (1, 28, 28), 4), r"takes token ids \(L,\)"),
        (lambda: make("text_encoder", (8,), 2), "The model text_encoder needs the option folder"),
    ],
)
def test_refusals(make_one, message):
    with pytest.raises(InputError, match=message):
        make_one()


def test_signals():
    made = SignalCNN(classes=4, channels=2, length=28)
    assert made(torch.zeros(3, 2, 28)).shape == (3, 4)
    assert SignalCNN(length=13, span=4)(torch.zeros(1, 9, 13)).shape == (1, 6)
    with pytest.raises(InputError, match=r"takes rows of shape \(2, 28\), got rows of shape \(28, 2\)"):
        made(torch.zeros(3, 28, 2))
    with pytest.raises(InputError, match="takes floating-point numbers, got int64"):
        made(torch.zeros(3, 2, 28, dtype=torch.int64))


def test_without_transformers_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    for ask in (lambda: make("text_encoder", (8,), 2, folder="some/name"), lambda: tokenise(["a"], "some/name")):
        with pytest.raises(InputError, match=r"pip install 'fedquilt\[hf\]'"):
            ask()
