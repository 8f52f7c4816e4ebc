"""result.json says what its numbers were made with."""

from __future__ import annotations

from pathlib import Path

import torch

from fedquilt.core.net import Net
from fedquilt.models.registry import net
from fedquilt.runs.outputs import environment, kernels, same_kind
from helpers.command import fedquilt, small


def test_a_result_names_the_cpu_and_the_kernels(tmp_path: Path) -> None:
    found = fedquilt("run", small(tmp_path), "rounds=1", "--json").json["environment"]
    assert found["torch"] == torch.__version__
    assert found["cpu_capability"] == torch.backends.cpu.get_cpu_capability()
    assert found["cpu"]
    assert isinstance(found["mkldnn"], bool)
    assert found["threads"] >= 1
    assert found["fast_kernels"] == {}  # a linear model has none
    assert isinstance(found["capture"], bool)


def test_layers_that_the_library_computes_are_named() -> None:
    found = kernels(net("fedavg_cnn", (1, 28, 28), 10))["fast_kernels"]
    assert "winograd" in found.values()
    assert kernels(Net.of(torch.nn.Linear, in_features=4, out_features=2))["fast_kernels"] == {}


def test_kinds_of_cpu() -> None:
    here = environment()
    assert same_kind(here, {**here, "threads": 64, "numpy": "0", "python": "3.99"})
    assert not same_kind(here, {**here, "cpu_capability": "other"})
    assert not same_kind(here, {**here, "torch": "0.1"})
