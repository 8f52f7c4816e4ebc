"""From what travelled to what an attacker makes of it: a model and the gradient of a batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass

import torch
from torch import Tensor

from fedquilt.audit.defences import searching
from fedquilt.audit.inversion import BIAS, WEIGHT
from fedquilt.audit.tapping import Letter
from fedquilt.core.exchange import Method
from fedquilt.core.net import Net
from fedquilt.core.params import Params
from fedquilt.core.seed import Seed
from fedquilt.core.table import ClientId
from fedquilt.errors import InputError
from fedquilt.methods.personalised.fedproto import ROWS
from fedquilt.records.record import pack

KNOWN = {"delta", "base", "head", "gradient"}  # fields of uploads that an attacker reads


@dataclass(frozen=True)
class View:
    """What somebody holds: values of the model, and the gradient of a batch, exact or estimated; by name."""

    model: Params
    gradient: Params


@dataclass(frozen=True)
class Sight:
    """What others know of a client after one round.

    Args:
        client: Whose post.
        server: What the server holds: all that was sent to the client and all that it sent.
        body: The changes of weights alone, where a gradient was sent beside them: a codec may have spoiled the
        gradient.
        peer: What another client holds, where a method passes on what this one sent (HGLS's gradients); else None.
        examples: How many rows it says it has.
        bytes_up: Of all its uploads.
        rest: Fields of its uploads that are neither changes nor gradients, in words.
        classes: The classes it says it has, where a method sends that (FedProto's counts).
    """

    client: ClientId
    server: View
    body: View | None
    peer: View | None
    samples: int
    bytes_up: int
    rest: str = ""
    classes: frozenset[int] | None = None


def sight(letters: Sequence[Letter], client: ClientId, method: Method, pace: float) -> Sight:
    """What is known of one client.

    Args:
        letters: Of a round.
        client: Whose.
        method: Whose network and codec are public.
        pace: Learning rate times local steps: what turns a change of the model into a mean gradient.
    """
    own, net = [letter for letter in letters if letter.client == client], network(method)
    wire = next((w.upload.gradient for w in own if getattr(w.upload, "gradient", None) is not None), None)
    gradient = {} if wire is None else _gradient(method, net, wire)
    view, body = _views(own, net, gradient, pace, _exact(method))
    samples, size = max((w.samples for w in own), default=0), sum(w.bytes_up for w in own)
    peer = None if wire is None else _peer(letters, client, net, wire, gradient)
    return Sight(client, view, body, peer, samples, size, _others(own), _told(own))


def _others(own: Sequence[Letter]) -> str:
    """The fields of uploads that no attack reads."""
    return ", ".join(sorted({f.name for w in own if is_dataclass(w.upload) for f in fields(w.upload)} - KNOWN))


def _views(own: Sequence[Letter], net: Net, gradient: Params, pace: float, exact: bool) -> tuple[View, View | None]:
    """What the server holds of a client with these letters: all of it, and without the gradient, if there is one."""
    changes = {n: t for n, t in _sent(own, "delta").items() if n in net.trainable}
    told, held = _sent(own, "head"), _held(own, net)
    estimate = {n: -t.float() / pace for n, t in changes.items()}
    body = View(held, _moved(estimate)) if gradient else None
    if told and gradient and exact:  # a gradient at the trained model, all of which was sent
        trained = {n: held[n] + t for n, t in changes.items() if n in held}
        return View({**held, **trained, **told}, _moved(gradient)), body
    return View({**told, **held}, _moved({**estimate, **gradient})), body


def _sent(own: Sequence[Letter], field: str) -> Params:
    """The tensors in this field of all uploads, the last of each name."""
    return {n: t for letter in own for n, t in _field(letter.upload, field).items()}


def _exact(method: Method) -> bool:
    search = searching(method)
    return search is not None and search.gradient == "full"


def _peer(letters: Sequence[Letter], client: ClientId, net: Net, wire: object, gradient: Params) -> View | None:
    """The first other client that was sent this one's gradient. Gradients come without names; here we know whose is
    whose."""
    for letter in letters:
        passed = getattr(letter.sent, "gradients", ())
        if letter.client != client and pack(wire) in [pack(other) for other in passed]:
            return View(_held([w for w in letters if w.client == letter.client], net), _moved(gradient))
    return None


def _moved(gradient: Params) -> Params:
    """Without tensors that are zero everywhere: those were kept back."""
    return {n: t for n, t in gradient.items() if bool((t != 0).any())}


def _held(letters: Sequence[Letter], net: Net) -> Params:
    """The values of the network that a client was sent: those of its first letter, then of later ones."""
    model: Params = {}
    for letter in letters:
        for found in _models(letter.sent):
            model = {**{n: t for n, t in found.items() if n in net.names}, **model}
    return model


def _gradient(method: Method, net: Net, wire: object) -> Params:
    """A head gradient as everybody decodes it."""
    search = searching(method)
    if search is None:
        raise InputError(f"{type(method).__name__} sends gradients of a kind that is not known here.")
    names = (WEIGHT,) if search.drop_bias else (WEIGHT, BIAS)
    like = {n: torch.zeros_like(t) for n, t in net.init(Seed(0)).items() if n in names}
    decoded: Params = search.coding.decode(wire, like)
    return decoded


def network(method: Method) -> Net:
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


def _field(upload: object, name: str) -> Mapping[str, Tensor]:
    """The tensors in this field of an upload, or of the upload of a base in it."""
    value = getattr(upload, name, None)
    if isinstance(value, Mapping):
        return {n: t for n, t in value.items() if isinstance(t, Tensor)}
    inner = getattr(upload, "base", None)
    return {} if inner is None else _field(inner, name)


def _models(value: object) -> Iterator[Mapping[str, Tensor]]:
    """Every dict of tensors in a record."""
    if isinstance(value, Mapping) and value and all(isinstance(v, Tensor) for v in value.values()):
        yield value
        return
    for item in _items(value):
        yield from _models(item)


def _items(value: object) -> Iterable[object]:
    """What a mapping, a record or a sequence holds."""
    if isinstance(value, Mapping):
        return value.values()
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in fields(value)]
    return value if isinstance(value, tuple | list) else ()
