"""Flower's own robust strategies as aggregators: they are given the replies that ours are, as Flower's messages."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, Metadata, MetricRecord, RecordDict
from flwr.serverapp import strategy

from fedquilt.core.exchange import Context, Reply
from fedquilt.core.params import Params, add
from fedquilt.pieces.robust.vectors import count_of

logging.getLogger("flwr").setLevel(logging.ERROR)


def merged(made: Any, current: Params, replies: Iterable[Reply[Any]]) -> Params:
    """The model that a strategy makes of these replies."""
    sent = []
    for reply in replies:
        model = add(current, reply.upload.delta)
        arrays = ArrayRecord({n: Array(np.ascontiguousarray(t.numpy())) for n, t in model.items()})
        content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": reply.samples})})
        sent.append(Message(content, metadata=_metadata(1 + len(sent))))
    found, _ = made.aggregate_train(1, sent)
    return {n: torch.from_numpy(np.array(found[n].numpy())).to(t.dtype).view(t.shape) for n, t in current.items()}


def _metadata(node: int) -> Metadata:
    """Of a reply that came from a node."""
    return Metadata(
        run_id=1, message_id="", src_node_id=node, dst_node_id=0, reply_to_message_id="", group_id="",
        created_at=0.0, ttl=1e9, message_type="train", src_task_id=None, dst_task_id=None,
    )  # fmt: skip


@dataclass(frozen=True)
class FedAvg:
    """The weighted mean."""

    def __call__(self, current: Params, replies: Iterable[Reply[Any]], context: Context) -> Params:
        return merged(strategy.FedAvg(), current, replies)


@dataclass(frozen=True)
class FedMedian:
    """The median of each number."""

    def __call__(self, current: Params, replies: Iterable[Reply[Any]], context: Context) -> Params:
        return merged(strategy.FedMedian(), current, replies)


@dataclass(frozen=True)
class FedTrimmedAvg:
    """The mean of each number without its ends.

    Args:
        beta: How much of each end.
    """

    beta: float = 0.3

    def __call__(self, current: Params, replies: Iterable[Reply[Any]], context: Context) -> Params:
        return merged(strategy.FedTrimmedAvg(beta=self.beta), current, replies)


@dataclass(frozen=True)
class MultiKrum:
    """The mean of n - f models.

    Args:
        byzantine: f, as a share.
    """

    byzantine: float = 0.3

    def __call__(self, current: Params, replies: Iterable[Reply[Any]], context: Context) -> Params:
        heard = list(replies)
        false = count_of(self.byzantine, len(heard))
        made = strategy.MultiKrum(num_malicious_nodes=false, num_nodes_to_select=len(heard) - false)
        return merged(made, current, heard)


@dataclass(frozen=True)
class Bulyan:
    """Krum, again and again, then number by number.

    Args:
        byzantine: f, as a share.
    """

    byzantine: float = 0.2

    def __call__(self, current: Params, replies: Iterable[Reply[Any]], context: Context) -> Params:
        heard = list(replies)
        return merged(strategy.Bulyan(num_malicious_nodes=count_of(self.byzantine, len(heard))), current, heard)
