"""A classifier of transformers whose encoder was set to ``requires_grad=False``, as its users do, sends two tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedquilt.core.net import Net
from fedquilt.data import Federation
from fedquilt.methods.fedavg import FedAvg
from helpers.engines import Counting
from helpers.toy import last

transformers = pytest.importorskip("transformers")


def classifier() -> Any:
    """BERT with two layers and 41 tensors, drawn at random, of which the classifier's two are trained."""
    settings = transformers.BertConfig(
        vocab_size=10,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=12,
        num_labels=2,
    )
    model = transformers.BertForSequenceClassification(settings)
    model.bert.requires_grad_(False)
    return model


def test_a_classifier_of_transformers_sends_what_it_trains():
    net = Net(classifier)
    assert len(classifier().state_dict()) == 41
    assert net.names == net.trainable == ("classifier.weight", "classifier.bias")
    x, y = torch.randint(10, (40, 6), generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2
    used, weigh = Counting(), 4 * 2 * 17
    last(FedAvg(objective=net, batch_size=8), Federation.from_arrays(x, y, clients=2), rounds=1, engine=used)
    frames = [*used.uploads, *(task.down for task in used.tasks)]
    assert all(weigh < len(frame) < weigh + 500 for frame in frames)
