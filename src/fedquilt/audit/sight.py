"""From what travelled to what an attacker makes of it: a model and the gradient of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from fedquilt.audit.analytic import WEIGHT
from fedquilt.audit.tapping import Letter
from fedquilt.core.errors import InputError
from fedquilt.core.net import Net
from fedquilt.core.params import Params
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId
from fedquilt.methods.fedproto import ROWS

DELTAS, GRADIENTS = ("delta",), ("gradient", "head_gradient", "slope")  # fields of uploads, by what they hold


@dataclass(frozen=True)
class Sight:
    """What somebody who reads a client's post knows after one round.

    Args:
        client: Whose post.
        model: The values of the model that were sent to it, by name.
        gradient: The gradient of its batch, exact or estimated, by name.
        examples: How many rows it says it has.
        bytes_up: Of all its uploads.
        rest: Fields of its uploads that are neither changes nor gradients, in words.
        classes: The classes it says it has, where a method sends that (FedProto's counts).
    """

    client: ClientId
    model: Params
    gradient: Params
    examples: int
    bytes_up: int
    rest: str = ""
    classes: frozenset[int] | None = None


def sight(letters: Sequence[Letter], client: ClientId, method: Any, pace: float) -> Sight:
    """What the server sees of one client.

    Args:
        letters: Of a round.
        client: Whose.
        method: Whose network is public.
        pace: Learning rate times local steps: what turns a change of the model into a mean gradient.
    """
    own, net = [letter for letter in letters if letter.client == client], network(method)
    gradient: Params = {}
    for letter in own:
        gradient |= {n: -t / pace for n, t in _tensors(letter.upload, DELTAS, net).items()}
    for letter in own:
        gradient |= _tensors(letter.upload, GRADIENTS, net)  # what is sent as a gradient needs no estimate
    gradient = {n: t for n, t in gradient.items() if bool((t != 0).any())}  # zeros everywhere: it was kept back
    model: Params = {}
    for letter in own:
        for found in _models(letter.sent):
            known = {n: t for n, t in found.items() if n in net.names}
            model = {**known, **model}
    known_fields = (*DELTAS, *GRADIENTS)
    rest = {f.name for w in own if is_dataclass(w.upload) for f in fields(w.upload) if f.name not in known_fields}
    examples, size = max((w.examples for w in own), default=0), sum(w.bytes_up for w in own)
    return Sight(client, model, gradient, examples, size, ", ".join(sorted(rest)), _told(own))


def network(method: Any) -> Net:
    """The method's network."""
    net: Net | None = getattr(method, "net", None)
    if net is None:
        raise InputError(f"{type(method).__name__} has no network (attribute net): its uploads cannot be inverted.")
    return net


def filled(net: Net, known: Mapping[str, Tensor], seed: Seed) -> tuple[Params, bool]:
    """A whole model, with values of one's own where none are known; and whether the head is known."""
    fresh = net.init(seed)
    whole = {n: known.get(n, t) for n, t in fresh.items()}
    return whole, WEIGHT not in fresh or WEIGHT in known


def _told(letters: Sequence[Letter]) -> frozenset[int] | None:
    counts = [t for w in letters for found in _models(w.upload) if (t := found.get(ROWS)) is not None]
    return frozenset(torch.nonzero(counts[-1] > 0).flatten().tolist()) if counts else None


def _tensors(upload: Any, names: Sequence[str], net: Net) -> Params:
    """The weights of the network in these fields of a record."""
    found: Params = {}
    for field in names:
        value = getattr(upload, field, None)
        if isinstance(value, Mapping):
            found |= {n: t for n, t in value.items() if n in net.trainable and isinstance(t, Tensor)}
    return {n: t.to(torch.float32) for n, t in found.items()}


def _models(value: Any) -> Iterator[Mapping[str, Tensor]]:
    """Every dict of tensors in a record."""
    if isinstance(value, Mapping):
        if value and all(isinstance(v, Tensor) for v in value.values()):
            yield value
        else:
            for item in value.values():
                yield from _models(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _models(getattr(value, field.name))
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _models(item)
