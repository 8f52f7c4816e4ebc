"""ModelSize against hand derivations; the list of models; the command."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from fedquilt.core.seed import Seed
from fedquilt.errors import InputError
from fedquilt.models import CharRNN, FedAvgCNN, ModelSize, ResNet, available, count, make
from fedquilt.models.registry import MODELS
from helpers.command import fedquilt


def test_one_linear_layer():
    # 784 products and sums for each of 10 classes; 7850 numbers of four bytes
    assert count(make("logistic", (1, 28, 28), 10), (1, 28, 28)) == ModelSize(7850, 7850, 0, 2 * 784 * 10, 4 * 7850)


def test_a_convolutional_network():
    first = 2 * 25 * 32 * 24 * 24  # 32 maps of 24x24, each number from 25
    second = 2 * 25 * 32 * 64 * 8 * 8
    rest = 2 * 1024 * 512 + 2 * 512 * 10
    assert first + second + rest == 8_534_016
    assert count(FedAvgCNN, (1, 28, 28)) == ModelSize(582_026, 582_026, 0, 8_534_016, 4 * 582_026)


def test_a_residual_network():
    stem = 2 * 27 * 64 * 32 * 32
    one = 4 * 2 * 9 * 64 * 64 * 32 * 32
    # half the side and twice the maps: each further stage costs 1/2 + 3 of the four convolutions of the first, and
    # 1/9 of a half for the 1x1 convolution
    further = (2 * 9 * 64 * 64 * 32 * 32) * (1 / 2 + 3) + 2 * 64 * 128 * 16 * 16
    found = count(partial(ResNet, norm="batch"), (3, 32, 32))
    assert found.flops == stem + one + 3 * further + 2 * 512 * 10 == 1_110_845_440
    maps = 64 * 5 + (128 + 256 + 512) * 5  # with a mean and a variance each, and 20 layers count their batches
    assert found.buffers == 2 * maps + 20
    assert found.bytes == 4 * (found.parameters + 2 * maps) + 8 * 20


def test_recurrent_and_attending_networks():
    gates = 4 * 6 * ((3 + 6) + (6 + 6))
    assert count(partial(CharRNN, 5, 7, width=3, hidden=6), (5,)).flops == 5 * 2 * gates + 2 * 6 * 7
    w, tokens = 8, 5
    block = 2 * tokens * 12 * w * w + 2 * 2 * tokens * tokens * w  # 12ww of weights; Q K' and the mixture of V
    vit = make("vit_tiny", (1, 4, 4), 3, patch=2, width=w, depth=2, heads=2, mlp=4 * w)
    assert count(vit, (1, 4, 4)).flops == 2 * block + 2 * 4 * 4 * w + 2 * w * 3


def test_a_module_is_left_as_it_was():
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 2, bias=False))
    module[2].eval()
    module[0].requires_grad_(False)
    before = {n: t.clone() for n, t in module.state_dict().items()}
    state = torch.get_rng_state()
    assert count(module, (4,)) == ModelSize(15 + 6 + 6, 12, 7, 2 * 12 + 2 * 6, 4 * (27 + 6) + 8)
    assert [m.training for m in module] == [True, True, False, True]
    assert all(torch.equal(t, before[n]) for n, t in module.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())


class Wayward(nn.Module):
    """What it does depends on the values."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x):
        return self.one(x) + self.two(x) if x.sum().item() > 0 else self.one(x)


def test_a_module_that_looks_at_values_is_counted_with_values():
    assert count(Wayward, (4,)).flops == 2 * (2 * 4 * 2)  # rows of ones: both layers
    assert count(Wayward(), (4,)).flops == 32


def test_wrong_shapes_and_kinds_are_told():
    with pytest.raises(InputError, match=r"takes rows of shape \(1, 28, 28\)"):
        count(FedAvgCNN, (3, 28, 28))
    with pytest.raises(InputError, match="takes a module or a builder of one, got str"):
        count("fedavg_cnn", (1, 28, 28))


@pytest.fixture(scope="module")
def listed():
    return fedquilt("models", "--json").json


def test_the_list_has_every_model(listed):
    assert [row["name"] for row in listed] == list(MODELS)
    assert listed == available()
    assert all(row["description"] and row["takes"] for row in listed)
    assert [row["name"] for row in listed if row["parameters"] is None] == ["text_encoder", "hf_mae"]


def test_the_table_in_the_docs_is_true(listed):
    page = Path(__file__).parents[3] / "docs" / "models.md"
    shown = re.findall(r"^\| `(\w+)` \|([^|]*)\|([^|]*)\|([^|]*)\|([^|]*)\|", page.read_text(), re.M)
    rows = {name: tuple(cell.strip() for cell in cells) for name, *cells in shown}
    assert rows == {
        row["name"]: (
            row["takes"],
            "depends on the folder" if row["parameters"] is None else f"{row['parameters']:,}",
            "" if row["mflops"] is None else f"{row['mflops']:,}",
            f"{'x'.join(map(str, row['input']))}, {row['classes']}",
        )
        for row in listed
    }


def test_the_command_for_people():
    said = fedquilt("models")
    assert said.code == 0
    assert "22,050,664" in said.out
    assert all(name in said.out for name in MODELS)


def test_the_command_for_one_model():
    found = fedquilt("models", "resnet18", "norm=batch", "--shape", "3,32,32", "--classes", "100", "--json").json
    assert (found["parameters"], found["features"], found["head"]) == (11_220_132, 11_168_832, 51_300)
    assert [row["setting"].removeprefix("model.") for row in found["options"]] == ["norm", "stem", "width", "weights"]
    assert found["buffers"] == 9620
    said = fedquilt("models", "mlp", "hidden=[10]", "--shape", "20", "--classes", "3")
    assert said.code == 0
    assert "243" in said.out  # 20*10 + 10 + 10*3 + 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["resnet"], "did you mean 'resnet"),
        (["lenet5", "--shape", "1,8,8"], "takes (C, 28, 28) or (C, 32, 32), not (1, 8, 8)"),
        (["lenet5", "--shape", "big"], "--shape must be whole numbers with commas, like 3,32,32, got 'big'"),
        (["mlp", "hidden"], "'hidden' changes no setting: write KEY=VALUE"),
        (["lenet5", "--classes", "0"], "classes must be a whole number of at least 1, got 0"),
        (["text_encoder"], "needs the option folder"),
    ],
)
def test_the_command_refuses(words, message):
    said = fedquilt("models", *words)
    assert said.code == 2
    assert message in said.err


def test_counting_draws_no_random_numbers():
    with Seed(0).ambient():
        state = torch.get_rng_state()
        count(make("cnn_mnist", (1, 28, 28), 10), (1, 28, 28))
        assert torch.equal(state, torch.get_rng_state())
